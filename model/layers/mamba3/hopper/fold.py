"""Sums over a group's heads of gradients of q and k turned, and their angles' gradients, by one kernel.

Copies bring numbers into shared memory some tokens ahead: a program does not wait for memory, and has no registers for
what is under way.

    _fetch, a pair of tokens  =filled[AHEAD]=>  all warps, which read the place twice, token by token
    the place's next pair     <=gl.thread_barrier=  all have read it; only then is it fetched into again
"""

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from model.layers.mamba3.hopper.parts import boxes, turns, widened
from model.layers.mamba3.hopper.still import sum_still
from model.layers.mamba3.scan import Given

AHEAD, AHEAD_STILL = 2, 3  # pairs of tokens in shared memory, of channels that turn and of the others
FEWEST = 8  # heads of a program at least: a tile has 8 rows


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(
    q_from: gl.tensor,
    k_from: gl.tensor,
    angles_from: gl.tensor,
    d_q_from: gl.tensor,
    d_k_from: gl.tensor,
    q_s: gl.tensor,
    k_s: gl.tensor,
    angle_s: gl.tensor,
    d_q_s: gl.tensor,
    d_k_s: gl.tensor,
    filled: gl.tensor,
    place: gl.tensor,
    token: gl.tensor,
    group: gl.tensor,
    EACH: gl.constexpr,
    R: gl.constexpr,
) -> None:
    """Of two tokens all that their sums are made of, in few copies: between two Triton has all threads wait."""
    bar, row, head = filled.index(place), token * R, group * EACH
    WIDE: gl.constexpr = d_q_from.block_type.nbytes + d_k_from.block_type.nbytes
    GIVEN: gl.constexpr = q_from.block_type.nbytes + k_from.block_type.nbytes
    mbarrier.expect(bar, WIDE + GIVEN + angles_from.block_type.nbytes)
    tma.async_copy_global_to_shared(angles_from, [token, head, 0], bar, angle_s.index(place))
    tma.async_copy_global_to_shared(d_q_from, [row, head, 0], bar, d_q_s.index(place))
    tma.async_copy_global_to_shared(q_from, [row, group * 2, 0], bar, q_s.index(place))
    tma.async_copy_global_to_shared(d_k_from, [row, head, 0], bar, d_k_s.index(place))
    tma.async_copy_global_to_shared(k_from, [row, group * 2, 0], bar, k_s.index(place))


@gluon.jit  # type: ignore[untyped-decorator]
def _turned_back(
    pair_s: gl.tensor, at: gl.tensor, cos: gl.tensor, sin: gl.tensor, cube: gl.constexpr
) -> tuple[gl.tensor, gl.tensor]:
    """Low and high half [R, HEADS, A] fp32 of gradients of what is turned, of one of two tokens [2 R, HEADS, 2 A]."""
    R: gl.constexpr = pair_s.shape[0] // 2
    HEADS: gl.constexpr = pair_s.shape[1]
    A: gl.constexpr = pair_s.shape[2] // 2
    wide = pair_s._reinterpret(pair_s.dtype, [2, R, HEADS, 2 * A], pair_s.layout)
    both = widened(wide.index(at).load(cube))
    low, high = gl.split(gl.permute(gl.reshape(both, [R, HEADS, 2, A]), (0, 1, 3, 2)))
    low, high = gl.convert_layout(low, cube), gl.convert_layout(high, cube)
    return cos * low + sin * high, cos * high - sin * low


@gluon.jit  # type: ignore[untyped-decorator]
def _across(
    pair_s: gl.tensor,
    at: gl.tensor,
    bias_low: gl.tensor,
    bias_high: gl.tensor,
    low: gl.tensor,
    high: gl.tensor,
    cube: gl.constexpr,
) -> gl.tensor:
    """The gradient of angles [HEADS, A] by one of q and k of two tokens [2 R, 2, A], of its own gradient."""
    R: gl.constexpr = pair_s.shape[0] // 2
    A: gl.constexpr = pair_s.shape[2]
    halves: gl.constexpr = gl.BlockedLayout([R, 2, 2], [1, 64 // A, A // 2], [1, 4, 1], [2, 1, 0])
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    given = pair_s._reinterpret(pair_s.dtype, [2, R, 2, A], pair_s.layout).index(at).load(halves)
    x_low, x_high = gl.split(gl.permute(widened(given), (0, 2, 1)))
    x_low, x_high = gl.convert_layout(x_low, of_ranks)[:, None, :], gl.convert_layout(x_high, of_ranks)[:, None, :]
    return gl.sum(high * (x_low + bias_low) - low * (x_high + bias_high), axis=0)


@gluon.jit  # type: ignore[untyped-decorator]
def _put_parts(low: gl.tensor, high: gl.tensor, there: gl.tensor, part_s: gl.tensor, ODD: gl.constexpr) -> None:
    """Both halves [R, HEADS, A] to shared memory, a row for each pair of heads, which one thread has and sums."""
    R: gl.constexpr = low.shape[0]
    PAIRS: gl.constexpr = low.shape[1] // 2
    A: gl.constexpr = low.shape[2]
    if ODD:  # a pair has one head of this group, and one of the next
        low, high = gl.where(there, low, 0.0), gl.where(there, high, 0.0)
    low = gl.sum(gl.reshape(low, [R, PAIRS, 2, A]), axis=2)
    high = gl.sum(gl.reshape(high, [R, PAIRS, 2, A]), axis=2)
    part_s.store(gl.reshape(gl.permute(gl.join(low, high), (1, 3, 0, 2)), [PAIRS, 2 * R * A]))


@gluon.jit  # type: ignore[untyped-decorator]
def _put_sum(part_s: gl.tensor, to: gl.tensor, row: gl.tensor, LAST: gl.constexpr, flat: gl.constexpr) -> None:
    parts = gl.where(row < LAST, part_s.load(flat), 0.0)
    gl.store(to, gl.sum(parts, axis=0).to(to.dtype.element_ty))


@gluon.jit  # type: ignore[untyped-decorator]
def _turning(
    q_from: gl.tensor,
    k_from: gl.tensor,
    q_bias: gl.tensor,
    k_bias: gl.tensor,
    angles_from: gl.tensor,
    d_q_from: gl.tensor,
    d_k_from: gl.tensor,
    d_q: gl.tensor,
    d_k: gl.tensor,
    d_q_bias: gl.tensor,
    d_k_bias: gl.tensor,
    d_angles: gl.tensor,
    group: gl.tensor,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    A: gl.constexpr,
    TOKENS: gl.constexpr,
    HEADS: gl.constexpr,
    AHEAD: gl.constexpr,
) -> None:
    """A thread has all ranks and two columns of each half of two heads."""
    EACH: gl.constexpr = H // G
    SUMS: gl.constexpr = 2 * R * A
    LAST: gl.constexpr = (EACH + 1) // 2
    cube: gl.constexpr = gl.BlockedLayout([R, 2, 2], [1, 64 // A, A // 2], [1, 4, 1], [2, 1, 0])
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    flat: gl.constexpr = gl.BlockedLayout([HEADS // 2, 2], [1, 32], [1, 4], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    of_angles: gl.constexpr = gl.NVMMASharedLayout.get_default_for([HEADS, A], gl.float32)
    part_q_s = gl.allocate_shared_memory(gl.float32, [HEADS // 2, SUMS], plain)
    part_k_s = gl.allocate_shared_memory(gl.float32, [HEADS // 2, SUMS], plain)
    d_q_s = gl.allocate_shared_memory(d_q_from.dtype, [AHEAD, 2 * R, HEADS, 2 * A], d_q_from.layout)
    d_k_s = gl.allocate_shared_memory(d_q_from.dtype, [AHEAD, 2 * R, HEADS, 2 * A], d_q_from.layout)
    q_s = gl.allocate_shared_memory(q_from.dtype, [AHEAD, 2 * R, 2, A], q_from.layout)
    k_s = gl.allocate_shared_memory(q_from.dtype, [AHEAD, 2 * R, 2, A], q_from.layout)
    angle_s = gl.allocate_shared_memory(gl.float32, [AHEAD, 2, HEADS, A], angles_from.layout)
    filled = gl.allocate_shared_memory(gl.int64, [AHEAD, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(AHEAD):
        mbarrier.init(filled.index(one), count=1)
    fence_async_shared()
    gl.thread_barrier()
    start = gl.program_id(1) * TOKENS
    for one in gl.static_range(AHEAD):
        _fetch(
            q_from,
            k_from,
            angles_from,
            d_q_from,
            d_k_from,
            q_s,
            k_s,
            angle_s,
            d_q_s,
            d_k_s,
            filled,
            one,
            start + 2 * one,
            group,
            EACH,
            R,
        )
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None]
    c = gl.arange(0, A, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None]
    there, there_a = h < EACH, h_a < EACH
    row = gl.arange(0, HEADS // 2, gl.SliceLayout(1, flat))[:, None]
    one = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = one // (R * A) * (N // 2) + one // A % R * (G * N) + one % A
    head = group * EACH
    bias_at = head * (R * N) + h * (R * N) + r * N + c
    angle_at = h_a * A + gl.arange(0, A, gl.SliceLayout(0, of_heads))[None, :]
    # in registers: to load them for each token is more than all other loads together
    q_bias_low = gl.load(q_bias + bias_at, mask=there, other=0.0)
    q_bias_high = gl.load(q_bias + N // 2 + bias_at, mask=there, other=0.0)
    k_bias_low = gl.load(k_bias + bias_at, mask=there, other=0.0)
    k_bias_high = gl.load(k_bias + N // 2 + bias_at, mask=there, other=0.0)
    zero = gl.full([R, HEADS, A], 0.0, gl.float32, cube)
    q_low_sum, q_high_sum, k_low_sum, k_high_sum = zero, zero, zero, zero
    for step in range(TOKENS):
        pair, at, token = step // 2, step % 2, (start + step).to(gl.int64)
        place = pair % AHEAD
        given, turning = token * (R * G * N) + group * N, token * (H * A) + head * A
        mbarrier.wait(filled.index(place), pair // AHEAD % 2)
        angles = angle_s.index(place)._reinterpret(gl.float32, [2, HEADS, A], of_angles)
        cos, sin = turns(angles.index(at).load(of_heads))
        cos, sin = cos[None, :, :], sin[None, :, :]
        low, high = _turned_back(d_q_s.index(place), at, cos, sin, cube)
        across = _across(q_s.index(place), at, q_bias_low, q_bias_high, low, high, cube)
        q_low_sum = q_low_sum + low  # not in place: torch, which stands in for Gluon in tests, has one tensor for all
        q_high_sum = q_high_sum + high
        _put_parts(low, high, there, part_q_s, EACH % 2 == 1)
        low, high = _turned_back(d_k_s.index(place), at, cos, sin, cube)
        across += _across(k_s.index(place), at, k_bias_low, k_bias_high, low, high, cube)
        k_low_sum = k_low_sum + low
        k_high_sum = k_high_sum + high
        _put_parts(low, high, there, part_k_s, EACH % 2 == 1)
        gl.thread_barrier()  # all have waited for this place's phase and read it, and all parts are there
        if (at == 1) & (pair + AHEAD < TOKENS // 2):
            _fetch(
                q_from,
                k_from,
                angles_from,
                d_q_from,
                d_k_from,
                q_s,
                k_s,
                angle_s,
                d_q_s,
                d_k_s,
                filled,
                place,
                start + 2 * (pair + AHEAD),
                group,
                EACH,
                R,
            )
        gl.store(d_angles + turning + angle_at, across, mask=there_a)  # late: the copies' fence waits for stores
        _put_sum(part_q_s, d_q + given + sum_at, row, LAST, flat)
        _put_sum(part_k_s, d_k + given + sum_at, row, LAST, flat)
    part = gl.program_id(1) * (H * R * N) + bias_at
    gl.store(d_q_bias + part, q_low_sum, mask=there)
    gl.store(d_q_bias + N // 2 + part, q_high_sum, mask=there)
    gl.store(d_k_bias + part, k_low_sum, mask=there)
    gl.store(d_k_bias + N // 2 + part, k_high_sum, mask=there)
    for one in gl.static_range(AHEAD):
        mbarrier.invalidate(filled.index(one))


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_fold(
    q_from: gl.tensor,
    k_from: gl.tensor,
    q_bias: gl.tensor,
    k_bias: gl.tensor,
    angles_from: gl.tensor,
    d_q_from: gl.tensor,
    d_k_from: gl.tensor,
    d_q: gl.tensor,
    d_k: gl.tensor,
    d_q_bias: gl.tensor,
    d_k_bias: gl.tensor,
    d_angles: gl.tensor,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    A: gl.constexpr,
    TOKENS: gl.constexpr,
    HEADS: gl.constexpr,
    AHEAD: gl.constexpr,
    AHEAD_STILL: gl.constexpr,
) -> None:
    """Of a group and TOKENS tokens the channels that turn, or (the second half of programs on axis 0) the others.

    Of 16 heads it has 106 KB of shared memory: two programs run on a multiprocessor at a time, of either kind.
    """
    gl.static_assert(N == 4 * A)
    if gl.program_id(0) < G:
        _turning(
            q_from,
            k_from,
            q_bias,
            k_bias,
            angles_from,
            d_q_from,
            d_k_from,
            d_q,
            d_k,
            d_q_bias,
            d_k_bias,
            d_angles,
            gl.program_id(0),
            H,
            G,
            R,
            N,
            A,
            TOKENS,
            HEADS,
            AHEAD,
        )
    else:
        sum_still(
            d_q_from,
            d_k_from,
            d_q,
            d_k,
            d_q_bias,
            d_k_bias,
            gl.program_id(0) - G,
            H,
            G,
            R,
            N,
            A,
            TOKENS,
            HEADS,
            AHEAD_STILL,
        )


def run_fold(
    of: Given, d_wide: tuple[Tensor, Tensor], d_given: tuple[Tensor, Tensor], d_biases: Tensor, tokens: int
) -> Tensor:
    """``scan.Launches.fold``, for groups of 16 heads at most, as ``paths`` has them: more do not fit the registers."""
    rank, groups, width = of.q.shape[2:]
    heads, turning = of.angles.shape[2:]
    each, d_angles = max(FEWEST, triton.next_power_of_2(heads // groups)), of.angles.new_empty(of.angles.shape)
    given = [boxes(t.view(-1, 2 * groups, width // 2), 2 * rank, 2, turning) for t in (of.q, of.k)]
    grads = [boxes(t.view(-1, heads, width), 2 * rank, each, 2 * turning) for t in d_wide]
    mimo_fold[2 * groups, d_biases.shape[1]](
        *given,
        of.q_bias,
        of.k_bias,
        boxes(of.angles.view(-1, heads, turning), 2, each, turning),
        *grads,
        *d_given,
        *d_biases,
        d_angles,
        H=heads,
        G=groups,
        R=rank,
        N=width,
        A=turning,
        TOKENS=tokens,
        HEADS=each,
        AHEAD=AHEAD,
        AHEAD_STILL=AHEAD_STILL,
        num_warps=4,
    )
    return d_angles
