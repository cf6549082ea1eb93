"""A compressor's pooling as one Triton kernel each way, with the values of ``deepseek_v4.compressor.pool``.

A program has a window and BLOCK channels: SLOTS gates, with overlap those of the window before it first, then its own.
Each half of a token's channels is read by one program alone, so that gradients are written, never added.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.layers.deepseek_v4.compressor import Windows


@triton.jit  # type: ignore[untyped-decorator]
def _slots(
    tokens: tl.tensor,
    opens: tl.tensor,
    c: tl.tensor,
    RATIO: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of this program's slots and channels the places in [T, C] and in ape [RATIO, C], and which there are.

    A slot behind the last whole window has tokens that do not follow each other: it has none.
    """
    e, n = tl.program_id(0).to(tl.int64), tl.arange(0, SLOTS)
    before = n * 0 == 1
    if OVERLAP:
        before = n < RATIO
    j = tl.where(before | (n < RATIO), n, n - RATIO)
    window = tl.where(before, e - 1, e)
    there = (n < RATIO * (2 if OVERLAP else 1)) & ~(before & (tl.load(opens + e) != 0))
    first = tl.load(tokens + window * RATIO, mask=there, other=0)
    there = there & (tl.load(tokens + window * RATIO + RATIO - 1, mask=there, other=-1) - first == RATIO - 1)
    channel = tl.where(before | (n * 0 == (1 if OVERLAP else 0)), 0, D)[:, None] + c[None, :]
    C: tl.constexpr = D * (2 if OVERLAP else 1)
    return (first + j)[:, None] * C + channel, j[:, None] * C + channel, there[:, None] & (c < D)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def pooled(
    keys: tl.tensor,
    gates: tl.tensor,
    ape: tl.tensor,
    tokens: tl.tensor,
    opens: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    RATIO: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """out and the logarithm of the softmax's sum, [E, D] fp32; keys and gates [T, C], ape [RATIO, C] fp32."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, place, there = _slots(tokens, opens, c, RATIO, SLOTS, D, OVERLAP)
    z = tl.load(gates + at, mask=there, other=0.0).to(tl.float32) + tl.load(ape + place, mask=there, other=0.0)
    z = tl.where(there, z, float("-inf"))
    top = tl.max(z, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp(z - top[None, :])
    total = tl.sum(p, 0)
    total = tl.where(total == 0, 1.0, total)
    sums = tl.sum(p * tl.load(keys + at, mask=there, other=0.0).to(tl.float32), 0)
    own = tl.program_id(0).to(tl.int64) * D + c
    tl.store(out + own, sums / total, mask=c < D)
    tl.store(lse + own, top + tl.log(total), mask=c < D)


@triton.jit  # type: ignore[untyped-decorator]
def pooled_gradients(
    keys: tl.tensor,
    gates: tl.tensor,
    ape: tl.tensor,
    tokens: tl.tensor,
    opens: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    dout: tl.tensor,
    dkeys: tl.tensor,
    dgates: tl.tensor,
    RATIO: tl.constexpr,
    SLOTS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
) -> None:
    """dkeys, and dgates [T, C] fp32, both 0 before."""
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, place, there = _slots(tokens, opens, c, RATIO, SLOTS, D, OVERLAP)
    own = tl.program_id(0).to(tl.int64) * D + c
    z = tl.load(gates + at, mask=there, other=0.0).to(tl.float32) + tl.load(ape + place, mask=there, other=0.0)
    p = tl.where(there, tl.exp(z - tl.load(lse + own, mask=c < D, other=0.0)[None, :]), 0.0)
    above = tl.load(dout + own, mask=c < D, other=0.0).to(tl.float32)
    less = tl.load(out + own, mask=c < D, other=0.0)
    k = tl.load(keys + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dkeys + at, p * above[None, :], mask=there)
    tl.store(dgates + at, p * above[None, :] * (k - less[None, :]), mask=there)


class _Pool(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, keys: Tensor, gates: Tensor, ape: Tensor, found: Windows, overlap: bool) -> Tensor:
        keys, gates = keys.contiguous(), gates.contiguous()
        E, ratio = found.tokens.shape
        D = keys.shape[1] // (2 if overlap else 1)
        out = keys.new_empty(E, D, dtype=torch.float32)
        lse = torch.empty_like(out)
        grid, sizes = _launch(E, D, ratio, overlap)
        if E:
            pooled[grid](keys, gates, ape, found.tokens, found.opens, out, lse, **sizes)
        ctx.save_for_backward(keys, gates, ape, found.tokens, found.opens, out, lse)
        ctx.overlap = overlap
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        keys, gates, ape, tokens, opens, out, lse = ctx.saved_tensors
        (E, ratio), D = tokens.shape, out.shape[1]
        of_keys, of_gates = torch.zeros_like(keys), torch.zeros_like(gates, dtype=torch.float32)
        grid, sizes = _launch(E, D, ratio, ctx.overlap)
        if E:
            given = keys, gates, ape, tokens, opens, out, lse, grad.contiguous()
            pooled_gradients[grid](*given, of_keys, of_gates, **sizes)
        whole = (tokens[:, -1] - tokens[:, 0] == ratio - 1)[:, None, None]
        of_ape = of_gates[tokens].where(whole, 0).sum(0)
        return of_keys, of_gates.to(gates.dtype), of_ape, None, None


def _launch(E: int, D: int, ratio: int, overlap: bool) -> tuple[tuple[int, int], dict[str, Any]]:
    slots = triton.next_power_of_2(ratio * (2 if overlap else 1))
    block = min(triton.next_power_of_2(D), max(16, 4096 // slots))
    return (E, triton.cdiv(D, block)), {"RATIO": ratio, "SLOTS": slots, "D": D, "BLOCK": block, "OVERLAP": overlap}


def pool(keys: Tensor, gates: Tensor, ape: Tensor, found: Windows, overlap: bool) -> Tensor:
    """As ``compressor.pool`` of the ``found`` windows' tokens: keys, gates [T, c D'], ape [ratio, c D'] fp32 -> [E, D']
    fp32, 0 for a slot without a window."""
    out: Tensor = _Pool.apply(keys, gates, ape, found, overlap)
    return out
