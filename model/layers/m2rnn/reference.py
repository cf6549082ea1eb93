"""M²RNN's recurrence in plain torch, differentiable, in any float dtype: the definition, and the path for CPUs.

Source: M²RNN, arXiv 2603.14360. For each head, with state h [K, V] that is 0 before a document's first token:

    h_t = f_t h_{t-1} + (1 - f_t) tanh(h_{t-1} W + k_t v_tᵀ),    y_t = q_tᵀ h_t,
    f_t = exp(-exp(A_log) softplus(x_t + dt_bias))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.layers.common import documents


def log_forget(x: Tensor, A_log: Tensor, dt_bias: Tensor) -> Tensor:
    """log f, [T, heads], of x [T, heads]; A_log and dt_bias [heads]. At least fp32, whatever the dtype of x.

    It is the logarithm because 1 - f = -expm1(log f) keeps its digits for f near 1.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return -A_log.to(x.dtype).exp() * F.softplus(x + dt_bias.to(x.dtype))


def m2rnn_reference(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor) -> Tensor:
    """y [T, heads, V] in q's dtype.

    q, k [T, K], shared by all heads; v [T, heads, V]; log_f [T, heads]; W [heads, V, V]; cu_seqlens [D+1] int32.
    Computes in fp64 if q is fp64, else in fp32. All documents advance together, one token a step, and drop out at their
    end: it takes as many steps as the longest document has tokens, and keeps a state for every token in memory.
    Raises ValueError if cu_seqlens does not describe T tokens.
    """
    order, running = _packed(cu_seqlens, len(q))
    dtype = torch.promote_types(q.dtype, torch.float32)
    heads, V, K = v.shape[1], v.shape[2], q.shape[1]
    q_, k_, v_, log_f_ = (x.to(dtype)[order] for x in (q, k, v, log_f))
    kv = torch.einsum("tk,tnv->ntkv", k_, v_).reshape(heads, -1, V)  # [heads, T K, V]
    f, i = (gate.T.repeat_interleave(K, dim=1).unsqueeze(-1) for gate in (log_f_.exp(), -log_f_.expm1()))
    rows = [count * K for count in running]
    h = kv.new_zeros(heads, rows[0], V)
    states = []
    steps = zip(rows, *(x.split(rows, dim=1) for x in (kv, f, i)), strict=True)  # f, i [heads, T K, 1]
    for count, kv_t, f_t, i_t in steps:
        h = h if h.shape[1] == count else h[:, :count]
        h = torch.addcmul(f_t * h, i_t, torch.baddbmm(kv_t, h, W.to(dtype)).tanh())
        states.append(h)
    all_h = torch.cat(states, dim=1).unflatten(1, (-1, K))  # [heads, T, K, V]
    y = torch.einsum("tk,ntkv->tnv", q_, all_h)
    return y[order.argsort()].to(q.dtype)


def _packed(cu_seqlens: Tensor, tokens: int) -> tuple[Tensor, list[int]]:
    """The order of all documents' first tokens, then their second ones, …, the longest document first each time, [T]
    int64; and the number of documents still running at each step.
    """
    place = documents.positions(cu_seqlens, tokens)
    lengths = cu_seqlens.diff()  # [D]
    rank = lengths.argsort(descending=True, stable=True).argsort()  # [D]
    order = (place * len(lengths) + rank.repeat_interleave(lengths)).argsort()
    return order, place.bincount().tolist()
