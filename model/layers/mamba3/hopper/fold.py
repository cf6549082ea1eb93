"""Sums over a group's heads of gradients of q and k turned: the next token's numbers are loaded while one is summed."""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from model.layers.mamba3.hopper.parts import turns

# The fastest on an H200 of those in docs/log.md
COLUMNS = 16  # of each half of q or k that a program sums; of those that do not turn twice as many, if they fit


@gluon.jit  # type: ignore[untyped-decorator]
def _where_there(x: gl.tensor, there: gl.tensor, ALL: gl.constexpr) -> gl.tensor:
    return gl.load(x) if ALL else gl.load(x, mask=there, other=0.0)


@gluon.jit  # type: ignore[untyped-decorator]
def _put_where(x: gl.tensor, value: gl.tensor, there: gl.tensor, ALL: gl.constexpr) -> None:
    if ALL:
        gl.store(x, value)
    else:
        gl.store(x, value, mask=there)


@gluon.jit  # type: ignore[untyped-decorator]
def _both_halves(x: gl.tensor, there: gl.tensor, N: gl.constexpr, ALL: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    return _where_there(x, there, ALL), _where_there(x + N // 2, there, ALL)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_fold(
    x: gl.tensor, bias: gl.tensor, angles: gl.tensor, d_turned: gl.tensor, d_x: gl.tensor, d_bias: gl.tensor,
    d_angle: gl.tensor,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    FIRST: gl.constexpr, COLUMNS: gl.constexpr, HEADS: gl.constexpr,
) -> None:  # fmt: skip
    """COLUMNS from FIRST on, or some of those after them. All turn or, from column A on, none.

    A thread has all ranks, two to four heads and four columns of each half: only heads are summed across threads.
    """
    cube: gl.constexpr = gl.BlockedLayout(
        [R, HEADS * COLUMNS // 128, 4], [1, 128 // COLUMNS, COLUMNS // 4], [1, 1, 1], [2, 1, 0]
    )
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
    group, first = gl.program_id(0) % G, FIRST + gl.program_id(0) // G * COLUMNS
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None] + group * (H // G)
    c = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :] + first
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None] + group * (H // G)
    c_a = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_heads))[None, :] + first
    r_x = gl.arange(0, R, gl.SliceLayout(1, of_ranks))[:, None]
    c_x = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_ranks))[None, :] + first
    there, there_a = h < (group + 1) * (H // G), h_a < (group + 1) * (H // G)
    at, bias_at, angle_at = (r * H + h) * N + c, (h * R + r) * N + c, h_a * A + c_a
    x_at = (r_x * G + group) * N + c_x
    start = gl.program_id(1) * TOKENS
    low_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    high_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    low_next, high_next = _both_halves(d_turned + start.to(gl.int64) * (R * H * N) + at, there, N, ALL)
    for step in range(TOKENS):
        token = start + step
        low, high = low_next.to(gl.float32), high_next.to(gl.float32)
        then = start + gl.minimum(step + 1, TOKENS - 1)
        low_next, high_next = _both_halves(d_turned + then.to(gl.int64) * (R * H * N) + at, there, N, ALL)
        place = token * (R * G * N) + x_at
        if FIRST < A:
            angle = token * (H * A) + angle_at
            cos, sin = turns(_where_there(angles + angle, there_a, ALL))
            cos, sin = cos[None, :, :], sin[None, :, :]
            low, high = cos * low + sin * high, cos * high - sin * low
            x_low, x_high = gl.load(x + place).to(gl.float32), gl.load(x + place + N // 2).to(gl.float32)
            bias_low, bias_high = _both_halves(bias + bias_at, there, N, ALL)
            crossed = high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high)
            _put_where(d_angle + angle, gl.sum(crossed, axis=0), there_a, ALL)
        low_sum += low
        high_sum += high
        gl.store(d_x + place, gl.sum(low, axis=1).to(d_x.dtype.element_ty))
        gl.store(d_x + place + N // 2, gl.sum(high, axis=1).to(d_x.dtype.element_ty))
    part = d_bias + gl.program_id(1) * (H * R * N) + bias_at
    _put_where(part, low_sum, there, ALL)
    _put_where(part + N // 2, high_sum, there, ALL)


def run_fold(
    given: Tensor, bias: Tensor, angles: Tensor, grad: Tensor, d_given: Tensor, d_bias: Tensor, d_angles: Tensor,
    tokens: int,
) -> None:  # fmt: skip
    """``scan.Launches.fold``."""
    rank, groups, width = given.shape[2:]
    heads, turning = angles.shape[2:]
    of_group = triton.next_power_of_2(heads // groups)
    for first, columns in ((0, COLUMNS), (turning, 2 * COLUMNS if of_group == heads // groups else COLUMNS)):
        mimo_fold[groups * (width // 2 - turning) // columns, len(d_bias)](
            given, bias, angles, grad, d_given, d_bias, d_angles, H=heads, G=groups, R=rank, N=width, A=turning,
            TOKENS=tokens, FIRST=first, COLUMNS=columns, HEADS=of_group, num_warps=1,
        )  # fmt: skip
