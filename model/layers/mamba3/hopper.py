"""Three kernels of ``kernels`` for sm_90, in Gluon (Triton 3.6's ``triton.experimental.gluon``), and their launches.

The arithmetic is that of the kernels of the same names. What a product reads comes by TMA into shared memory and stays
there; programs of several blocks or tokens load the next one's numbers while they compute. Rounded otherwise: gradients
of q and k are scaled by row in fp32 after their product, not in bf16 before; what a state adds up is not rounded before
it is weighted. Sizes are those of ``paths``: rank 4, chunks of 16, state 128, heads of 64 channels, 32 angles; places
are 32-bit, for less than 262,144 tokens of 128 heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from model.layers.mamba3.kernels import EXP, SIGMOID, TURNS
from model.layers.mamba3.scan import Given, Launches, by_blocks, carry

# The fastest on an H200 of those in docs/log.md
PAIRS = 8  # pairs of blocks that a program of mimo_states takes at most
COLUMNS = 16  # of each half of q or k that a program sums; of those that do not turn twice as many, if they fit


@gluon.jit  # type: ignore[untyped-decorator]
def _exp(x: gl.tensor) -> gl.tensor:
    """As in ``kernels``, by the same instructions, and so the next two: Gluon's code calls no function of Triton's."""
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        EXP, "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit  # type: ignore[untyped-decorator]
def _sigmoid(x: gl.tensor) -> gl.tensor:
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        SIGMOID, "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit  # type: ignore[untyped-decorator]
def _turns(x: gl.tensor) -> tuple[gl.tensor, gl.tensor]:
    times = gl.floor(x * 0.15915494309189535 + 0.5)
    x = x - times * 6.28125 - times * 0.0019353071795864769
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        TURNS, "=r,=r,r", [x], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit  # type: ignore[untyped-decorator]
def _block(
    given: gl.tensor, angles: gl.tensor, x: gl.tensor, z: gl.tensor, a: gl.tensor, later: gl.tensor,
    token: gl.tensor, heads: gl.tensor, wide_at: gl.tensor, angle_at: gl.tensor, narrow_at: gl.tensor,
    step_at: gl.tensor, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, FORWARD: gl.constexpr,
) -> tuple[gl.tensor, ...]:  # fmt: skip
    """What a side of mimo_states reads of a block, which begins at a token and its place in ``a``."""
    place = given + token * (R * G * N) + wide_at
    low, high, low_still, high_still = (
        gl.load(place), gl.load(place + N // 2), gl.load(place + A), gl.load(place + N // 2 + A),
    )  # fmt: skip
    angle = gl.load(angles + token * (H * A) + angle_at)
    x_t = gl.load(x + token * (H * P) + narrow_at)
    z_t = x_t if FORWARD else gl.load(z + token * (H * P) + narrow_at)
    a_t, later_t = gl.load(a + heads + step_at), gl.load(later + heads + step_at)
    return low, high, low_still, high_still, angle, x_t, z_t, a_t, later_t


@gluon.jit  # type: ignore[untyped-decorator]
def _half(turned: gl.tensor, still: gl.tensor, M: gl.constexpr, L: gl.constexpr) -> gl.tensor:
    """[M, L] of the columns that turn and those that do not, [T, R, L / 2] each."""
    return gl.reshape(gl.permute(gl.join(turned, still), (0, 1, 3, 2)), [M, L])


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_states(
    given: gl.tensor, bias: gl.tensor, angles: gl.tensor, x: gl.tensor, z: gl.tensor, table: gl.tensor,
    gate: gl.tensor, a: gl.tensor, later: gl.tensor,
    wide_to: gl.tensor, narrow_to: gl.tensor, states_to: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr, FORWARD: gl.constexpr,
) -> None:  # fmt: skip
    """One side, of PAIRS pairs of blocks: FORWARD of k, x and ``up``, else of q, what comes from above and ``down``.

    A thread has one token with all ranks: a rank's share of the tables, and half of the angles, would be read or made
    by several.
    """
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    gl.static_assert(L == P and L == 2 * A)
    dtype: gl.constexpr = wide_to.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 4], [128 // A, 1, A // 4], [4, 1, 1], [2, 1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, R, 8], [256 // P, 1, P // 8], [4, 1, 1], [2, 1, 0])
    tokens_w: gl.constexpr = gl.SliceLayout(1, wide)
    ranks_w: gl.constexpr = gl.SliceLayout(0, wide)
    tokens_n: gl.constexpr = gl.SliceLayout(1, narrow)
    ranks_n: gl.constexpr = gl.SliceLayout(0, narrow)
    head, part, line = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    token, heads = line * S + part * PAIRS * 2 * T, (line * H + head) * S + part * PAIRS * 2 * T
    rank = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, wide)))[None, :, None]
    row = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, wide)))[:, None, None] * R + rank
    column = gl.arange(0, A, gl.SliceLayout(0, gl.SliceLayout(1, wide)))[None, None, :]
    wide_at = row * (G * N) + head // (H // G) * N + column
    angle_at = (gl.arange(0, T, gl.SliceLayout(1, tokens_w))[:, None] * H + head) * A
    angle_at = angle_at + gl.arange(0, A, gl.SliceLayout(0, tokens_w))[None, :]
    narrow_at = (gl.arange(0, T, gl.SliceLayout(1, tokens_n))[:, None] * H + head) * P
    narrow_at = narrow_at + gl.arange(0, P, gl.SliceLayout(0, tokens_n))[None, :]
    step_at = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, narrow)))
    bias_at = (head * R + gl.arange(0, R, gl.SliceLayout(1, ranks_w))[:, None]) * N
    bias_at = bias_at + gl.arange(0, A, gl.SliceLayout(0, ranks_w))[None, :]
    table_at = (head * R + gl.arange(0, R, gl.SliceLayout(1, ranks_n))[:, None]) * P
    table_at = table_at + gl.arange(0, P, gl.SliceLayout(0, ranks_n))[None, :]

    turned_s = gl.allocate_shared_memory(dtype, [2, M, N], wide_to.layout)
    given_s = gl.allocate_shared_memory(dtype, [2, M, P], narrow_to.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [2, M, P], narrow_to.layout)
    sum_s = gl.allocate_shared_memory(dtype, [N, P], states_to.layout)
    low_n, high_n, low_still_n, high_still_n, angle_n, x_n, z_n, a_n, later_n = _block(
        given, angles, x, z, a, later, token, heads, wide_at, angle_at, narrow_at, step_at, H, G, R, N, P, A, FORWARD
    )
    for pair in range(PAIRS):
        here = a + heads + pair * 2 * T
        first_last, last = gl.load(here + T - 1), gl.load(here + 2 * T - 1)
        total = gl.full([N, P], 0.0, gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16]))
        for one in gl.static_range(2):
            low, high, low_still, high_still = low_n, high_n, low_still_n, high_still_n
            angle, x_t, z_t, a_t, later_t = angle_n, x_n, z_n, a_n, later_n
            ahead = gl.minimum(pair * 2 + one + 1, 2 * PAIRS - 1) * T
            low_n, high_n, low_still_n, high_still_n, angle_n, x_n, z_n, a_n, later_n = _block(
                given, angles, x, z, a, later, token + ahead, heads + ahead, wide_at, angle_at, narrow_at, step_at,
                H, G, R, N, P, A, FORWARD,
            )  # fmt: skip
            bias_p = bias + bias_at
            low, high = (
                low.to(gl.float32) + gl.load(bias_p)[None, :, :],
                high.to(gl.float32) + gl.load(bias_p + L)[None, :, :],
            )
            low_still = (low_still.to(gl.float32) + gl.load(bias_p + A)[None, :, :]).to(dtype)
            high_still = (high_still.to(gl.float32) + gl.load(bias_p + L + A)[None, :, :]).to(dtype)
            cos, sin = _turns(angle)
            cos, sin = cos[:, None, :], sin[:, None, :]
            turned_low, turned_high = (cos * low - sin * high).to(dtype), (sin * low + cos * high).to(dtype)
            value = x_t.to(gl.float32)[:, None, :] * gl.load(table + table_at)[None, :, :]
            if FORWARD:
                weight = _exp(last + (first_last if one == 0 else 0.0) - a_t) * later_t
            else:
                gated = z_t.to(gl.float32)[:, None, :] * gl.load(gate + table_at)[None, :, :]
                value = value * gated * _sigmoid(gated)
                weight = _exp(a_t + (0.0 if one == 0 else first_last))
            if one == 1:
                total = warpgroup_mma_wait(0, deps=(total,))
            # what was written two blocks ago from where this one writes; and, before the next one is, the last sum
            tma.store_wait(4 if one == 0 else 3)
            gl.thread_barrier()
            turned = turned_s.index(one)
            halves = turned._reinterpret(dtype, [2, M, L], wide_to.layout)  # rows of 128 bytes, a half after the other
            halves.index(0).store(_half(turned_low, low_still, M, L))
            halves.index(1).store(_half(turned_high, high_still, M, L))
            given_s.index(one).store(gl.reshape(value.to(dtype), [M, P]))
            weighted_s.index(one).store(gl.reshape((value * weight[:, None, None]).to(dtype), [M, P]))
            fence_async_shared()
            total = warpgroup_mma(turned.permute((1, 0)), weighted_s.index(one), total, use_acc=one == 1, is_async=True)
            to = (token + (pair * 2 + one) * T) * R
            tma.async_copy_shared_to_global(wide_to, [to, head * N], halves.index(0))
            tma.async_copy_shared_to_global(wide_to, [to, head * N + L], halves.index(1))
            tma.async_copy_shared_to_global(narrow_to, [to, head * P], given_s.index(one))
        total = warpgroup_mma_wait(0, deps=(total,))
        sum_s.store(total.to(dtype))
        fence_async_shared()
        place = ((line * (S // (2 * T)) + part * PAIRS + pair) * H + head) * N
        tma.async_copy_shared_to_global(states_to, [place, 0], sum_s)
    tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def _product(a: gl.tensor, b: gl.tensor, total: gl.tensor, use: gl.constexpr) -> gl.tensor:
    return warpgroup_mma_wait(0, deps=(warpgroup_mma(a, b, total, use_acc=use, is_async=True),))


@gluon.jit  # type: ignore[untyped-decorator]
def _sum_ranks(x: gl.tensor, T: gl.constexpr, R: gl.constexpr, flat: gl.constexpr) -> gl.tensor:
    return gl.convert_layout(gl.sum(gl.reshape(x, [T, R]), axis=1), flat)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_backward(
    q_from: gl.tensor, k_from: gl.tensor, v_from: gl.tensor, dy_from: gl.tensor, states_from: gl.tensor,
    slopes_from: gl.tensor, y_to: gl.tensor, dv_to: gl.tensor, dq_to: gl.tensor, dk_to: gl.tensor,
    a: gl.tensor, own: gl.tensor, later: gl.tensor, d_a: gl.tensor, d_own: gl.tensor, d_later: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr, T: gl.constexpr,
) -> None:  # fmt: skip
    """One block of one head. 107 KB of shared memory: two programs run on a multiprocessor at a time."""
    M: gl.constexpr = T * R
    gl.static_assert(M == P and N == 2 * P)
    dtype: gl.constexpr = q_from.dtype
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])  # [M, M], too
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left_narrow: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=narrow, k_width=2)
    left_wide: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wide, k_width=2)
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    head, block, line = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    odd = block % 2 == 1
    first = (line * S + block * T) * R  # row of q
    heads = (line * H + head) * S + block * T
    beside, beside_heads = first + gl.where(odd, -M, M), heads + gl.where(odd, -T, T)
    place = ((line * (S // (2 * T)) + block // 2) * H + head) * N

    wide_s = gl.allocate_shared_memory(dtype, [M, N], q_from.layout)
    narrow_s = gl.allocate_shared_memory(dtype, [M, P], v_from.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], states_from.layout)
    slope_s = gl.allocate_shared_memory(dtype, [N, P], slopes_from.layout)
    q_s = gl.allocate_shared_memory(dtype, [M, N], q_from.layout)
    k_s = gl.allocate_shared_memory(dtype, [M, N], k_from.layout)
    v_s = gl.allocate_shared_memory(dtype, [M, P], v_from.layout)
    dy_s = gl.allocate_shared_memory(dtype, [M, P], dy_from.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    early, late = bars.index(0), bars.index(1)
    mbarrier.init(early, count=1)
    mbarrier.init(late, count=1)
    fence_async_shared()
    mbarrier.expect(early, 2 * (M * N + M * P + 2 * N * P))
    if odd:
        tma.async_copy_global_to_shared(k_from, [beside, head * N], early, wide_s)
        tma.async_copy_global_to_shared(v_from, [beside, head * P], early, narrow_s)
    else:
        tma.async_copy_global_to_shared(q_from, [beside, head * N], early, wide_s)
        tma.async_copy_global_to_shared(dy_from, [beside, head * P], early, narrow_s)
    tma.async_copy_global_to_shared(states_from, [place, 0], early, state_s)
    tma.async_copy_global_to_shared(slopes_from, [place, 0], early, slope_s)
    mbarrier.expect(late, 2 * (2 * M * N + 2 * M * P))
    tma.async_copy_global_to_shared(q_from, [first, head * N], late, q_s)
    tma.async_copy_global_to_shared(k_from, [first, head * N], late, k_s)
    tma.async_copy_global_to_shared(v_from, [first, head * P], late, v_s)
    tma.async_copy_global_to_shared(dy_from, [first, head * P], late, dy_s)

    row, column = gl.arange(0, M, rows) // R, gl.arange(0, M, gl.SliceLayout(0, narrow)) // R
    row_w = gl.arange(0, M, gl.SliceLayout(1, wide)) // R
    a_p, later_p = a + heads, later + heads
    a_m, own_m, later_m = gl.load(a_p + row), gl.load(own + heads + row), gl.load(later_p + row)
    a_n, later_n = gl.load(a_p + column), gl.load(later_p + column)
    a_w, later_w = gl.load(a_p + row_w), gl.load(later_p + row_w)
    other, beside_later = gl.load(a + beside_heads + row), gl.load(later + beside_heads + row)
    a_last, other_last = gl.load(a_p + T - 1), gl.load(a + beside_heads + T - 1)

    # the state before, or the gradient of the state after, this block: from the pair's through the other block
    weight = _exp(gl.where(odd, other_last - other, other)) * gl.where(odd, beside_later, 1.0)
    mbarrier.wait(early, 0)
    narrow_s.store((narrow_s.load(narrow).to(gl.float32) * weight[:, None]).to(dtype))
    state, slope = state_s.load(narrow), slope_s.load(narrow)
    carried = gl.where(odd, state, slope).to(gl.float32) * _exp(other_last)
    fence_async_shared()
    carried = _product(wide_s.permute((1, 0)), narrow_s, carried, True).to(dtype)
    if odd:
        state_s.store(carried)
    else:
        slope_s.store(carried)
    fence_async_shared()  # of what each thread wrote itself: before the barriers of the sum
    across = gl.sum(gl.sum(carried.to(gl.float32) * gl.where(odd, slope, state).to(gl.float32), axis=1), axis=0)
    gl.thread_barrier()
    mbarrier.wait(late, 0)
    zero = gl.full([M, P], 0.0, gl.float32, narrow)
    scores_made = warpgroup_mma(q_s, k_s.permute((1, 0)), zero, use_acc=False, is_async=True)
    pairs_made = warpgroup_mma(dy_s, v_s.permute((1, 0)), zero, use_acc=False, is_async=True)
    scores, pairs = warpgroup_mma_wait(0, deps=(scores_made, pairs_made))
    # both products with states run beside what follows
    y_made = warpgroup_mma(q_s, state_s, zero, use_acc=False, is_async=True)
    dv_made = warpgroup_mma(k_s, slope_s, zero, use_acc=False, is_async=True)

    past, same = row[:, None] > column[None, :], row[:, None] == column[None, :]
    both = scores * pairs
    step = gl.arange(0, T, flat)
    gl.store(d_own + heads + step, _sum_ranks(gl.sum(gl.where(same, both, 0.0), axis=1), T, R, flat))
    decay = gl.where(past, _exp(gl.where(past, a_m[:, None] - a_n[None, :], 0.0)), 0.0)
    both *= decay
    d_a_m = gl.sum(both * later_n[None, :], axis=1)
    d_later_n = gl.sum(both, axis=0)
    weight = decay * later_n[None, :] + gl.where(same, own_m[:, None], 0.0)
    scores, pairs = (scores * weight).to(dtype), (pairs * weight).to(dtype)
    y, dv = warpgroup_mma_wait(0, deps=(y_made, dv_made))

    halves = wide_s._reinterpret(dtype, [2, M, P], v_from.layout)
    scores_s, pairs_s, y_s = narrow_s, halves.index(0), halves.index(1)
    scores_s.store(scores)
    pairs_s.store(pairs)
    fence_async_shared()
    y *= _exp(a_m)[:, None]
    d_a_m += gl.sum(y * dy_s.load(narrow).to(gl.float32), axis=1)
    dv *= _exp(a_last - a_m)[:, None]
    out_m = gl.sum(dv * v_s.load(narrow).to(gl.float32), axis=1)
    dv *= later_m[:, None]
    scores = gl.convert_layout(scores, left_narrow)
    y_made = warpgroup_mma(scores, v_s, y, is_async=True)
    dv_made = warpgroup_mma(scores_s.permute((1, 0)), dy_s, dv, is_async=True)
    d_later_m = gl.convert_layout(d_later_n, rows) + out_m
    d_a_m -= d_later_m * later_m
    d_last = across * _exp(a_last) + gl.sum(out_m * later_m, axis=0)
    gl.store(d_a + heads + step, _sum_ranks(d_a_m, T, R, flat) + gl.where(step == T - 1, d_last, 0.0))
    gl.store(d_later + heads + step, _sum_ranks(d_later_m, T, R, flat))
    y, dv, scores = warpgroup_mma_wait(0, deps=(y_made, dv_made, scores))  # scores: read from registers until then

    grad = _product(dy_s, state_s.permute((1, 0)), gl.full([M, N], 0.0, gl.float32, wide), False)
    gl.thread_barrier()  # every warp has waited: nothing reads what is overwritten from here on
    y_s.store(y.to(dtype))
    narrow_s.store(dv.to(dtype))  # its product with what lay here is done
    fence_async_shared()
    tma.async_copy_shared_to_global(y_to, [first, head * P], y_s)
    tma.async_copy_shared_to_global(dv_to, [first, head * P], narrow_s)
    grad *= _exp(a_w)[:, None]
    grad = _product(gl.convert_layout(pairs, left_wide), k_s, grad, True)
    gl.thread_barrier()
    k_s.store(grad.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dq_to, [first, head * N], k_s)
    grad = _product(v_s, slope_s.permute((1, 0)), gl.full([M, N], 0.0, gl.float32, wide), False)
    grad *= (_exp(a_last - a_w) * later_w)[:, None]
    grad = _product(pairs_s.permute((1, 0)), q_s, grad, True)
    gl.thread_barrier()
    q_s.store(grad.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_to, [first, head * N], q_s)
    tma.store_wait(0)
    mbarrier.invalidate(early)
    mbarrier.invalidate(late)


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
            cos, sin = _turns(_where_there(angles + angle, there_a, ALL))
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


def _rows(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x [..., heads, width], ``rows`` rows of ``columns`` of a head's numbers at a time."""
    return _descriptor(x.view(-1, x.shape[-2] * x.shape[-1]), [rows, columns])


def _whole(x: Tensor) -> TensorDescriptor:
    """Of x [..., N, P], one [N, P] at a time."""
    return _descriptor(x.view(-1, x.shape[-1]), list(x.shape[-2:]))


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))


def run_states(of: Given) -> tuple[Tensor, ...]:
    """As ``scan``'s launch of the same name, and so the next two."""
    wide, narrow, (states, slopes), sizes = of.wide(), of.narrow(), of.states(), of.sizes()
    pairs, rows = states.shape[1], sizes["T"] * sizes["R"]
    each = next(n for n in range(PAIRS, 0, -1) if pairs % n == 0)
    for forward, (given, bias, values, table, turned, made, sums) in (
        (True, (of.k, of.k_bias, of.x, of.up, wide[1], narrow[0], states)),
        (False, (of.q, of.q_bias, of.above, of.down, wide[0], narrow[1], slopes)),
    ):
        mimo_states[sizes["H"], pairs // each, len(of.q)](
            given, bias, of.angles, values, of.z, table, of.gate, of.a, of.later,
            _rows(turned, rows, sizes["N"] // 2), _rows(made, rows, sizes["P"]), _whole(sums),
            **sizes, PAIRS=each, FORWARD=forward, num_warps=4,
        )  # fmt: skip
    carry(of, states, slopes)
    return *wide, states, slopes, *narrow


def run_backward(of: Given, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    y, dv, *d_wide = *of.narrow(), *of.wide()
    grads, sizes = [torch.empty_like(of.a) for _ in range(3)], of.sizes()
    rows = sizes["T"] * sizes["R"]
    q, k, states, slopes, *narrow = made
    given = [*(_rows(t, rows, sizes["N"]) for t in (q, k)), *(_rows(t, rows, sizes["P"]) for t in narrow)]
    to = [*(_rows(t, rows, sizes["P"]) for t in (y, dv)), *(_rows(t, rows, sizes["N"]) for t in d_wide)]
    mimo_backward[sizes["H"], sizes["S"] // of.chunk, len(of.q)](
        *given, _whole(states), _whole(slopes), *to, of.a, of.own, of.later, *grads,
        **{name: sizes[name] for name in "SHRNPT"}, num_warps=4,
    )  # fmt: skip
    return y, dv, *d_wide, *grads


def run_fold(
    given: Tensor, bias: Tensor, angles: Tensor, grad: Tensor, d_given: Tensor, d_bias: Tensor, d_angles: Tensor,
    tokens: int,
) -> None:  # fmt: skip
    rank, groups, width = given.shape[2:]
    heads, turning = angles.shape[2:]
    of_group = triton.next_power_of_2(heads // groups)
    for first, columns in ((0, COLUMNS), (turning, 2 * COLUMNS if of_group == heads // groups else COLUMNS)):
        mimo_fold[groups * (width // 2 - turning) // columns, len(d_bias)](
            given, bias, angles, grad, d_given, d_bias, d_angles, H=heads, G=groups, R=rank, N=width, A=turning,
            TOKENS=tokens, FIRST=first, COLUMNS=columns, HEADS=of_group, num_warps=1,
        )  # fmt: skip


LAUNCHES = Launches(run_states, run_backward, run_fold)


def by_blocks_on_hopper(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``scan.by_blocks`` with these three kernels."""
    return by_blocks(kernel, LAUNCHES)
