"""The main kernel of the backward pass: a block of one head, its products on tensor cores from shared memory."""

from __future__ import annotations

import torch
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

from model.layers.mamba3.hopper.parts import exp, matrices, places, tiles
from model.layers.mamba3.scan import Given


@gluon.jit  # type: ignore[untyped-decorator]
def _product(a: gl.tensor, b: gl.tensor, total: gl.tensor, use: gl.constexpr) -> gl.tensor:
    return warpgroup_mma_wait(0, deps=(warpgroup_mma(a, b, total, use_acc=use, is_async=True),))


@gluon.jit  # type: ignore[untyped-decorator]
def _sum_ranks(x: gl.tensor, T: gl.constexpr, R: gl.constexpr, flat: gl.constexpr) -> gl.tensor:
    return gl.convert_layout(gl.sum(gl.reshape(x, [T, R]), axis=1), flat)


@gluon.jit  # type: ignore[untyped-decorator]
def still_columns(N: gl.constexpr, A: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """[2 A]: which of the N channels do not turn."""
    column = gl.arange(0, 2 * A, layout)
    return A + column + column // A * (N // 2 - A)


@gluon.jit  # type: ignore[untyped-decorator]
def _still(x: gl.tensor, bias: gl.tensor, M: gl.constexpr, P: gl.constexpr) -> gl.tensor:
    """Channels of q or k [T, R, P] that do not turn, [M, P], of their biases [R, P] fp32."""
    return gl.reshape((x.to(gl.float32) + bias[None, :, :]).to(x.dtype), [M, P])


@gluon.jit  # type: ignore[untyped-decorator]
def _values(x: gl.tensor, up: gl.tensor, dtype: gl.constexpr) -> gl.tensor:
    """v [T, R, P] of x [T, P] and ``up`` [R, P] fp32."""
    return (x.to(gl.float32)[:, None, :] * up[None, :, :]).to(dtype)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_backward(
    q: gl.tensor, k: gl.tensor, q_bias: gl.tensor, k_bias: gl.tensor, q_from: gl.tensor, k_from: gl.tensor,
    x_from: gl.tensor, dy_from: gl.tensor, states_from: gl.tensor, slopes_from: gl.tensor, y_to: gl.tensor,
    dv_to: gl.tensor, dq_to: gl.tensor, dk_to: gl.tensor, up: gl.tensor, a: gl.tensor, own: gl.tensor,
    later: gl.tensor, d_a: gl.tensor, d_own: gl.tensor, d_later: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr,
) -> None:  # fmt: skip
    """One block of one head. 111 KB of shared memory: two programs run on a multiprocessor at a time."""
    M: gl.constexpr = T * R
    gl.static_assert(M == P and N == 2 * P and N == 4 * A)
    dtype: gl.constexpr = q_from.dtype
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])  # [M, M], too
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left_narrow: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=narrow, k_width=2)
    left_wide: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wide, k_width=2)
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    tokens: gl.constexpr = gl.SliceLayout(1, cube)
    thick: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, R, 32 // R], [4, 1, 1], [2, 1, 0])
    head, block, line = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    odd = block % 2 == 1
    first = (line * S + block * T) * R  # row of q
    heads = (line * H + head) * S + block * T
    beside, beside_heads = first + gl.where(odd, -M, M), heads + gl.where(odd, -T, T)
    place = ((line * (S // (2 * T)) + block // 2) * H + head) * N

    wide_s = gl.allocate_shared_memory(dtype, [M, N], dq_to.layout)
    narrow_s = gl.allocate_shared_memory(dtype, [M, P], dy_from.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], states_from.layout)
    slope_s = gl.allocate_shared_memory(dtype, [N, P], slopes_from.layout)
    q_s = gl.allocate_shared_memory(dtype, [M, N], dq_to.layout)
    k_s = gl.allocate_shared_memory(dtype, [M, N], dq_to.layout)
    v_s = gl.allocate_shared_memory(dtype, [M, P], dy_from.layout)
    x_s = gl.allocate_shared_memory(dtype, [T, P], x_from.layout)
    beside_s = gl.allocate_shared_memory(dtype, [T, P], x_from.layout)
    dy_s = gl.allocate_shared_memory(dtype, [M, P], dy_from.layout)
    halves = wide_s._reinterpret(dtype, [2, M, P], y_to.layout)
    q_halves = q_s._reinterpret(dtype, [2, M, P], y_to.layout)
    k_halves = k_s._reinterpret(dtype, [2, M, P], y_to.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    early, late = bars.index(0), bars.index(1)
    mbarrier.init(early, count=1)
    mbarrier.init(late, count=1)
    fence_async_shared()
    TURNED: gl.constexpr = q_from.block_type.nbytes
    NARROW: gl.constexpr = dy_from.block_type.nbytes
    VALUES: gl.constexpr = x_from.block_type.nbytes
    STATES: gl.constexpr = 2 * states_from.block_type.nbytes
    if odd:
        mbarrier.expect(early, TURNED + 2 * VALUES + STATES)
        tma.async_copy_global_to_shared(k_from, [beside, head * P], early, halves.index(0))
        tma.async_copy_global_to_shared(x_from, [beside // R, head * P], early, beside_s)
    else:
        mbarrier.expect(early, TURNED + VALUES + NARROW + STATES)
        tma.async_copy_global_to_shared(q_from, [beside, head * P], early, halves.index(0))
        tma.async_copy_global_to_shared(dy_from, [beside, head * P], early, narrow_s)
    tma.async_copy_global_to_shared(x_from, [first // R, head * P], early, x_s)
    tma.async_copy_global_to_shared(states_from, [place, 0], early, state_s)
    tma.async_copy_global_to_shared(slopes_from, [place, 0], early, slope_s)
    mbarrier.expect(late, 2 * TURNED + NARROW)
    tma.async_copy_global_to_shared(q_from, [first, head * P], late, q_halves.index(0))
    tma.async_copy_global_to_shared(k_from, [first, head * P], late, k_halves.index(0))
    tma.async_copy_global_to_shared(dy_from, [first, head * P], late, dy_s)

    # the channels that do not turn are made while those copies run
    channel = still_columns(N, A, gl.SliceLayout(0, gl.SliceLayout(1, thick)))[None, None, :]
    of_token = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, thick)))[:, None, None] * (R * G * N)
    of_rank = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, thick)))[None, :, None]
    raw_at = head // (H // G) * N + (of_token + of_rank * (G * N) + channel)
    rank = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(0, thick)))[:, None]
    bias_at = head * (R * N) + rank * N + still_columns(N, A, gl.SliceLayout(0, gl.SliceLayout(0, thick)))[None, :]
    own_at = (line * S + block * T).to(gl.int64) * (R * G * N)
    q_still, k_still = gl.load(q + own_at + raw_at), gl.load(k + own_at + raw_at)
    beside_at = own_at + gl.where(odd, -T, T) * (R * G * N)
    beside_still = gl.load(k + beside_at + raw_at) if odd else gl.load(q + beside_at + raw_at)
    q_still_bias, k_still_bias = gl.load(q_bias + bias_at), gl.load(k_bias + bias_at)

    row, column = gl.arange(0, M, rows) // R, gl.arange(0, M, gl.SliceLayout(0, narrow)) // R
    row_w = gl.arange(0, M, gl.SliceLayout(1, wide)) // R
    a_p, later_p = a + heads, later + heads
    a_m, own_m, later_m = gl.load(a_p + row), gl.load(own + heads + row), gl.load(later_p + row)
    a_n, later_n = gl.load(a_p + column), gl.load(later_p + column)
    a_w, later_w = gl.load(a_p + row_w), gl.load(later_p + row_w)
    step_c = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    other, beside_later = gl.load(a + beside_heads + row), gl.load(later + beside_heads + step_c)
    other_c = gl.load(a + beside_heads + step_c)
    up_h = gl.load(up + head * (R * P) + places(R, P, P, gl.SliceLayout(0, cube)))
    a_last, other_last = gl.load(a_p + T - 1), gl.load(a + beside_heads + T - 1)

    # the state before, or the gradient of the state after, this block: from the pair's through the other block
    mbarrier.wait(early, 0)
    q_halves.index(1).store(_still(q_still, q_still_bias, M, P))
    k_halves.index(1).store(_still(k_still, k_still_bias, M, P))
    halves.index(1).store(_still(beside_still, k_still_bias if odd else q_still_bias, M, P))
    v_s.store(gl.reshape(_values(x_s.load(tokens), up_h, dtype), [M, P]))
    if odd:
        weight = exp(other_last - other_c) * beside_later
        added = _values(beside_s.load(tokens), up_h, dtype).to(gl.float32) * weight[:, None, None]
        narrow_s.store(gl.reshape(added.to(dtype), [M, P]))
    else:
        narrow_s.store((narrow_s.load(narrow).to(gl.float32) * exp(other)[:, None]).to(dtype))
    state, slope = state_s.load(narrow), slope_s.load(narrow)
    carried = gl.where(odd, state, slope).to(gl.float32) * exp(other_last)
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
    decay = gl.where(past, exp(gl.where(past, a_m[:, None] - a_n[None, :], 0.0)), 0.0)
    both *= decay
    d_a_m = gl.sum(both * later_n[None, :], axis=1)
    d_later_n = gl.sum(both, axis=0)
    weight = decay * later_n[None, :] + gl.where(same, own_m[:, None], 0.0)
    scores, pairs = (scores * weight).to(dtype), (pairs * weight).to(dtype)
    y, dv = warpgroup_mma_wait(0, deps=(y_made, dv_made))

    scores_s, pairs_s, y_s = narrow_s, halves.index(0), halves.index(1)
    scores_s.store(scores)
    pairs_s.store(pairs)
    fence_async_shared()
    y *= exp(a_m)[:, None]
    d_a_m += gl.sum(y * dy_s.load(narrow).to(gl.float32), axis=1)
    dv *= exp(a_last - a_m)[:, None]
    out_m = gl.sum(dv * v_s.load(narrow).to(gl.float32), axis=1)
    dv *= later_m[:, None]
    scores = gl.convert_layout(scores, left_narrow)
    y_made = warpgroup_mma(scores, v_s, y, is_async=True)
    dv_made = warpgroup_mma(scores_s.permute((1, 0)), dy_s, dv, is_async=True)
    d_later_m = gl.convert_layout(d_later_n, rows) + out_m
    d_a_m -= d_later_m * later_m
    d_last = across * exp(a_last) + gl.sum(out_m * later_m, axis=0)
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
    grad *= exp(a_w)[:, None]
    grad = _product(gl.convert_layout(pairs, left_wide), k_s, grad, True)
    gl.thread_barrier()
    k_s.store(grad.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dq_to, [first, head * N], k_s)
    grad = _product(v_s, slope_s.permute((1, 0)), gl.full([M, N], 0.0, gl.float32, wide), False)
    grad *= (exp(a_last - a_w) * later_w)[:, None]
    grad = _product(pairs_s.permute((1, 0)), q_s, grad, True)
    gl.thread_barrier()
    q_s.store(grad.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_to, [first, head * N], q_s)
    tma.store_wait(0)
    mbarrier.invalidate(early)
    mbarrier.invalidate(late)


def run_backward(of: Given, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``scan.Launches.backward``."""
    y, dv, *d_wide = *of.narrow(), *of.wide()
    grads, sizes = [torch.empty_like(of.a) for _ in range(3)], of.sizes()
    of_block = sizes["T"] * sizes["R"]
    q, k, states, slopes, dy = made
    channels = sizes["P"]
    given = [*(tiles(t, of_block, channels) for t in (q, k)), tiles(of.x, sizes["T"], channels)]
    given += [tiles(dy, of_block, channels), matrices(states), matrices(slopes)]
    to = [*(tiles(t, of_block, channels) for t in (y, dv)), *(tiles(t, of_block, sizes["N"]) for t in d_wide)]
    mimo_backward[sizes["H"], sizes["S"] // of.chunk, len(of.q)](
        of.q, of.k, of.q_bias, of.k_bias, *given, *to, of.up, of.a, of.own, of.later, *grads,
        **{name: sizes[name] for name in "SHGRNPAT"}, num_warps=4,
    )  # fmt: skip
    return y, dv, *d_wide, *grads
