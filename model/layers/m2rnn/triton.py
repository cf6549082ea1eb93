"""M²RNN's recurrence on a GPU, forward and backward, with the values and gradients of ``m2rnn_reference``.

Memory, S = ⌈K / 16⌉ slices of 16 rows and V' = V rounded up to a power of two, at least 16:

- kept from forward to backward: the state before every 32nd token, 64 (T // 32 + D) heads S V' bytes. 92 MB at
  T = 16,384, 44 heads, K = 64, V = 16, and 0.18 MB a document; every token's state would be 2.95 GB;
- passing, in backward: 8 lanes' states and candidates of one chunk, 8 · 32 · 128 heads S V' bytes (92 MB), and the
  parts of the gradients, 4 T heads (2 K + S V + S) bytes (0.57 GB); in forward y's parts, 4 T heads S V (185 MB).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.layers.common import documents
from model.layers.m2rnn import kernels

ROWS = 16  # rows of the state that a program carries: the fewest that a tensor core multiplies
CHUNK = 32  # tokens between kept states: √(T / (2 lanes)) makes kept states and scratch least together at T = 16,384
LANES = 8  # documents of one head computed at once; each lane takes the longest one left, so the last ends early


def m2rnn_triton(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor) -> Tensor:
    """y [T, heads, V] in q's dtype.

    q, k [T, K] bf16, fp16 or fp32, shared by all heads; v [T, heads, V] as q; log_f [T, heads] fp32; W [heads, V, V];
    cu_seqlens [D+1] int32. State and accumulation fp32; products h W in fp16 and gradients' products in tf32 unless q
    is fp32. Deterministic, without host synchronisation. Raises ValueError for other dtypes or shapes.
    """
    _check(q, k, v, log_f, W, cu_seqlens)
    y: Tensor = _M2RNN.apply(q, k, v, log_f, W, cu_seqlens)
    return y


def _check(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor) -> None:
    documents.check(cu_seqlens, len(q))
    (T, K), (heads, V) = q.shape, v.shape[1:]
    shapes = {"k": (k, (T, K)), "v": (v, (T, heads, V)), "log_f": (log_f, (T, heads)), "W": (W, (heads, V, V))}
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} is {list(tensor.shape)}; q and v make it {list(shape)}")
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32) or log_f.dtype != torch.float32:
        raise ValueError(f"q must be bf16, fp16 or fp32 and log_f fp32, not {q.dtype} and {log_f.dtype}")


class _M2RNN(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor) -> Tensor:
        q, k, v, W = (x.contiguous() for x in (q, k, v, W))
        f, i = log_f.exp().contiguous(), (-log_f.expm1()).contiguous()  # [T, heads]
        order = cu_seqlens.diff().argsort(descending=True, stable=True).int()  # [D]
        grid, sizes = _launch(q, v, cu_seqlens)
        (_, heads, S), T, D = grid, len(q), len(order)
        parts = q.new_empty(S, T, heads, v.shape[2], dtype=torch.float32)
        states = q.new_empty(T // CHUNK + D, heads, S, ROWS, sizes["C"], dtype=torch.float32)
        inputs = (q, k, v, f, i, W, cu_seqlens, order, states)
        kernels.m2rnn_forward[grid](*inputs, D, T, parts, num_warps=1, **sizes)
        ctx.save_for_backward(*inputs)
        return parts.sum(0).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, _, v, f, _, W, cu_seqlens, order, _ = ctx.saved_tensors
        grid, sizes = _launch(q, v, cu_seqlens)
        (lanes, heads, S), (T, K), V = grid, q.shape, v.shape[2]
        shapes = {
            "scratch": (lanes, heads, S, CHUNK, 2, ROWS, sizes["C"]),
            "dq": (heads, T, K), "dk": (heads, T, K), "dv": (S, T, heads, V), "dlog_f": (S, T, heads),
            "dw": (lanes, S, heads, V, V),
        }  # fmt: skip
        parts = {name: torch.empty(shape, dtype=torch.float32, device=q.device) for name, shape in shapes.items()}
        kernels.m2rnn_backward[grid](*ctx.saved_tensors, len(order), T, dy.contiguous(), **parts, num_warps=1, **sizes)
        likes = {"dq": q, "dk": q, "dv": v, "dlog_f": f}
        summed = (parts[name].sum(0).to(like.dtype) for name, like in likes.items())
        return *summed, parts["dw"].sum((0, 1)).to(W.dtype), None


def _launch(q: Tensor, v: Tensor, cu_seqlens: Tensor) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The grid (lanes, heads, slices) and the kernels' compile-time sizes."""
    K, (heads, V) = q.shape[1], v.shape[1:]
    slices = -(-K // ROWS)
    columns = max(16, 1 << (V - 1).bit_length())
    sizes = {"N": heads, "K": K, "V": V, "S": slices, "R": ROWS, "C": columns, "CHUNK": CHUNK}
    return (min(LANES, len(cu_seqlens) - 1), heads, slices), {**sizes, "HALF": q.dtype != torch.float32}
