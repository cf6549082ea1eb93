"""gelu(x) times the token's router weight, between an expert's two products, as one Triton kernel each way.

Megatron-Core computes it in four steps through fp32 copies of [T, F], because the weights are fp32
(megatron/core/transformer/moe/experts.py @ core_v0.19.0, ``TEGroupedMLP.forward``).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _cdf(x: tl.tensor) -> tl.tensor:
    """The standard normal distribution function, of which gelu(x) = x cdf(x)."""
    return 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)


@triton.jit  # type: ignore[untyped-decorator]
def weighted_gelu_forward(x: tl.tensor, weights: tl.tensor, y: tl.tensor, F: int, BLOCK: tl.constexpr) -> None:
    """y = gelu(x) weights of one row; x, y [T, F], weights [T] fp32. One program a row."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at, inside = row.to(tl.int64) * F + column, column < F
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    tl.store(y + at, value * _cdf(value) * tl.load(weights + row), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def weighted_gelu_backward(
    x: tl.tensor, weights: tl.tensor, dy: tl.tensor, dx: tl.tensor, dweights: tl.tensor, F: int, BLOCK: tl.constexpr
) -> None:
    """dx [T, F] and dweights [T] fp32 of one row, from dy [T, F] and the forward kernel's inputs."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    at, inside = row.to(tl.int64) * F + column, column < F
    value = tl.load(x + at, mask=inside, other=0).to(tl.float32)
    grad = tl.load(dy + at, mask=inside, other=0).to(tl.float32)
    cdf = _cdf(value)
    density = 0.3989422804014327 * tl.exp(-0.5 * value * value)
    tl.store(dx + at, grad * tl.load(weights + row) * (cdf + value * density), mask=inside)
    tl.store(dweights + row, tl.sum(grad * value * cdf, 0))


class _WeightedGelu(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        x, weights = x.contiguous(), weights.contiguous()
        ctx.save_for_backward(x, weights)
        y = torch.empty_like(x)
        weighted_gelu_forward[(len(x),)](x, weights, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weights = ctx.saved_tensors
        dx, dweights = torch.empty_like(x), torch.empty_like(weights)
        block = triton.next_power_of_2(x.shape[1])
        weighted_gelu_backward[(len(x),)](x, weights, dy.contiguous(), dx, dweights, x.shape[1], BLOCK=block)
        return dx, dweights


def weighted_gelu(x: Tensor, weights: Tensor) -> Tensor:
    """x [T, F] bf16, fp16 or fp32, weights [T] fp32 -> gelu(x) weights[:, None] in x's dtype, rounded once.

    The exact gelu, by erf. Raises ValueError for other shapes or dtypes.
    """
    if x.dim() != 2 or weights.shape != x.shape[:1] or weights.dtype != torch.float32:
        raise ValueError(f"x {list(x.shape)} wants fp32 weights [T], not {weights.dtype} {list(weights.shape)}")
    y: Tensor = _WeightedGelu.apply(x, weights)
    return y
