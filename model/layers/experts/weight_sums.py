"""Add the experts' weight gradients to Megatron's fp32 ones in one pass, past experts that have none."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # numbers that a program adds


@triton.jit  # type: ignore[untyped-decorator]
def add_used_kernel(
    product: tl.tensor, ends: tl.tensor, sums: tl.tensor, numbers: int, apart: int, BLOCK: tl.constexpr
) -> None:
    """sums += product of one expert, [numbers] each, sums ``apart`` from expert to expert; nothing without rows."""
    expert = tl.program_id(1)
    before = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    if tl.load(ends + expert) > before:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < numbers
        to = sums + expert.to(tl.int64) * apart + at
        added = tl.load(product + expert.to(tl.int64) * numbers + at, mask=inside, other=0).to(tl.float32)
        tl.store(to, tl.load(to, mask=inside, other=0) + added, mask=inside)


def add_used(product: Tensor, ends: Tensor, sums: Tensor) -> None:
    """``sums += product`` for experts with rows; those without are not read, for they may hold anything.

    product [E, out, in] contiguous, of any floating dtype; sums [E, out, in] fp32, each expert's contiguous; ends [E]
    int32, where each expert's rows end. Raises ValueError for others.
    """
    experts, numbers = len(product), product[0].numel()
    if not product.is_contiguous() or not sums[0].is_contiguous() or sums.shape != product.shape:
        raise ValueError(f"products {list(product.shape)} and sums {list(sums.shape)} are not of one dense shape")
    if sums.dtype != torch.float32 or ends.dtype != torch.int32 or len(ends) != experts:
        raise ValueError(f"sums are {sums.dtype}, not fp32, or ends {ends.dtype} [{len(ends)}], not int32 [{experts}]")
    grid = (triton.cdiv(numbers, BLOCK), experts)
    add_used_kernel[grid](product, ends, sums, numbers, sums.stride(0), BLOCK=BLOCK)
