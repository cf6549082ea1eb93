"""The main kernel of the backward pass: a block of one head, its products on tensor cores from shared memory."""

from __future__ import annotations

import torch
from torch import Tensor
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from model.layers.mamba3.hopper.parts import exp, matrices, places, programs, tiles
from model.layers.mamba3.scan import Given


@gluon.jit  # type: ignore[untyped-decorator]
def _by_token(x: gl.tensor, T: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """[T]: sums of x [T EACH]."""
    EACH: gl.constexpr = x.shape[0] // T
    return gl.convert_layout(gl.sum(gl.reshape(x, [T, EACH]), axis=1), layout)


@gluon.jit  # type: ignore[untyped-decorator]
def _values(x: gl.tensor, up: gl.tensor, dtype: gl.constexpr) -> gl.tensor:
    """v [T, R, P] of x [T, P] and ``up`` [R, P] fp32."""
    return (x.to(gl.float32)[:, None, :] * up[None, :, :]).to(dtype)


@gluon.jit  # type: ignore[untyped-decorator]
def _place_of(job: gl.tensor, S: gl.constexpr, H: gl.constexpr, T: gl.constexpr) -> tuple[gl.tensor, ...]:
    """Head, block and line of a job: neighbouring heads' blocks after each other."""
    BLOCKS: gl.constexpr = S // T
    return job % H, job // H % BLOCKS, job // (H * BLOCKS)


@gluon.jit  # type: ignore[untyped-decorator]
def _ask_states(
    job: gl.tensor, q_from: gl.tensor, x_from: gl.tensor, dy_from: gl.tensor, states_from: gl.tensor,
    slopes_from: gl.tensor, state_s: gl.tensor, slope_s: gl.tensor, x_s: gl.tensor, beside_s: gl.tensor,
    early: gl.tensor, S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    T: gl.constexpr,
) -> None:  # fmt: skip
    """The first of a job's copies, and how many bytes ``early`` waits for in all."""
    M: gl.constexpr = T * R
    head, block, line = _place_of(job, S, H, T)
    first = line * S + block * T
    place = ((line * (S // (2 * T)) + block // 2) * H + head) * N
    WIDE: gl.constexpr = q_from.block_type.nbytes
    NARROW: gl.constexpr = dy_from.block_type.nbytes
    VALUES: gl.constexpr = x_from.block_type.nbytes
    STATES: gl.constexpr = 2 * states_from.block_type.nbytes
    if block % 2 == 1:
        mbarrier.expect(early, WIDE + 2 * VALUES + STATES)
        tma.async_copy_global_to_shared(x_from, [first - T, head * P], early, beside_s)
    else:
        mbarrier.expect(early, WIDE + VALUES + NARROW + STATES)
    tma.async_copy_global_to_shared(x_from, [first, head * P], early, x_s)
    tma.async_copy_global_to_shared(states_from, [place, 0], early, state_s)
    tma.async_copy_global_to_shared(slopes_from, [place, 0], early, slope_s)


@gluon.jit  # type: ignore[untyped-decorator]
def _ask_beside(
    job: gl.tensor, q_from: gl.tensor, k_from: gl.tensor, dy_from: gl.tensor, wide_s: gl.tensor, narrow_s: gl.tensor,
    early: gl.tensor, S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    T: gl.constexpr,
) -> None:  # fmt: skip
    """The rest of what ``early`` waits for: of the pair's other block."""
    M: gl.constexpr = T * R
    head, block, line = _place_of(job, S, H, T)
    first = (line * S + block * T) * R
    if block % 2 == 1:
        tma.async_copy_global_to_shared(k_from, [first - M, head * N], early, wide_s)
    else:
        tma.async_copy_global_to_shared(q_from, [first + M, head * N], early, wide_s)
        tma.async_copy_global_to_shared(dy_from, [first + M, head * P], early, narrow_s)


@gluon.jit  # type: ignore[untyped-decorator]
def _ask_own(
    job: gl.tensor, q_from: gl.tensor, k_from: gl.tensor, q_s: gl.tensor, k_s: gl.tensor, late: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, T: gl.constexpr,
) -> None:  # fmt: skip
    head, block, line = _place_of(job, S, H, T)
    first = (line * S + block * T) * R
    tma.async_copy_global_to_shared(q_from, [first, head * N], late, q_s)
    tma.async_copy_global_to_shared(k_from, [first, head * N], late, k_s)


@gluon.jit  # type: ignore[untyped-decorator]
def _ask_grads(
    job: gl.tensor, q_from: gl.tensor, dy_from: gl.tensor, dy_s: gl.tensor, late: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, P: gl.constexpr, T: gl.constexpr,
) -> None:  # fmt: skip
    head, block, line = _place_of(job, S, H, T)
    mbarrier.expect(late, 2 * q_from.block_type.nbytes + dy_from.block_type.nbytes)
    tma.async_copy_global_to_shared(dy_from, [(line * S + block * T) * R, head * P], late, dy_s)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_backward(
    q_from: gl.tensor, k_from: gl.tensor, x_from: gl.tensor, dy_from: gl.tensor, states_from: gl.tensor,
    slopes_from: gl.tensor, y_to: gl.tensor, dv_to: gl.tensor, dq_to: gl.tensor, dk_to: gl.tensor, up: gl.tensor,
    a: gl.tensor, own: gl.tensor, later: gl.tensor, d_a: gl.tensor, d_own: gl.tensor, d_later: gl.tensor,
    jobs: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr, T: gl.constexpr,
) -> None:  # fmt: skip
    """One block of one head. 111 KB of shared memory: two programs run on a multiprocessor at a time."""
    M: gl.constexpr = T * R
    gl.static_assert(M == P and N == 2 * P)
    dtype: gl.constexpr = q_from.dtype
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])  # [M, M], too
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left_narrow: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=narrow, k_width=2)
    left_wide: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wide, k_width=2)
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    # [M, M / 2, 2], where "narrow" has the numbers: columns 2 n and 2 n + 1, both of one thread, are of one token
    cells: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [8, 0, 0], [0, 4, 0], [0, 8, 0], [0, 16, 0]],
        [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]], [[16, 0, 0], [32, 0, 0]], [], [M, M // 2, 2],
    )  # fmt: skip
    pairs_of: gl.constexpr = gl.SliceLayout(2, cells)
    by_token: gl.constexpr = gl.DistributedLinearLayout([[2]], [[0], [0], [0], [0], [1]], [[4], [8]], [], [T])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    tokens: gl.constexpr = gl.SliceLayout(1, cube)
    wide_s1 = gl.allocate_shared_memory(dtype, [1, M, N], q_from.layout)
    narrow_s1 = gl.allocate_shared_memory(dtype, [1, M, P], dy_from.layout)
    states_s = gl.allocate_shared_memory(dtype, [2, N, P], states_from.layout)
    q_s1 = gl.allocate_shared_memory(dtype, [1, M, N], q_from.layout)
    k_s1 = gl.allocate_shared_memory(dtype, [1, M, N], k_from.layout)
    v_s1 = gl.allocate_shared_memory(dtype, [1, M, P], dy_from.layout)
    x_s1 = gl.allocate_shared_memory(dtype, [1, T, P], x_from.layout)
    beside_s1 = gl.allocate_shared_memory(dtype, [1, T, P], x_from.layout)
    dy_s1 = gl.allocate_shared_memory(dtype, [1, M, P], dy_from.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    early, late = bars.index(0), bars.index(1)
    mbarrier.init(early, count=1)
    mbarrier.init(late, count=1)
    fence_async_shared()
    job = gl.program_id(0)
    nought = 0
    wide_s = wide_s1.index(nought)
    narrow_s = narrow_s1.index(nought)
    q_s = q_s1.index(nought)
    k_s = k_s1.index(nought)
    v_s = v_s1.index(nought)
    x_s = x_s1.index(nought)
    beside_s = beside_s1.index(nought)
    dy_s = dy_s1.index(nought)
    state_s, slope_s = states_s.index(nought), states_s.index(nought + 1)
    _ask_states(
        job, q_from, x_from, dy_from, states_from, slopes_from, state_s, slope_s, x_s, beside_s, early, S, H, R, N, P, T
    )  # fmt: skip
    _ask_beside(job, q_from, k_from, dy_from, wide_s, narrow_s, early, S, H, R, N, P, T)
    _ask_grads(job, q_from, dy_from, dy_s, late, S, H, R, P, T)
    _ask_own(job, q_from, k_from, q_s, k_s, late, S, H, R, N, T)

    row, row_w = gl.arange(0, M, rows) // R, gl.arange(0, M, gl.SliceLayout(1, wide)) // R
    row_c = gl.arange(0, M, gl.SliceLayout(1, pairs_of)) // R
    column = gl.arange(0, M // 2, gl.SliceLayout(0, pairs_of)) // (R // 2)
    step = gl.arange(0, T, by_token)
    step_c = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    phase = 0
    for job in tl.range(gl.program_id(0), jobs, gl.num_programs(0), disable_licm=True):
        nought = job >> 30
        wide_s = wide_s1.index(nought)
        narrow_s = narrow_s1.index(nought)
        q_s = q_s1.index(nought)
        k_s = k_s1.index(nought)
        v_s = v_s1.index(nought)
        x_s = x_s1.index(nought)
        beside_s = beside_s1.index(nought)
        dy_s = dy_s1.index(nought)
        state_s, slope_s = states_s.index(nought), states_s.index(nought + 1)
        head, block, line = _place_of(job, S, H, T)
        odd = block % 2 == 1
        first = (line * S + block * T) * R  # row of q
        heads = (line * H + head) * S + block * T
        beside_heads = heads + gl.where(odd, -T, T)
        after = job + gl.num_programs(0)
        a_m, later_m, later_t = gl.load(a + (heads + row)), gl.load(later + (heads + row)), gl.load(later + (heads + step))
        a_c, own_c = gl.load(a + (heads + row_c)), gl.load(own + (heads + row_c))
        a_n, later_n = gl.load(a + (heads + column)), gl.load(later + (heads + column))
        a_w, later_w = gl.load(a + (heads + row_w)), gl.load(later + (heads + row_w))
        other, beside_later = gl.load(a + (beside_heads + row)), gl.load(later + (beside_heads + step_c))
        other_c = gl.load(a + (beside_heads + step_c))
        up_h = gl.load(up + (head * (R * P) + places(R, P, P, gl.SliceLayout(0, cube))))
        a_last, other_last = gl.load(a + (heads + T - 1)), gl.load(a + (beside_heads + T - 1))

        # the state before, or the gradient of the state after, this block: from the pair's through the other block
        mbarrier.wait(early, phase)
        v_s.store(gl.reshape(_values(x_s.load(tokens), up_h, dtype), [M, P]))
        if odd:
            weight = exp(other_last - other_c) * beside_later
            added = _values(beside_s.load(tokens), up_h, dtype).to(gl.float32) * weight[:, None, None]
            narrow_s.store(gl.reshape(added.to(dtype), [M, P]))
        else:
            narrow_s.store((narrow_s.load(narrow).to(gl.float32) * exp(other)[:, None]).to(dtype))
        mine, theirs = states_s.index(nought + gl.where(odd, 0, 1)), states_s.index(nought + gl.where(odd, 1, 0))
        carried = mine.load(narrow).to(gl.float32) * exp(other_last)
        fence_async_shared()
        made = warpgroup_mma(wide_s.permute((1, 0)), narrow_s, carried, is_async=True)
        carried = warpgroup_mma_wait(0, deps=(made,)).to(dtype)
        mine.store(carried)
        fence_async_shared()  # of what each thread wrote itself: before the barriers of the sum
        across = gl.sum(gl.sum(carried.to(gl.float32) * theirs.load(narrow).to(gl.float32), axis=1), axis=0)
        gl.thread_barrier()
        mbarrier.wait(late, phase)
        phase ^= 1
        zero = gl.full([M, P], 0.0, gl.float32, narrow)
        scores_made = warpgroup_mma(q_s, k_s.permute((1, 0)), zero, use_acc=False, is_async=True)
        pairs_made = warpgroup_mma(dy_s, v_s.permute((1, 0)), zero, use_acc=False, is_async=True)
        scores, pairs = warpgroup_mma_wait(0, deps=(scores_made, pairs_made))
        # both products with states run beside what follows
        y_made = warpgroup_mma(q_s, state_s, zero, use_acc=False, is_async=True)
        dv_made = warpgroup_mma(k_s, slope_s, zero, use_acc=False, is_async=True)

        past, same = row_c[:, None] > column[None, :], row_c[:, None] == column[None, :]
        scores = gl.convert_layout(gl.reshape(scores, [M, M // 2, 2]), cells)
        pairs = gl.convert_layout(gl.reshape(pairs, [M, M // 2, 2]), cells)
        both = gl.sum(scores * pairs, axis=2)
        gl.store(d_own + (heads + step), _by_token(gl.sum(gl.where(same, both, 0.0), axis=1), T, by_token))
        decay = gl.where(past, exp(gl.where(past, a_c[:, None] - a_n[None, :], 0.0)), 0.0)
        both *= decay
        d_a_m = gl.convert_layout(gl.sum(both * later_n[None, :], axis=1), rows)
        d_later_t = _by_token(gl.sum(both, axis=0), T, by_token)
        weight = (decay * later_n[None, :] + gl.where(same, own_c[:, None], 0.0))[:, :, None]
        scores = gl.convert_layout(gl.reshape((scores * weight).to(dtype), [M, M]), narrow)
        pairs = gl.convert_layout(gl.reshape((pairs * weight).to(dtype), [M, M]), narrow)
        y, dv = warpgroup_mma_wait(0, deps=(y_made, dv_made))

        halves = wide_s._reinterpret(dtype, [2, M, P], dy_from.layout)
        scores_s, pairs_s, y_s = narrow_s, halves.index(0), halves.index(1)
        scores_s.store(scores)
        pairs_s.store(pairs)
        fence_async_shared()
        y *= exp(a_m)[:, None]
        d_a_m += gl.sum(y * dy_s.load(narrow).to(gl.float32), axis=1)
        dv *= exp(a_last - a_m)[:, None]
        out_t = _by_token(gl.sum(dv * v_s.load(narrow).to(gl.float32), axis=1), T, by_token)
        dv *= later_m[:, None]
        scores = gl.convert_layout(scores, left_narrow)
        y_made = warpgroup_mma(scores, v_s, y, is_async=True)
        dv_made = warpgroup_mma(scores_s.permute((1, 0)), dy_s, dv, is_async=True)
        d_later_t += out_t
        d_last = across * exp(a_last) + gl.sum(out_t * later_t, axis=0)
        d_a_t = _by_token(d_a_m, T, by_token) - d_later_t * later_t + gl.where(step == T - 1, d_last, 0.0)
        gl.store(d_a + (heads + step), d_a_t)
        gl.store(d_later + (heads + step), d_later_t)
        empty = gl.full([M, N], 0.0, gl.float32, wide)
        dq_made = warpgroup_mma(dy_s, state_s.permute((1, 0)), empty, use_acc=False, is_async=True)
        y, dv, scores = warpgroup_mma_wait(1, deps=(y_made, dv_made, scores))  # scores: read from registers until then
        gl.thread_barrier()  # every warp has waited: nothing reads what is overwritten from here on
        y_s.store(y.to(dtype))
        narrow_s.store(dv.to(dtype))  # its product with what lay here is done
        fence_async_shared()
        gl.thread_barrier()
        tma.async_copy_shared_to_global(y_to, [first, head * P], y_s)
        tma.async_copy_shared_to_global(dv_to, [first, head * P], narrow_s)
        dq = warpgroup_mma_wait(0, deps=(dq_made,))
        dq *= exp(a_w)[:, None]
        pairs = gl.convert_layout(pairs, left_wide)
        dq_made = warpgroup_mma(pairs, k_s, dq, is_async=True)
        dk_made = warpgroup_mma(v_s, slope_s.permute((1, 0)), empty, use_acc=False, is_async=True)
        dq, dk, pairs = warpgroup_mma_wait(0, deps=(dq_made, dk_made, pairs))
        dk *= (exp(a_last - a_w) * later_w)[:, None]
        dk_made = warpgroup_mma(pairs_s.permute((1, 0)), q_s, dk, is_async=True)
        gl.thread_barrier()
        if after < jobs:
            _ask_states(
                after, q_from, x_from, dy_from, states_from, slopes_from, state_s, slope_s, x_s, beside_s, early,
                S, H, R, N, P, T,
            )  # fmt: skip
            _ask_grads(after, q_from, dy_from, dy_s, late, S, H, R, P, T)
        k_s.store(dq.to(dtype))
        fence_async_shared()
        gl.thread_barrier()
        tma.async_copy_shared_to_global(dq_to, [first, head * N], k_s)
        dk = warpgroup_mma_wait(0, deps=(dk_made,))
        gl.thread_barrier()
        tma.store_wait(1)
        if after < jobs:
            _ask_beside(after, q_from, k_from, dy_from, wide_s, narrow_s, early, S, H, R, N, P, T)
        q_s.store(dk.to(dtype))
        fence_async_shared()
        gl.thread_barrier()
        tma.async_copy_shared_to_global(dk_to, [first, head * N], q_s)
        tma.store_wait(0)
        if after < jobs:
            _ask_own(after, q_from, k_from, q_s, k_s, late, S, H, R, N, T)
    mbarrier.invalidate(early)
    mbarrier.invalidate(late)


def run_backward(of: Given, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``scan.Launches.backward``."""
    y, dv, *d_wide = *of.narrow(), *of.wide()
    grads, sizes = [torch.empty_like(of.a) for _ in range(3)], of.sizes()
    of_block = sizes["T"] * sizes["R"]
    q, k, states, slopes, dy = made
    given = [*(tiles(t, of_block, sizes["N"]) for t in (q, k)), tiles(of.x, sizes["T"], sizes["P"])]
    given += [tiles(dy, of_block, sizes["P"]), matrices(states), matrices(slopes)]
    to = [*(tiles(t, of_block, sizes["P"]) for t in (y, dv)), *(tiles(t, of_block, sizes["N"]) for t in d_wide)]
    jobs = len(of.q) * sizes["H"] * (sizes["S"] // of.chunk)
    mimo_backward[(min(2 * programs(of.x.device), jobs),)](
        *given, *to, of.up, of.a, of.own, of.later, *grads, jobs,
        **{name: sizes[name] for name in "SHRNPT"}, num_warps=4,
    )  # fmt: skip
    return y, dv, *d_wide, *grads
