"""M²RNN's recurrence on a GPU, forward and backward, with the values and gradients of ``m2rnn_reference``.

Memory passing, none kept but the inputs: every token's state, T heads K' V' numbers with K and V rounded up to a
multiple of 16 and a power of two, at least 16, once in forward and twice in backward (1.28 GB each in 16 bits at T =
12,288, 51 heads, K = 64, V = 16); in backward the parts of dq and dk, 8 T heads K bytes (0.32 GB). With ``keep``
the states stay until backward, which then goes token by token once, not twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.layers.common import documents
from model.layers.m2rnn import kernels

ROWS = 16  # rows of the state that a program carries: the fewest that a tensor core multiplies
LANES = 16  # documents of one head computed at once; each lane takes the longest one left, so the last ends early
STAGES = {"m2rnn_states": 8, "m2rnn_back": 8, "m2rnn_slopes": 3, "m2rnn_gradients": 3}  # tokens under way at once
READ, TOKENS = 4, 32  # tokens that a program reads at once, and that it takes one by one in no order


def m2rnn_triton(
    q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor, keep: bool = False
) -> Tensor:
    """y [T, heads, V] in q's dtype.

    q, k [T, K] bf16, fp16 or fp32, shared by all heads; v [T, heads, V] as q; log_f [T, heads] fp32; W [heads, V, V];
    cu_seqlens [D+1] int32. State and accumulation fp32; products h W in fp16 and gradients' products in tf32 unless q
    is fp32. ``keep`` changes no bit of the result. Deterministic, without host synchronisation. Raises ValueError for
    other dtypes or shapes.
    """
    _check(q, k, v, log_f, W, cu_seqlens)
    y: Tensor = _M2RNN.apply(q, k, v, log_f, W, cu_seqlens, keep and torch.is_grad_enabled())
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


def _order(cu_seqlens: Tensor) -> Tensor:
    """Numbers of the documents, the longest one's first, [D] int32."""
    return cu_seqlens.diff().argsort(descending=True, stable=True).int()


class _M2RNN(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, W: Tensor, cu_seqlens: Tensor, keep: bool
    ) -> Tensor:
        q, k, v, W = (x.contiguous() for x in (q, k, v, W))
        f, i = log_f.exp().contiguous(), (-log_f.expm1()).contiguous()  # [T, heads]
        order = documents.once(cu_seqlens, "longest first", lambda: _order(cu_seqlens))
        states = _states(k.float(), v.float(), f, i, W, cu_seqlens, order, _half(q))
        ctx.save_for_backward(q, k, v, f, i, W, cu_seqlens, order, *([states] if keep else []))
        y = torch.empty_like(v)
        grid, sizes = (-(-len(q) // READ), v.shape[1]), _sizes(k, v)
        kernels.m2rnn_read[grid](q, states, y, len(q), TOKENS=READ, num_warps=1, **sizes)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        given, (f, i, W, cu_seqlens, order, *kept) = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        (T, K), (heads, V), dtype = given[0].shape, given[2].shape[1:], given[0].dtype
        sizes, half = _sizes(*given[1:]), _half(given[0])
        q, k, v, dy = (x.float() for x in (*given, dy.contiguous()))
        carries = torch.ones(T + 1, device=q.device).index_fill_(0, cu_seqlens.long(), 0)
        programs = -(-T // TOKENS)
        states = kept[0] if kept else _states(k, v, f, i, W, cu_seqlens, order, half)
        slopes = torch.empty_like(states, dtype=torch.float16 if dtype == torch.bfloat16 else torch.float32)
        grads = slopes.view(dtype) if dtype == torch.bfloat16 else slopes
        _launch(
            "m2rnn_slopes", (programs, heads), k, v, W, carries, states, slopes, T, HALF=half, TOKENS=TOKENS, **sizes
        )
        _launch(
            "m2rnn_back",
            (_lanes(order), heads, sizes["S"]),
            q,
            dy,
            f,
            i,
            W,
            cu_seqlens,
            order,
            slopes,
            grads,
            len(order),
            HALF=half,
            **sizes,
        )
        dv = torch.empty_like(given[2])
        shapes = (heads, T, K), (heads, T, K), (T, heads), (programs, heads, V, V)
        dq, dk, dlog_f, dw = (torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes)
        _launch(
            "m2rnn_gradients",
            (programs, heads),
            k,
            v,
            f,
            i,
            W,
            carries,
            states,
            grads,
            dy,
            T,
            dq,
            dk,
            dv,
            dlog_f,
            dw,
            HALF=half,
            TOKENS=TOKENS,
            **sizes,
        )
        return dq.sum(0).to(dtype), dk.sum(0).to(dtype), dv, dlog_f, dw.sum(0).to(W.dtype), None, None


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    getattr(kernels, name)[grid](*arguments, STAGES=STAGES[name], num_warps=1, **constants)


def _states(
    k: Tensor, v: Tensor, f: Tensor, i: Tensor, W: Tensor, cu_seqlens: Tensor, order: Tensor, half: bool
) -> Tensor:
    """The state after every token, [T, heads, K', V'], in fp16 if ``half``, else fp32. k, v, f and i are fp32."""
    sizes, heads = _sizes(k, v), v.shape[1]
    shape = len(k), heads, sizes["S"] * ROWS, sizes["C"]
    states = k.new_empty(shape, dtype=torch.float16 if half else torch.float32)
    _launch(
        "m2rnn_states",
        (_lanes(order), heads, sizes["S"]),
        k,
        v,
        f,
        i,
        W,
        cu_seqlens,
        order,
        states,
        len(order),
        HALF=half,
        **sizes,
    )
    return states


def _sizes(k: Tensor, v: Tensor) -> dict[str, int]:
    """The kernels' compile-time sizes."""
    K, (heads, V) = k.shape[1], v.shape[1:]
    columns = max(16, 1 << (V - 1).bit_length())
    return {"N": heads, "K": K, "V": V, "S": -(-K // ROWS), "R": ROWS, "C": columns}


def _half(x: Tensor) -> bool:
    return bool(x.dtype != torch.float32)


def _lanes(order: Tensor) -> int:
    return min(LANES, len(order))
