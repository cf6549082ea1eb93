"""Rotary embedding of dense MLA's queries by a Triton kernel, into a part of a tensor.

What a dtype of 16 bits rounds one operator after another is rounded here. Upstream's own call has such a kernel by pack
48, which writes a tensor of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
