"""Rotary embedding of queries and keys as one Triton kernel each way.

Takes the place of ``_apply_rotary_pos_emb_bshd`` (megatron/core/models/common/embeddings/rope_utils.py @
5be9626709af2722333bf54797c954c09edeada3), whose products, halves and their concatenations are an operator each, ten of
them, forward, and more of them back. Where the dtype has 16 bits, what it rounds is rounded here. Megatron's own fusion
takes YaRN's embedding alone, and refuses DSA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Rotate = Callable[..., Tensor]
Tables = tuple[Tensor, Tensor]
OPTIONS = {"enable_fp_fusion": False}  # else LLVM narrows the products to the dtype and fuses each with the sum


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(x: tl.tensor, like: tl.tensor) -> tl.tensor:
    return x.to(like.dtype.element_ty).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def rotate_kernel(
    x: tl.tensor,
    out: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    x_row: int,
    x_batch: int,
    x_head: int,
    x_one: tl.constexpr,
    out_row: int,
    out_batch: int,
    out_head: int,
    out_one: tl.constexpr,
    batch: int,
    PAIRED: tl.constexpr,
    BACK: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Of one token: x [S, B, H, D] turned, or its gradient turned back; cos and sin [S, D] as x.

    A pair is (2 i, 2 i + 1) where PAIRED, else (i, D / 2 + i), and becomes (i, D / 2 + i). ROWS and WIDTH: HEADS and
    HALF rounded up to powers of two. Strides of a row's numbers are constants: Triton specializes no ``int`` on 1, and
    would lay threads along heads.
    """
    row, line = (tl.program_id(0) // batch).to(tl.int64), tl.program_id(0) % batch
    head, half = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    pair = tl.arange(0, 2 * WIDTH)[None, :]  # read and written together: one by one, threads would go head by head
    inside, there, whole = (head < HEADS) & (half < HALF), half < HALF, (head < HEADS) & (pair < 2 * HALF)
    at = x + row * x_row + line * x_batch + head * x_head
    if PAIRED and not BACK:
        read = tl.load(at + pair * x_one, mask=whole, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(read, (ROWS, WIDTH, 2)))
    else:
        a = tl.load(at + half * x_one, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(at + (HALF + half) * x_one, mask=inside, other=0.0).to(tl.float32)
    table = row * 2 * HALF + half
    cos_a = tl.load(cos + table, mask=there, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + table + HALF, mask=there, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + table, mask=there, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + table + HALF, mask=there, other=0.0).to(tl.float32)
    if BACK:
        low = _rounded(a * cos_a, out) + _rounded(b * sin_b, out)
        high = _rounded(b * cos_b, out) - _rounded(a * sin_a, out)
    else:
        low = _rounded(a * cos_a, out) - _rounded(b * sin_a, out)
        high = _rounded(b * cos_b, out) + _rounded(a * sin_b, out)
    low, high = low.to(out.dtype.element_ty), high.to(out.dtype.element_ty)
    to = out + row * out_row + line * out_batch + head * out_head
    if PAIRED and BACK:
        tl.store(to + pair * out_one, tl.interleave(low, high), mask=whole)
    else:
        tl.store(to + half * out_one, low, mask=inside)
        tl.store(to + (HALF + half) * out_one, high, mask=inside)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, paired: bool, back: bool, out: Tensor | None = None) -> Tensor:
    """x [S, B, H, D] turned, or its gradient turned back, in ``out``, which has any strides; see ``rotate_kernel``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    rows, batch, heads, width = x.shape
    rotate_kernel[rows * batch,](
        x,
        out,
        cos,
        sin,
        *x.stride(),
        *out.stride(),
        batch,
        PAIRED=paired,
        BACK=back,
        HEADS=heads,
        ROWS=triton.next_power_of_2(heads),
        HALF=width // 2,
        WIDTH=triton.next_power_of_2(width // 2),
        **OPTIONS,
    )
    return out


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, paired: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.paired = paired
        return rotated(x, cos, sin, paired, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return rotated(grad, cos, sin, ctx.paired, back=True), None, None, None


def turned(t: Tensor, tables: Tables, paired: bool) -> Tensor:
    """t [S, B, H, D] turned by cosines and sines [S, 1, 1, D] of t's dtype; ``paired`` as ``rotate_kernel``."""
    return _Rotated.apply(t, *tables, paired)  # type: ignore[no-any-return, no-untyped-call]


def rotating(upstream: Rotate, told: Callable[[Tables], None] = lambda tables: None) -> Rotate:
    """``upstream``, Megatron's function, by the kernel where all channels of a token turn, by angles that heads share.

    t [S, B, H, D], freqs [S, 1, 1, D] fp32, as Megatron calls it for MLA and for DSA's indexer. ``told`` is called with
    the tables of each call that is not left to ``upstream``.
    """

    def rotate(
        t: Tensor,
        freqs: Tensor,
        rotary_interleaved: bool = False,
        mla_rotary_interleaved: bool = False,
        mscale: float = 1.0,
        **more: Any,
    ) -> Tensor:
        taken = t.dim() == 4 and freqs.shape == (t.shape[0], 1, 1, t.shape[-1]) and not freqs.requires_grad
        if (
            not taken
            or rotary_interleaved
            or t.numel() == 0
            or any(value not in (None, False) for value in more.values())
        ):
            return upstream(t, freqs, rotary_interleaved, mla_rotary_interleaved, mscale, **more)
        tables = (freqs.cos() * mscale).to(t.dtype), (freqs.sin() * mscale).to(t.dtype)
        told(tables)
        return turned(t, tables, mla_rotary_interleaved)

    return rotate
