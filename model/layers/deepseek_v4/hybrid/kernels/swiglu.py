"""The clamped gated activation of experts, times the token's weight, as one Triton kernel each way."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _halves(
    x: tl.tensor, row: tl.tensor, c: tl.tensor, limit: float, F: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The gate, clamped from above, and the values, clamped; whether each is within its limit, which lets gradients
    through."""
    gate = tl.load(x + row * 2 * F + c, mask=c < F, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * F + F + c, mask=c < F, other=0.0).to(tl.float32)
    free, inside = gate <= limit, (up <= limit) & (up >= -limit)
    return tl.minimum(gate, limit), tl.minimum(tl.maximum(up, -limit), limit), free, inside


@triton.jit  # type: ignore[untyped-decorator]
def weighted_swiglu_forward(
    x: tl.tensor, weights: tl.tensor, y: tl.tensor, limit: float, F: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """y [T, F] of one row of x [T, 2 F]; weights [T] fp32."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    gate, up, _, _ = _halves(x, row, c, limit, F)
    tl.store(y + row * F + c, gate * tl.sigmoid(gate) * up * tl.load(weights + row), mask=c < F)


@triton.jit  # type: ignore[untyped-decorator]
def weighted_swiglu_backward(
    x: tl.tensor,
    weights: tl.tensor,
    dy: tl.tensor,
    dx: tl.tensor,
    dweights: tl.tensor,
    limit: float,
    F: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """dx [T, 2 F] and dweights [T] fp32 of one row."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    gate, up, free, inside = _halves(x, row, c, limit, F)
    g = tl.load(dy + row * F + c, mask=c < F, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    silu = gate * share
    tl.store(dweights + row, tl.sum(g * silu * up, 0))
    g = g * tl.load(weights + row)
    of_gate = tl.where(free, g * up * share * (1 + gate * (1 - share)), 0.0)
    tl.store(dx + row * 2 * F + c, of_gate, mask=c < F)
    tl.store(dx + row * 2 * F + F + c, tl.where(inside, g * silu, 0.0), mask=c < F)


class _Weighted(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, limit: float) -> Tensor:
        x, weights = x.contiguous(), weights.contiguous()
        T, F = len(x), x.shape[1] // 2
        ctx.save_for_backward(x, weights)
        ctx.limit = limit
        y = x.new_empty(T, F)
        weighted_swiglu_forward[(T,)](x, weights, y, limit, F=F, BLOCK=triton.next_power_of_2(F))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weights = ctx.saved_tensors
        dx, dweights, F = torch.empty_like(x), torch.empty_like(weights), x.shape[1] // 2
        block = triton.next_power_of_2(F)
        weighted_swiglu_backward[(len(x),)](x, weights, dy.contiguous(), dx, dweights, ctx.limit, F=F, BLOCK=block)
        return dx, dweights, None


def weighted_swiglu(x: Tensor, weights: Tensor, limit: float) -> Tensor:
    """x [T, 2 F] bf16, fp16 or fp32, gates first, weights [T] fp32 -> ``clamped_swiglu`` times the weight, [T, F].

    Rounded once. A number at its limit has a gradient, as torch's clamp gives it."""
    y: Tensor = _Weighted.apply(x, weights, limit)
    return y
