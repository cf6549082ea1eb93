"""M²RNN (arXiv 2603.14360), whose state is a matrix a head, h [n, K, V], 0 ahead of a document.

With q, k and v behind a causal convolution of each channel and silu, and the gate g:

    h_t = f_t h_{t-1} + (1 - f_t) tanh(h_{t-1} W + k_t v_tᵀ),    f_t = exp(-exp(A_log) softplus(x_t + dt_bias))
    y_t = norm((q_tᵀ h_t + D v_t) silu(g_t))
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.alignment.nam56r.formulas.parts import Said, Weights, rms, silu, softplus
from model.families.nam56r import Size


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [S, n]: each channel over its last tokens, by weight [n, width], the token itself last."""
    rows, width = [], weight.shape[1]
    for s in range(len(x)):
        taken = [weight[:, width - 1 - back] * x[s - back] for back in range(min(width, s + 1))]
        rows.append(bias + torch.stack(taken).sum(0))
    return torch.stack(rows)


def m2rnn(xs: Tensor, w: Weights, p: str, c: Size) -> Said:
    """[S, h] -> ``gated`` [S, n V], what the last norm takes, and ``mixed`` [S, h]."""
    n, K, V = c.m2rnn.heads, c.m2rnn.k_dim, c.m2rnn.v_dim
    mixed, g = (xs @ w[p + "in_proj.weight"].T).split([2 * K + n * V, n * V], 1)
    q, k, v = silu(convolved(mixed, w[p + "conv_weight"], w[p + "conv_bias"])).split([K, K, n * V], 1)
    v = v.unflatten(1, (n, V))
    forget = torch.exp(-torch.exp(w[p + "A_log"]) * softplus(xs @ w[p + "forget_proj.weight"].T + w[p + "dt_bias"]))
    h, out = torch.zeros(n, K, V, dtype=xs.dtype), []
    for t in range(len(xs)):
        f = forget[t][:, None, None]
        h = f * h + (1 - f) * torch.tanh(h @ w[p + "W"] + torch.einsum("k,nv->nkv", k[t], v[t]))
        out.append(torch.einsum("k,nkv->nv", q[t], h) + w[p + "D"] * v[t])
    gated = torch.stack(out).flatten(1) * silu(g)
    return {"gated": gated, "mixed": rms(gated, w[p + "norm.weight"]) @ w[p + "out_proj.weight"].T}
