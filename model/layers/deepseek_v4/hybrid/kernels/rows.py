"""RMSNorm and rotation of rows in one kernel each way, with the values of ``rms_norm`` and ``rotary.rotate``.

A program takes ROWS rows at once, STEPS times; a weight's gradient is summed in it over its rows and written as a part:

    normed           row -> mean square -> row / root (weight) -> its last TURNED channels turned by the token's angle
    normed_gradients the same from the row again; what comes from above is turned back first

Rows of a token, GROUP of them, have its angles.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.layers.deepseek_v4.hybrid.kernels.attend import LOG2E
from model.layers.deepseek_v4.rotary import Table

TILE = 4096  # numbers that a program reads at once
PROGRAMS = 1056  # that write parts at most, eight for each multiprocessor of an H200


@triton.jit  # type: ignore[untyped-decorator]
def _read(
    x: tl.tensor,
    row: tl.tensor,
    there: tl.tensor,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of rows [R] the channels that are not turned, the even ones of those that are and the odd ones, fp32."""
    c, pair = tl.arange(0, PLAIN)[None, :], 2 * tl.arange(0, HALF)[None, :]
    at = x + row.to(tl.int64)[:, None] * N
    inside, turning = there[:, None] & (c < N - TURNED), there[:, None] & (pair < TURNED)
    plain = tl.load(at + c, mask=inside, other=0.0).to(tl.float32)
    even = tl.load(at + N - TURNED + pair, mask=turning, other=0.0).to(tl.float32)
    odd = tl.load(at + N - TURNED + pair + 1, mask=turning, other=0.0).to(tl.float32)
    return plain, even, odd


@triton.jit  # type: ignore[untyped-decorator]
def _write(
    y: tl.tensor,
    row: tl.tensor,
    there: tl.tensor,
    plain: tl.tensor,
    even: tl.tensor,
    odd: tl.tensor,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    c, pair = tl.arange(0, PLAIN)[None, :], 2 * tl.arange(0, HALF)[None, :]
    at = y + row.to(tl.int64)[:, None] * N
    inside, turning = there[:, None] & (c < N - TURNED), there[:, None] & (pair < TURNED)
    tl.store(at + c, plain, mask=inside)
    tl.store(at + N - TURNED + pair, even, mask=turning)
    tl.store(at + N - TURNED + pair + 1, odd, mask=turning)


@triton.jit  # type: ignore[untyped-decorator]
def _angles(
    cos: tl.tensor, sin: tl.tensor, token: tl.tensor, there: tl.tensor, TURNED: tl.constexpr, HALF: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Of tokens [R], [R, HALF] each."""
    pair = tl.arange(0, HALF)[None, :]
    at = token.to(tl.int64)[:, None] * (TURNED // 2) + pair
    inside = there[:, None] & (2 * pair < TURNED)
    return tl.load(cos + at, mask=inside, other=1.0), tl.load(sin + at, mask=inside, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _over(plain: tl.tensor, even: tl.tensor, odd: tl.tensor, eps: float, N: tl.constexpr) -> tl.tensor:
    """One over the root mean square of each row, [R, 1]."""
    square = tl.sum(plain * plain, 1) + tl.sum(even * even, 1) + tl.sum(odd * odd, 1)
    return tl.rsqrt(square / N + eps)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def normed(
    x: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    y: tl.tensor,
    eps: float,
    count: int,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
    WEIGHED: tl.constexpr,
) -> None:
    """y of STEPS times ROWS rows of x [count, N]; weight [N] fp32; cos, sin [count / GROUP, TURNED / 2] fp32."""
    one = tl.zeros([1], tl.int32)
    if WEIGHED:
        w, w_even, w_odd = _read(weight, one, one == 0, N, TURNED, PLAIN, HALF)
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        there = row < count
        plain, even, odd = _read(x, row, there, N, TURNED, PLAIN, HALF)
        over = _over(plain, even, odd, eps, N)
        plain, even, odd = plain * over, even * over, odd * over
        if WEIGHED:
            plain, even, odd = plain * w, even * w_even, odd * w_odd
        if TURNED:
            even, odd = even.to(x.dtype.element_ty).to(tl.float32), odd.to(x.dtype.element_ty).to(tl.float32)
            c, s = _angles(cos, sin, row // GROUP, there, TURNED, HALF)
            even, odd = even * c - odd * s, odd * c + even * s
        _write(y, row, there, plain, even, odd, N, TURNED, PLAIN, HALF)


@triton.jit  # type: ignore[untyped-decorator]
def normed_gradients(
    x: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    dy: tl.tensor,
    dx: tl.tensor,
    parts: tl.tensor,
    eps: float,
    count: int,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
    WEIGHED: tl.constexpr,
) -> None:
    """dx of those rows, and their part of the weight's gradient, parts [programs, N] fp32."""
    one = tl.zeros([1], tl.int32)
    if WEIGHED:
        w, w_even, w_odd = _read(weight, one, one == 0, N, TURNED, PLAIN, HALF)
        dw, dw_even = tl.zeros([1, PLAIN], tl.float32), tl.zeros([1, HALF], tl.float32)
        dw_odd = dw_even
    for step in range(STEPS):
        row = (tl.program_id(0) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        there = row < count
        plain, even, odd = _read(x, row, there, N, TURNED, PLAIN, HALF)
        g, g_even, g_odd = _read(dy, row, there, N, TURNED, PLAIN, HALF)
        if TURNED:
            c, s = _angles(cos, sin, row // GROUP, there, TURNED, HALF)
            g_even, g_odd = g_even * c + g_odd * s, g_odd * c - g_even * s
        over = _over(plain, even, odd, eps, N)
        plain, even, odd = plain * over, even * over, odd * over
        if WEIGHED:
            dw += tl.sum(g * plain, 0)[None, :]
            dw_even += tl.sum(g_even * even, 0)[None, :]
            dw_odd += tl.sum(g_odd * odd, 0)[None, :]
            g, g_even, g_odd = g * w, g_even * w_even, g_odd * w_odd
        shared = ((tl.sum(g * plain, 1) + tl.sum(g_even * even, 1) + tl.sum(g_odd * odd, 1)) / N)[:, None]
        g, g_even, g_odd = g - plain * shared, g_even - even * shared, g_odd - odd * shared
        _write(dx, row, there, over * g, over * g_even, over * g_odd, N, TURNED, PLAIN, HALF)
    if WEIGHED:
        _write(parts, one + tl.program_id(0), one == 0, dw, dw_even, dw_odd, N, TURNED, PLAIN, HALF)


@triton.jit  # type: ignore[untyped-decorator]
def turned(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    H: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    INVERSE: tl.constexpr,
) -> None:
    """The last TURNED channels of a token's H rows, in place."""
    token = tl.program_id(0)
    one = tl.zeros([1], tl.int32)
    c, s = _angles(cos, sin, one + token, one == 0, TURNED, HALF)
    if INVERSE:
        s = -s
    h, pair = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, HALF)
    inside = (h < H)[:, None] & (2 * pair < TURNED)[None, :]
    at = x + (token.to(tl.int64) * H + h)[:, None] * N + N - TURNED + 2 * pair[None, :]
    even = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, even * c - odd * s, mask=inside)
    tl.store(at + 1, odd * c + even * s, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def deltas(
    o: tl.tensor,
    do: tl.tensor,
    lse: tl.tensor,
    sink: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    above: tl.tensor,
    delta: tl.tensor,
    dsink: tl.tensor,
    N: tl.constexpr,
    TURNED: tl.constexpr,
    H: tl.constexpr,
    HEADS: tl.constexpr,
    PLAIN: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Of a token's heads delta = o do, their part of the sinks' gradient, both [T, H] fp32, and do before the output
    was turned back: o and do are both behind that, which leaves their product as it is."""
    token, h = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    row, there = token * H + h, h < H
    g, g_even, g_odd = _read(do, row, there, N, TURNED, PLAIN, HALF)
    plain, even, odd = _read(o, row, there, N, TURNED, PLAIN, HALF)
    product = tl.sum(g * plain, 1) + tl.sum(g_even * even, 1) + tl.sum(g_odd * odd, 1)
    tl.store(delta + row, product, mask=there)
    of_sink = tl.exp2(tl.load(sink + h, mask=there, other=0.0) * LOG2E - tl.load(lse + row, mask=there, other=0.0))
    tl.store(dsink + row, -of_sink * product, mask=there)
    if TURNED:
        c, s = _angles(cos, sin, token + h * 0, there, TURNED, HALF)
        g_even, g_odd = g_even * c - g_odd * s, g_odd * c + g_even * s
        _write(above, row, there, g, g_even, g_odd, N, TURNED, PLAIN, HALF)


def turn(x: Tensor, table: Table, inverse: bool) -> Tensor:
    """x [T, H, D], contiguous, its last channels rotated by ``table`` in place, or turned back; x itself."""
    (T, H, N), (cos, sin) = x.shape, table
    heads = min(16, triton.next_power_of_2(H))
    half = triton.next_power_of_2(cos.shape[1])
    turned[(T, triton.cdiv(H, heads))](
        x, cos, sin, N=N, TURNED=2 * cos.shape[1], H=H, HEADS=heads, HALF=half, INVERSE=inverse
    )
    return x


class _Normed(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, eps: float, table: Table | None, dtype: torch.dtype | None
    ) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x, dtype=dtype)
        ctx.save_for_backward(x, *(() if weight is None else (weight,)), *(table or ()))
        ctx.weighed, ctx.eps = weight is not None, eps
        grid, sizes = _launch(x, table, ctx.weighed)
        normed[grid](x, _or(weight, x), *(table or (x, x)), y, eps, *sizes[0], **sizes[1], WEIGHED=ctx.weighed)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *held = ctx.saved_tensors
        weight = held.pop(0) if ctx.weighed else None
        table = (held[0], held[1]) if held else None
        grid, sizes = _launch(x, table, ctx.weighed)
        dx = torch.empty_like(x)
        parts = x.new_empty(grid[0] if ctx.weighed else 0, x.shape[-1], dtype=torch.float32)
        given = x, _or(weight, x), *(table or (x, x)), dy.contiguous(), dx, parts, ctx.eps
        normed_gradients[grid](*given, *sizes[0], **sizes[1], WEIGHED=ctx.weighed)
        return dx, parts.sum(0).to(weight.dtype) if weight is not None else None, None, None, None


def widths(N: int, table: Table | None) -> dict[str, int]:
    """How many of N channels ``table`` turns, and the sizes of both parts rounded up."""
    width = 0 if table is None else 2 * table[0].shape[1]
    half = triton.next_power_of_2(max(1, width // 2))
    return {"TURNED": width, "PLAIN": triton.next_power_of_2(max(1, N - width)), "HALF": half}


def _or(weight: Tensor | None, x: Tensor) -> Tensor:
    return x if weight is None else weight


def _launch(x: Tensor, table: Table | None, weighed: bool) -> tuple[tuple[int], tuple[tuple[int], dict[str, int]]]:
    """The grid; the count of rows; the compile-time sizes."""
    N = x.shape[-1]
    count = x.numel() // N
    rows = max(1, TILE // triton.next_power_of_2(N))
    tiles = triton.cdiv(count, rows)
    sizes = {
        "STEPS": triton.next_power_of_2(triton.cdiv(tiles, PROGRAMS)) if weighed else 1,
        "ROWS": rows,
        "GROUP": 1 if table is None else count // len(table[0]),
        "N": N,
        **widths(N, table),
        "num_warps": 8 if N > 2048 else 4,
    }
    return (triton.cdiv(tiles, sizes["STEPS"]),), ((count,), sizes)


def norm_rotate(
    x: Tensor, weight: Tensor | None, eps: float, table: Table | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """``rms_norm`` of x [..., n] by weight [n] fp32, or without one, then its last channels rotated by ``table``, of
    tokens, which are x's first dimension; rounded once each, last to ``dtype`` or x's own."""
    y: Tensor = _Normed.apply(x, weight, eps, table, dtype)
    return y
