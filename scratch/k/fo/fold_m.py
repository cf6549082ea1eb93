"""Sums over a group's heads of gradients of q and k turned, and their angles' gradients, by one kernel.

While a token's numbers are summed the next one's are loaded. Heads are summed through shared memory: shuffles between
threads, one of each number for each halving, are what the kernel waited for.
"""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.scan import Given


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
def _both(x: gl.tensor, there: gl.tensor, APART: gl.constexpr, ALL: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    return _where_there(x, there, ALL), _where_there(x + APART, there, ALL)


@gluon.jit  # type: ignore[untyped-decorator]
def _put_both(
    x: gl.tensor, low: gl.tensor, high: gl.tensor, there: gl.tensor, N: gl.constexpr, ALL: gl.constexpr
) -> None:
    _put_where(x, low, there, ALL)
    _put_where(x + N // 2, high, there, ALL)


@gluon.jit  # type: ignore[untyped-decorator]
def _across(
    x: gl.tensor, bias: gl.tensor, low: gl.tensor, high: gl.tensor, there: gl.tensor, N: gl.constexpr,
    ALL: gl.constexpr,
) -> gl.tensor:  # fmt: skip
    """The gradient of angles [HEADS, A] by one of q and k, of its own gradient."""
    x_low, x_high = gl.load(x).to(gl.float32), gl.load(x + N // 2).to(gl.float32)
    bias_low, bias_high = _both(bias, there, N // 2, ALL)
    return gl.sum(high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high), axis=0)


@gluon.jit  # type: ignore[untyped-decorator]
def _put_parts(low: gl.tensor, high: gl.tensor, part_s: gl.tensor) -> None:
    """Both halves [R, HEADS, A] to shared memory, a row for each head."""
    R: gl.constexpr = low.shape[0]
    HEADS: gl.constexpr = low.shape[1]
    A: gl.constexpr = low.shape[2]
    part_s.store(gl.reshape(gl.permute(gl.join(low, high), (1, 3, 0, 2)), [HEADS, 2 * R * A]))


@gluon.jit  # type: ignore[untyped-decorator]
def _put_sum(part_s: gl.tensor, to: gl.tensor, there: gl.tensor | None, flat: gl.constexpr) -> None:
    gl.store(to, gl.sum(part_s.load(flat), axis=0).to(to.dtype.element_ty), mask=there)


@gluon.jit  # type: ignore[untyped-decorator]
def _fold(
    q: gl.tensor, k: gl.tensor, q_bias: gl.tensor, k_bias: gl.tensor, angles: gl.tensor, d_turned_q: gl.tensor,
    d_turned_k: gl.tensor, d_q: gl.tensor, d_k: gl.tensor, d_q_bias: gl.tensor, d_k_bias: gl.tensor,
    d_angles: gl.tensor, part_s: gl.tensor, group: gl.tensor,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    HEADS: gl.constexpr, TURN: gl.constexpr,
) -> None:  # fmt: skip
    """Of one group the channels that turn or those that do not. A thread has all ranks and four columns of each half
    of one head; a token's sums are read when the next token's numbers are on their way.
    """
    LANES: gl.constexpr = 128 // A
    WARPS: gl.constexpr = HEADS // LANES
    SUMS: gl.constexpr = 2 * R * A
    FIRST: gl.constexpr = 0 if TURN else A
    cube: gl.constexpr = gl.BlockedLayout([R, 1, 4], [1, LANES, 32 // LANES], [1, WARPS, 1], [2, 1, 0])
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    flat: gl.constexpr = gl.BlockedLayout([HEADS, SUMS // 32 // WARPS], [1, 32], [1, WARPS], [1, 0])
    ALL: gl.constexpr = HEADS == H // G
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None]
    c = gl.arange(0, A, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None]
    there, there_a = h < H // G, h_a < H // G
    # what is the same for all threads stays out of these, so that each load adds a constant to one address
    at, bias_at = r * (H * N) + h * N + c, h * (R * N) + r * N + c
    angle_at = h_a * A + gl.arange(0, A, gl.SliceLayout(0, of_heads))[None, :]
    r_x = gl.arange(0, R, gl.SliceLayout(1, of_ranks))[:, None]
    given_at = r_x * (G * N) + gl.arange(0, A, gl.SliceLayout(0, of_ranks))[None, :]
    one = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = one // (R * A) * (N // 2) + one // A % R * (G * N) + one % A
    start, head = (gl.program_id(1) * TOKENS).to(gl.int64), group * (H // G)
    of_bias, of_wide, of_given = head * (R * N) + FIRST, head * N + 2 * FIRST, group * N + FIRST
    zero = gl.full([R, HEADS, A], 0.0, gl.float32, cube)
    q_low_sum, q_high_sum, k_low_sum, k_high_sum = zero, zero, zero, zero
    wide = start * (R * H * N) + of_wide
    q_low, q_high = _both(d_turned_q + wide + at, there, A, ALL)
    k_low, k_high = _both(d_turned_k + wide + at, there, A, ALL)
    for step in range(TOKENS):
        token = start + step
        wide = (start + gl.minimum(step + 1, TOKENS - 1)) * (R * H * N) + of_wide
        given, turning = token * (R * G * N) + of_given, token * (H * A) + head * A
        if TURN:
            before = given - R * G * N + sum_at
            _put_sum(part_s.index(0), d_q + before, step > 0, flat)
            _put_sum(part_s.index(1), d_k + before, step > 0, flat)
            cos, sin = turns(_where_there(angles + turning + angle_at, there_a, ALL))
            cos, sin = cos[None, :, :], sin[None, :, :]
        low, high = q_low.to(gl.float32), q_high.to(gl.float32)
        q_low, q_high = _both(d_turned_q + wide + at, there, A, ALL)
        if TURN:
            low, high = cos * low + sin * high, cos * high - sin * low
            across = _across(q + given + given_at, q_bias + of_bias + bias_at, low, high, there, N, ALL)
        q_low_sum = q_low_sum + low  # not in place: torch, which stands in for Gluon in tests, has one tensor for all
        q_high_sum = q_high_sum + high
        _put_parts(low, high, part_s.index(0))
        low, high = k_low.to(gl.float32), k_high.to(gl.float32)
        k_low, k_high = _both(d_turned_k + wide + at, there, A, ALL)
        if TURN:
            low, high = cos * low + sin * high, cos * high - sin * low
            across += _across(k + given + given_at, k_bias + of_bias + bias_at, low, high, there, N, ALL)
            _put_where(d_angles + turning + angle_at, across, there_a, ALL)
        k_low_sum = k_low_sum + low
        k_high_sum = k_high_sum + high
        _put_parts(low, high, part_s.index(1))
        if not TURN:
            _put_sum(part_s.index(0), d_q + given + sum_at, None, flat)
            _put_sum(part_s.index(1), d_k + given + sum_at, None, flat)
    if TURN:
        last = (start + TOKENS - 1) * (R * G * N) + of_given + sum_at
        _put_sum(part_s.index(0), d_q + last, None, flat)
        _put_sum(part_s.index(1), d_k + last, None, flat)
    part = gl.program_id(1) * (H * R * N) + of_bias
    _put_both(d_q_bias + part + bias_at, q_low_sum, q_high_sum, there, N, ALL)
    _put_both(d_k_bias + part + bias_at, k_low_sum, k_high_sum, there, N, ALL)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_fold(
    q: gl.tensor, k: gl.tensor, q_bias: gl.tensor, k_bias: gl.tensor, angles: gl.tensor, d_turned_q: gl.tensor,
    d_turned_k: gl.tensor, d_q: gl.tensor, d_k: gl.tensor, d_q_bias: gl.tensor, d_k_bias: gl.tensor,
    d_angles: gl.tensor,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    HEADS: gl.constexpr,
) -> None:  # fmt: skip
    """Of a group and TOKENS tokens the channels that turn, or (the second half of programs on axis 0) the others."""
    gl.static_assert(N == 4 * A)
    part_s = gl.allocate_shared_memory(
        gl.float32, [2, HEADS, 2 * R * A], gl.SwizzledSharedLayout(16, 1, 8, [1, 0])
    )  # fmt: skip
    if gl.program_id(0) < G:
        _fold(
            q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angles, part_s,
            gl.program_id(0), H, G, R, N, A, TOKENS, HEADS, True,
        )  # fmt: skip
    else:
        _fold(
            q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angles, part_s,
            gl.program_id(0) - G, H, G, R, N, A, TOKENS, HEADS, False,
        )  # fmt: skip


def run_fold(
    of: Given, d_wide: tuple[Tensor, Tensor], d_given: tuple[Tensor, Tensor], d_biases: Tensor, tokens: int
) -> Tensor:
    """``scan.Launches.fold``."""
    rank, groups, width = of.q.shape[2:]
    heads, turning = of.angles.shape[2:]
    each, d_angles = triton.next_power_of_2(heads // groups), of.angles.new_empty(of.angles.shape)
    mimo_fold[2 * groups, d_biases.shape[1]](
        of.q, of.k, of.q_bias, of.k_bias, of.angles, *d_wide, *d_given, *d_biases, d_angles, H=heads, G=groups,
        R=rank, N=width, A=turning, TOKENS=tokens, HEADS=each, num_warps=each * turning // 128,
    )  # fmt: skip
    return d_angles
