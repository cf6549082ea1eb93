"""What M²RNN computes before and after its recurrence, as one Triton kernel each way.

In torch the convolution alone passes over memory some forty times: a copy, a mask, a product and a sum for each tap, in
fp32. The kernels read what they need of each token's neighbours again, from the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS, COLUMNS = 16, 64  # of a program; with more the backward kernels spill registers
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # all is computed in fp32
WARPS = {"conv_silu_forward": 4, "conv_silu_backward": 8, "gated_forward": 4, "gated_backward": 4}


@triton.jit  # type: ignore[untyped-decorator]
def _convolved(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    t: tl.tensor,
    place: tl.tensor,
    c: tl.tensor,
    inside: tl.tensor,
    channels: int,
    stride: int,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """The convolution [tokens, columns] at tokens ``t``, whose places in their documents are ``place``, in fp32."""
    y = tl.load(bias + c, mask=c < channels, other=0).to(tl.float32)[None, :] + tl.zeros_like(inside).to(tl.float32)
    for back in tl.static_range(WIDTH):
        tap = tl.load(weight + c * WIDTH + (WIDTH - 1 - back), mask=c < channels, other=0).to(tl.float32)
        before = x + (t - back).to(tl.int64)[:, None] * stride + c[None, :]
        y += tl.load(before, mask=inside & (place >= back)[:, None], other=0).to(tl.float32) * tap[None, :]
    return y


@triton.jit  # type: ignore[untyped-decorator]
def conv_silu_forward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    place: tl.tensor,
    y: tl.tensor,
    tokens: int,
    channels: int,
    stride: int,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """y = silu(convolution) [tokens, channels]; x has ``stride`` between tokens."""
    t, c = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (t < tokens)[:, None] & (c < channels)[None, :]
    at = tl.load(place + t, mask=t < tokens, other=0)
    value = _convolved(x, weight, bias, t, at, c, inside, channels, stride, WIDTH)
    tl.store(y + t.to(tl.int64)[:, None] * channels + c[None, :], value / (1 + tl.exp(-value)), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def conv_silu_backward(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    place: tl.tensor,
    dy: tl.tensor,
    dx: tl.tensor,
    d_weight: tl.tensor,
    d_bias: tl.tensor,
    tokens: int,
    channels: int,
    stride: int,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """dx and dy [tokens, channels]; d_weight [parts, channels, WIDTH] and d_bias [parts, channels] fp32 of a program's
    tokens."""
    part = tl.program_id(0)
    t, c = part * TOKENS + tl.arange(0, TOKENS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column = c < channels
    sums = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for ahead in tl.static_range(WIDTH):
        then = t + ahead
        inside = (then < tokens)[:, None] & column[None, :]
        at = tl.load(place + then, mask=then < tokens, other=0)
        value = _convolved(x, weight, bias, then, at, c, inside, channels, stride, WIDTH)
        s = 1 / (1 + tl.exp(-value))
        above = tl.load(dy + then.to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0).to(tl.float32)
        grad = above * s * (1 + value * (1 - s))
        tap = tl.load(weight + c * WIDTH + (WIDTH - 1 - ahead), mask=column, other=0).to(tl.float32)
        sums += tl.where((at >= ahead)[:, None], grad * tap[None, :], 0)
        if ahead == 0:
            tl.store(d_bias + part * channels + c, tl.sum(grad, 0), mask=column)
            for back in tl.static_range(WIDTH):
                before = x + (t - back).to(tl.int64)[:, None] * stride + c[None, :]
                factor = tl.load(before, mask=inside & (at >= back)[:, None], other=0).to(tl.float32)
                to = d_weight + (part * channels + c) * WIDTH + (WIDTH - 1 - back)
                tl.store(to, tl.sum(grad * factor, 0), mask=column)
    inside = (t < tokens)[:, None] & column[None, :]
    tl.store(dx + t.to(tl.int64)[:, None] * channels + c[None, :], sums, mask=inside)


class _ConvSilu(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, place: Tensor) -> Tensor:
        tokens, channels = x.shape
        ctx.save_for_backward(x, weight, bias, place)
        y = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
        conv_silu_forward[triton.cdiv(tokens, TOKENS), triton.cdiv(channels, COLUMNS)](
            x,
            weight,
            bias,
            place,
            y,
            tokens,
            channels,
            x.stride(0),
            weight.shape[1],
            TOKENS,
            COLUMNS,
            num_warps=WARPS["conv_silu_forward"],
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, bias, place = ctx.saved_tensors
        tokens, channels = x.shape
        parts = triton.cdiv(tokens, TOKENS)
        dx = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
        d_weight, d_bias = (torch.empty(parts, *t.shape, dtype=torch.float32, device=x.device) for t in (weight, bias))
        conv_silu_backward[parts, triton.cdiv(channels, COLUMNS)](
            x,
            weight,
            bias,
            place,
            dy.contiguous(),
            dx,
            d_weight,
            d_bias,
            tokens,
            channels,
            x.stride(0),
            weight.shape[1],
            TOKENS,
            COLUMNS,
            num_warps=WARPS["conv_silu_backward"],
        )
        return dx, d_weight.sum(0).to(weight.dtype), d_bias.sum(0).to(bias.dtype), None


def conv_silu(x: Tensor, weight: Tensor, bias: Tensor, place: Tensor) -> Tensor:
    """silu of a depthwise causal convolution within documents, [T, channels] → the same dtype, rounded once.

    x bf16, fp16 or fp32, its rows at any distance; weight [channels, width], its last column on the token itself; bias
    [channels]; place [T], the token's within its document. Raises ValueError for other shapes or dtypes.
    """
    if x.dtype not in DTYPES:
        raise ValueError(f"x is {x.dtype}, not bf16, fp16 or fp32")
    if x.stride(-1) != 1 or weight.shape[:1] != x.shape[1:] or bias.shape != x.shape[1:] or place.shape != x.shape[:1]:
        shapes = [list(t.shape) for t in (x, weight, bias, place)]
        raise ValueError(f"x, weight, bias and place are {shapes}, x with strides {x.stride()}")
    y: Tensor = _ConvSilu.apply(x, weight.contiguous(), bias.contiguous(), place.contiguous())
    return y


@triton.jit  # type: ignore[untyped-decorator]
def gated_forward(
    y: tl.tensor,
    v: tl.tensor,
    skip: tl.tensor,
    gate: tl.tensor,
    out: tl.tensor,
    tokens: int,
    inner: int,
    stride_v: int,
    stride_gate: int,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """out = (y + skip v) silu(gate) [tokens, inner]; v and gate have strides of their own between tokens."""
    t, c = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside, row = (t < tokens)[:, None] & (c < inner)[None, :], t.to(tl.int64)[:, None]
    d = tl.load(skip + c, mask=c < inner, other=0)[None, :]
    g = tl.load(gate + row * stride_gate + c[None, :], mask=inside, other=0).to(tl.float32)
    v_t = tl.load(v + row * stride_v + c[None, :], mask=inside, other=0).to(tl.float32)
    y_t = tl.load(y + row * inner + c[None, :], mask=inside, other=0).to(tl.float32)
    tl.store(out + row * inner + c[None, :], (y_t + d * v_t) * g / (1 + tl.exp(-g)), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def gated_backward(
    y: tl.tensor,
    v: tl.tensor,
    skip: tl.tensor,
    gate: tl.tensor,
    above: tl.tensor,
    dy: tl.tensor,
    dv: tl.tensor,
    d_skip: tl.tensor,
    d_gate: tl.tensor,
    tokens: int,
    inner: int,
    stride_v: int,
    stride_gate: int,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """dy, dv, d_gate [tokens, inner]; d_skip [parts, inner] fp32 of a program's tokens."""
    part = tl.program_id(0)
    t, c = part * TOKENS + tl.arange(0, TOKENS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside, row = (t < tokens)[:, None] & (c < inner)[None, :], t.to(tl.int64)[:, None]
    d = tl.load(skip + c, mask=c < inner, other=0)[None, :]
    g = tl.load(gate + row * stride_gate + c[None, :], mask=inside, other=0).to(tl.float32)
    v_t = tl.load(v + row * stride_v + c[None, :], mask=inside, other=0).to(tl.float32)
    at = row * inner + c[None, :]
    y_t = tl.load(y + at, mask=inside, other=0).to(tl.float32)
    grad = tl.load(above + at, mask=inside, other=0).to(tl.float32)
    s = 1 / (1 + tl.exp(-g))
    through = grad * g * s
    tl.store(dy + at, through, mask=inside)
    tl.store(dv + at, through * d, mask=inside)
    tl.store(d_gate + at, grad * (y_t + d * v_t) * s * (1 + g * (1 - s)), mask=inside)
    tl.store(d_skip + part * inner + c, tl.sum(through * v_t, 0), mask=c < inner)


class _Gated(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor, skip: Tensor, gate: Tensor) -> Tensor:
        tokens, inner = y.shape
        ctx.save_for_backward(y, v, skip, gate)
        out = torch.empty_like(y)
        gated_forward[triton.cdiv(tokens, TOKENS), triton.cdiv(inner, COLUMNS)](
            y,
            v,
            skip,
            gate,
            out,
            tokens,
            inner,
            v.stride(0),
            gate.stride(0),
            TOKENS,
            COLUMNS,
            num_warps=WARPS["gated_forward"],
        )
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, ...]:
        y, v, skip, gate = ctx.saved_tensors
        tokens, inner = y.shape
        parts = triton.cdiv(tokens, TOKENS)
        dy, dv, d_gate = (torch.empty_like(y) for _ in range(3))
        d_skip = torch.empty(parts, inner, dtype=torch.float32, device=y.device)
        gated_backward[parts, triton.cdiv(inner, COLUMNS)](
            y,
            v,
            skip,
            gate,
            above.contiguous(),
            dy,
            dv,
            d_skip,
            d_gate,
            tokens,
            inner,
            v.stride(0),
            gate.stride(0),
            TOKENS,
            COLUMNS,
            num_warps=WARPS["gated_backward"],
        )
        return dy, dv, d_skip.sum(0), d_gate


def gated(y: Tensor, v: Tensor, skip: Tensor, gate: Tensor) -> Tensor:
    """(y + skip v) silu(gate), [T, inner] in the dtype of y, v and gate, rounded once.

    y, v, gate bf16, fp16 or fp32, rows of v and gate at any distance; skip [inner] fp32. Raises ValueError for others.
    """
    same = y.dtype in DTYPES and {t.dtype for t in (y, v, gate)} == {y.dtype} and y.shape == v.shape == gate.shape
    if not same or skip.shape != y.shape[1:] or skip.dtype != torch.float32 or {v.stride(1), gate.stride(1)} != {1}:
        found = [f"{t.dtype} {list(t.shape)}" for t in (y, v, skip, gate)]
        raise ValueError(f"y, v, skip and gate are {', '.join(found)}")
    out: Tensor = _Gated.apply(y.contiguous(), v, skip.contiguous(), gate)
    return out
