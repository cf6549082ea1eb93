"""The main kernel of the backward pass: a row by one program, the gradient of the state in its registers.

Warps that multiply are of two kinds. For the queries: products of queries with keys and with states, y and the gradient
of q. For the keys: products with the gradient of the state after the block, and the gradients of v, k and that state.

Who fills, who waits and who frees, as in ``forward``; places in brackets, ``made`` and what is written have one.

    _load, 1 warp                     _queries, 4 warps              _keys, 4 warps                _sum, 1 warp
    q, k, x, dy        =filled[2]===> both kinds
    state before       =state_filled[2]=> both kinds
    decays, weights    =small_ready[2]=> both kinds
                                      v              =v_ready[2]===>  its products
                       <=state_free[2]=  both, a count of 2: after y's product; after the product with its gradient
                                      scores, pairs, weighted dy
                                                     =made_ready===>  dv, dk, gradient of the state
                                                     <=made_free====  all three products are done
                                      past, own, columns
                                                     =sums_ready[2]================================> both kinds, a
                                                                      out, last, later  =sums_ready=> count of 2
                                      <=sums_free[2]=================================================  in registers
                                                                      <=sums_free[2]=
                       <=free[2]====  both, a count of 2: the last product that reads the block's copies is done
    y, dq, dv, dk go to memory by copies of their own: ``tma.store_wait`` before the place is written again.

Between programs ``flags``, as in ``forward``: here for the gradient of the state, from a row's last block to its first.
"""

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

from model.layers.mamba3.hopper import parts, pipeline
from model.layers.mamba3.scan import Given

STAGES = 2  # blocks of which something lies in shared memory
REGISTERS = (240, 56, 56)  # of a thread for keys, loads, sums; one for queries has the rest


@gluon.jit  # type: ignore[untyped-decorator]
def _load(
    q_from: gl.tensor,
    k_from: gl.tensor,
    x_from: gl.tensor,
    dy_from: gl.tensor,
    states_from: gl.tensor,
    a: gl.tensor,
    own: gl.tensor,
    later: gl.tensor,
    q_s: gl.tensor,
    k_s: gl.tensor,
    x_s: gl.tensor,
    dy_s: gl.tensor,
    states_s: gl.tensor,
    tables_s: gl.tensor,
    small_s: gl.tensor,
    last_s: gl.tensor,
    filled: gl.tensor,
    state_filled: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    state_free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """One warp: copies, and of a block's decays what others read. Its own loads are a block ahead."""
    BLOCKS: gl.constexpr = S // T
    made: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [1, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    of_row: gl.constexpr = gl.SliceLayout(1, made)
    of_column: gl.constexpr = gl.SliceLayout(0, made)
    to_at, from_at = gl.arange(0, T, of_row)[:, None], gl.arange(0, T, of_column)[None, :]
    step = gl.arange(0, T, flat)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        heads = (line * H + head) * S + step
        a_p, own_p, later_p = a + heads, own + heads, later + heads
        at = (BLOCKS - 1 - start) * T
        a_next, own_next, later_next = gl.load(a_p + at), gl.load(own_p + at), gl.load(later_p + at)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            a_t, own_t, later_t = a_next, own_next, later_next
            at = (BLOCKS - 1 - start - gl.minimum(block + 1, count - 1)) * T
            a_next, own_next, later_next = gl.load(a_p + at), gl.load(own_p + at), gl.load(later_p + at)
            number = BLOCKS - 1 - start - block
            token = line * S + number * T
            mbarrier.wait(state_free.index(place), phase ^ 1)
            bar = state_filled.index(place)
            mbarrier.expect(bar, states_from.block_type.nbytes)
            state_at = ((line * BLOCKS + number) * H + head) * N
            tma.async_copy_global_to_shared(states_from, [state_at, 0], bar, states_s.index(place))
            mbarrier.wait(free.index(place), phase ^ 1)
            bar = filled.index(place)
            WIDE: gl.constexpr = q_from.block_type.nbytes + k_from.block_type.nbytes
            mbarrier.expect(bar, WIDE + x_from.block_type.nbytes + dy_from.block_type.nbytes)
            tma.async_copy_global_to_shared(q_from, [token * R, head * N], bar, q_s.index(place))
            tma.async_copy_global_to_shared(k_from, [token * R, head * N], bar, k_s.index(place))
            tma.async_copy_global_to_shared(x_from, [token, head * P], bar, x_s.index(place))
            tma.async_copy_global_to_shared(dy_from, [token * R, head * P], bar, dy_s.index(place))
            last = gl.sum(gl.where(step == T - 1, a_t, 0.0), axis=0)
            to, since = gl.convert_layout(a_t, of_row)[:, None], gl.convert_layout(a_t, of_column)[None, :]
            own_r = gl.convert_layout(own_t, of_row)[:, None]
            later_c = gl.convert_layout(later_t, of_column)[None, :]
            here = to_at + (block >> 30)  # as it is, but compared anew: conditions kept through the loop are spilled
            decay = gl.where(here > from_at, parts.exp(gl.where(here > from_at, to - since, 0.0)), 0.0)
            weight = decay * later_c + gl.where(here == from_at, own_r, 0.0)
            tables_s.index(place * 2).store(gl.permute(gl.reshape(decay, [T, T // 2, 2]), (0, 2, 1)))
            tables_s.index(place * 2 + 1).store(gl.permute(gl.reshape(weight, [T, T // 2, 2]), (0, 2, 1)))
            left = parts.exp(last - a_t)
            small_s.index(place * 4).store(parts.exp(a_t))
            small_s.index(place * 4 + 1).store(left)
            small_s.index(place * 4 + 2).store(left * later_t)
            small_s.index(place * 4 + 3).store(later_t)
            last_s.index(place).store(gl.full([1], 0.0, gl.float32, flat) + parts.exp(last))
            gl.thread_barrier()
            mbarrier.arrive(small_ready.index(place), count=1)
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def _of_rows(small: gl.tensor, R: gl.constexpr, ranks: gl.constexpr, rows: gl.constexpr) -> gl.tensor:
    """[T R] of numbers by token in shared memory."""
    T: gl.constexpr = small.shape[0]
    by_token = small.load(gl.SliceLayout(1, ranks))[:, None]
    return gl.convert_layout(gl.reshape(by_token + gl.full([T, R], 0.0, gl.float32, ranks), [T * R]), rows)


@gluon.jit  # type: ignore[untyped-decorator]
def _table(table: gl.tensor, packed: gl.constexpr, pairs_of: gl.constexpr) -> gl.tensor:
    """[T, 1, T, 1] of a table in shared memory, of which even columns come first."""
    T: gl.constexpr = table.shape[0]
    by_token = gl.reshape(gl.permute(table.load(packed), (0, 2, 1)), [T, T])
    tokens: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, pairs_of))
    return gl.convert_layout(by_token, tokens)[:, None, :, None]


@gluon.jit  # type: ignore[untyped-decorator]
def _of_queries(x: gl.tensor, layout: gl.constexpr) -> gl.tensor:
    """[T]: sums of x [T, R, T, R / 2]; first of what a thread has itself."""
    return gl.convert_layout(gl.sum(gl.sum(gl.sum(x, axis=2), axis=2), axis=1), layout)


@gluon.jit  # type: ignore[untyped-decorator]
def _by_token(x: gl.tensor, T: gl.constexpr, layout: gl.constexpr) -> gl.tensor:
    """[T]: sums of x [T EACH]."""
    EACH: gl.constexpr = x.shape[0] // T
    return gl.convert_layout(gl.sum(gl.reshape(x, [T, EACH]), axis=1), layout)


@gluon.jit  # type: ignore[untyped-decorator]
def _queries(
    up: gl.tensor,
    q_s: gl.tensor,
    k_s: gl.tensor,
    x_s: gl.tensor,
    dy_s: gl.tensor,
    states_s: gl.tensor,
    v_s: gl.tensor,
    scores_s: gl.tensor,
    pairs_s: gl.tensor,
    weighted_s: gl.tensor,
    y_s: gl.tensor,
    dq_s: gl.tensor,
    tables_s: gl.tensor,
    small_s: gl.tensor,
    sums_s: gl.tensor,
    columns_s: gl.tensor,
    y_to: gl.tensor,
    dq_to: gl.tensor,
    filled: gl.tensor,
    state_filled: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    state_free: gl.tensor,
    v_ready: gl.tensor,
    made_ready: gl.tensor,
    made_free: gl.tensor,
    sums_ready: gl.tensor,
    sums_free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Values; scores and pairs, weighted, for the keys, too; y and the gradient of q; sums by token."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    dtype: gl.constexpr = q_s.dtype
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])  # [M, M], too
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left_narrow: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=narrow, k_width=2)
    left_wide: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wide, k_width=2)
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    rows_wide: gl.constexpr = gl.SliceLayout(1, wide)
    # [T, R, T, R / 2, 2], where "narrow" has the numbers: columns 2 n and 2 n + 1, both of one thread, are of one token
    cells: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 0, 0, 1], [2, 0, 0, 0, 0], [0, 0, 2, 0, 0], [0, 0, 4, 0, 0], [0, 0, 8, 0, 0]],
        [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [1, 0, 0, 0, 0]],
        [[4, 0, 0, 0, 0], [8, 0, 0, 0, 0]],
        [],
        [T, R, T, R // 2, 2],
    )
    pairs_of: gl.constexpr = gl.SliceLayout(4, cells)
    tokens: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, pairs_of))
    # what a thread has of a table [T, 2, T / 2], of columns [2, T / 2]
    packed: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [2, 0, 0]],
        [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]],
        [[4, 0, 0], [8, 0, 0]],
        [],
        [T, 2, T // 2],
    )
    ranks: gl.constexpr = gl.DistributedLinearLayout(
        [[2, 0]], [[0, 0], [0, 0], [0, 1], [0, 2], [1, 0]], [[4, 0], [8, 0]], [], [T, R]
    )
    by_token: gl.constexpr = gl.SliceLayout(1, ranks)
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    to, since = gl.arange(0, T, gl.SliceLayout(1, tokens)), gl.arange(0, T, gl.SliceLayout(0, tokens))
    same = (to[:, None] == since[None, :])[:, None, :, None]
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        up_h = gl.load(up + head * (R * P) + parts.places(R, P, P, gl.SliceLayout(0, cube)))[None, :, :]
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            token = line * S + (BLOCKS - 1 - start - block) * T
            q_p, k_p, dy_p = q_s.index(place), k_s.index(place), dy_s.index(place)
            v_p, state_p = v_s.index(place), states_s.index(place)
            mbarrier.wait(filled.index(place), phase)
            mbarrier.wait(state_filled.index(place), phase)
            mbarrier.wait(small_ready.index(place), phase)
            zero = gl.full([M, P], 0.0, gl.float32, narrow)
            scores_made = warpgroup_mma(q_p, k_p.permute((1, 0)), zero, use_acc=False, is_async=True)
            v = parts.widened(x_s.index(place).load(gl.SliceLayout(1, cube)))[:, None, :] * up_h
            v_p.store(gl.reshape(v.to(dtype), [M, P]))
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(v_ready.index(place), count=1)
            pairs_made = warpgroup_mma(dy_p, v_p.permute((1, 0)), zero, use_acc=False, is_async=True)
            y_made = warpgroup_mma(q_p, state_p, zero, use_acc=False, is_async=True)  # beside what follows
            decay = _table(tables_s.index(place * 2), packed, pairs_of)
            weight = _table(tables_s.index(place * 2 + 1), packed, pairs_of)
            scores, pairs = warpgroup_mma_wait(1, deps=(scores_made, pairs_made))
            scores = gl.convert_layout(gl.reshape(scores, [T, R, T, R // 2, 2]), cells)
            pairs = gl.convert_layout(gl.reshape(pairs, [T, R, T, R // 2, 2]), cells)
            both = gl.sum(scores * pairs, axis=4)
            own_t = _of_queries(gl.where(same, both, 0.0), by_token)
            past_t = _of_queries(gl.where(same, 0.0, both * weight), by_token)
            columns = gl.sum(gl.reshape(both * decay, [4, M // 4, T, R // 2]), axis=1)  # of each warp
            columns = gl.sum(columns, axis=2)
            weight = weight[:, :, :, :, None]
            scores = gl.convert_layout(gl.reshape((scores * weight).to(dtype), [M, M]), narrow)
            pairs = gl.convert_layout(gl.reshape((pairs * weight).to(dtype), [M, M]), narrow)
            y = warpgroup_mma_wait(0, deps=(y_made,))
            mbarrier.wait(made_free, done % 2 ^ 1)
            mbarrier.wait(sums_free.index(place), phase ^ 1)
            empty = gl.full([M, N], 0.0, gl.float32, wide)
            dq_made = warpgroup_mma(dy_p, state_p.permute((1, 0)), empty, use_acc=False, is_async=True)
            scores_s.store(scores)
            pairs_s.store(pairs)
            grown = _of_rows(small_s.index(place * 4), R, ranks, rows)
            weighted = parts.widened(dy_p.load(narrow)) * grown[:, None]
            weighted_s.store(weighted.to(dtype))
            past_t += _by_token(gl.sum(y * weighted, axis=1), T, by_token)
            sums_s.index(place * 5).store(past_t)
            sums_s.index(place * 5 + 1).store(own_t)
            columns_s.index(place).store(columns)
            tma.store_wait(0)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(made_ready, count=1)
            mbarrier.arrive(sums_ready.index(place), count=1)
            y *= grown[:, None]
            dq = warpgroup_mma_wait(0, deps=(dq_made,))
            dq *= gl.convert_layout(grown, rows_wide)[:, None]
            scores = gl.convert_layout(scores, left_narrow)
            pairs = gl.convert_layout(pairs, left_wide)
            y_made = warpgroup_mma(scores, v_p, y, is_async=True)
            dq_made = warpgroup_mma(pairs, k_p, dq, is_async=True)
            y, scores = warpgroup_mma_wait(1, deps=(y_made, scores))
            y_s.store(y.to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(state_free.index(place), count=1)
            tma.async_copy_shared_to_global(y_to, [token * R, head * P], y_s)
            dq, pairs = warpgroup_mma_wait(0, deps=(dq_made, pairs))
            dq_s.store(dq.to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(free.index(place), count=1)
            tma.async_copy_shared_to_global(dq_to, [token * R, head * N], dq_s)
            done += 1
    tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def _keys(
    q_s: gl.tensor,
    k_s: gl.tensor,
    dy_s: gl.tensor,
    states_s: gl.tensor,
    v_s: gl.tensor,
    scores_s: gl.tensor,
    pairs_s: gl.tensor,
    weighted_s: gl.tensor,
    slope_s: gl.tensor,
    dv_s: gl.tensor,
    dk_s: gl.tensor,
    small_s: gl.tensor,
    last_s: gl.tensor,
    sums_s: gl.tensor,
    dv_to: gl.tensor,
    dk_to: gl.tensor,
    filled: gl.tensor,
    state_filled: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    state_free: gl.tensor,
    v_ready: gl.tensor,
    made_ready: gl.tensor,
    made_free: gl.tensor,
    sums_ready: gl.tensor,
    sums_free: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    program: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Gradients of v and k, and of the state [N, P] before the block, of that after it; sums by token."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    dtype: gl.constexpr = q_s.dtype
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])  # [N, P], too
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    rows_wide: gl.constexpr = gl.SliceLayout(1, wide)
    ranks: gl.constexpr = gl.DistributedLinearLayout(
        [[2, 0]], [[0, 0], [0, 0], [0, 1], [0, 2], [1, 0]], [[4, 0], [8, 0]], [], [T, R]
    )
    by_token: gl.constexpr = gl.SliceLayout(1, ranks)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, before, after = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        slope = pipeline.take_on(passed, flags, program, before, N, P, narrow)
        slope_s.store(slope.to(dtype))
        fence_async_shared()
        gl.thread_barrier()
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            token = line * S + (BLOCKS - 1 - start - block) * T
            q_p, k_p, dy_p = q_s.index(place), k_s.index(place), dy_s.index(place)
            v_p = v_s.index(place)
            mbarrier.wait(filled.index(place), phase)
            mbarrier.wait(state_filled.index(place), phase)
            mbarrier.wait(small_ready.index(place), phase)
            mbarrier.wait(v_ready.index(place), phase)
            zero = gl.full([M, P], 0.0, gl.float32, narrow)
            empty = gl.full([M, N], 0.0, gl.float32, wide)
            # before the first product: after it ptxas would have this wait for it
            slope *= last_s.index(place).load(rows)[:, None]
            across = gl.sum(slope * parts.widened(states_s.index(place).load(narrow)), axis=1)
            # any T sums of it do, for they are added up
            last_t = gl.convert_layout(gl.sum(gl.sum(gl.reshape(across, [N // M, T, R]), axis=2), axis=0), by_token)
            dv_made = warpgroup_mma(k_p, slope_s, zero, use_acc=False, is_async=True)
            dk_made = warpgroup_mma(v_p, slope_s.permute((1, 0)), empty, use_acc=False, is_async=True)
            left = _of_rows(small_s.index(place * 4 + 1), R, ranks, rows)
            weight = _of_rows(small_s.index(place * 4 + 2), R, ranks, rows)
            dv = warpgroup_mma_wait(1, deps=(dv_made,))
            out_t = _by_token(gl.sum(dv * parts.widened(v_p.load(narrow)), axis=1) * left, T, by_token)
            later = small_s.index(place * 4 + 3).load(by_token)
            last_t += out_t * later
            dk = warpgroup_mma_wait(0, deps=(dk_made,))
            dv *= weight[:, None]
            dk *= gl.convert_layout(weight, rows_wide)[:, None]
            mbarrier.wait(sums_free.index(place), phase ^ 1)
            sums_s.index(place * 5 + 2).store(out_t)
            sums_s.index(place * 5 + 3).store(last_t)
            sums_s.index(place * 5 + 4).store(later)
            tma.store_wait(0)
            gl.thread_barrier()
            mbarrier.arrive(state_free.index(place), count=1)
            mbarrier.arrive(sums_ready.index(place), count=1)
            mbarrier.wait(made_ready, done % 2)
            dv_made = warpgroup_mma(scores_s.permute((1, 0)), dy_p, dv, is_async=True)
            dk_made = warpgroup_mma(pairs_s.permute((1, 0)), q_p, dk, is_async=True)
            slope_made = warpgroup_mma(q_p.permute((1, 0)), weighted_s, slope, is_async=True)
            dv = warpgroup_mma_wait(2, deps=(dv_made,))
            dv_s.store(dv.to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            tma.async_copy_shared_to_global(dv_to, [token * R, head * P], dv_s)
            dk, slope = warpgroup_mma_wait(0, deps=(dk_made, slope_made))
            slope_s.store(slope.to(dtype))
            dk_s.store(dk.to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(made_free, count=1)
            mbarrier.arrive(free.index(place), count=1)
            tma.async_copy_shared_to_global(dk_to, [token * R, head * N], dk_s)
            done += 1
        if after:
            pipeline.hand_on(slope, passed, flags, program, N, P, narrow)
    tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def _sum(
    d_a: gl.tensor,
    d_own: gl.tensor,
    d_later: gl.tensor,
    sums_s: gl.tensor,
    columns_s: gl.tensor,
    sums_ready: gl.tensor,
    sums_free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """One warp: gradients of a, own and later to memory. Those that multiply store by copies alone: fences wait for
    other stores.
    """
    BLOCKS: gl.constexpr = S // T
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    of_warps: gl.constexpr = gl.BlockedLayout([4, 1], [1, 32], [1, 1], [1, 0])
    step = gl.arange(0, T, flat)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        heads = row * S + step
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            at = heads + (BLOCKS - 1 - start - block) * T
            mbarrier.wait(sums_ready.index(place), phase)
            past, own = sums_s.index(place * 5).load(flat), sums_s.index(place * 5 + 1).load(flat)
            out, last = sums_s.index(place * 5 + 2).load(flat), sums_s.index(place * 5 + 3).load(flat)
            later = sums_s.index(place * 5 + 4).load(flat)
            columns = columns_s.index(place).load(of_warps)
            gl.thread_barrier()
            mbarrier.arrive(sums_free.index(place), count=1)
            out += gl.convert_layout(gl.sum(columns, axis=0), flat)
            gl.store(d_own + at, own)
            gl.store(d_later + at, out)
            gl.store(d_a + at, past - out * later + gl.where(step == T - 1, gl.sum(last, axis=0), 0.0))
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_backward(
    q_from: gl.tensor,
    k_from: gl.tensor,
    x_from: gl.tensor,
    dy_from: gl.tensor,
    states_from: gl.tensor,
    y_to: gl.tensor,
    dv_to: gl.tensor,
    dq_to: gl.tensor,
    dk_to: gl.tensor,
    up: gl.tensor,
    a: gl.tensor,
    own: gl.tensor,
    later: gl.tensor,
    d_a: gl.tensor,
    d_own: gl.tensor,
    d_later: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    per: gl.tensor,
    jobs: gl.tensor,
    rounds: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
    KEYS: gl.constexpr,
    SUM: gl.constexpr,
    LOAD: gl.constexpr,
) -> None:
    """Rows from their last block to their first."""
    M: gl.constexpr = T * R
    gl.static_assert(T == 16 and R == 4 and M == P and N == 2 * P)
    dtype: gl.constexpr = q_from.dtype
    q_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], q_from.layout)
    k_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], k_from.layout)
    states_s = gl.allocate_shared_memory(dtype, [STAGES, N, P], states_from.layout)
    dy_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], dy_from.layout)
    v_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], dy_from.layout)
    x_s = gl.allocate_shared_memory(dtype, [STAGES, T, P], x_from.layout)
    scores_s = gl.allocate_shared_memory(dtype, [M, M], dy_from.layout)
    pairs_s = gl.allocate_shared_memory(dtype, [M, M], dy_from.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [M, P], dy_from.layout)
    slope_s = gl.allocate_shared_memory(dtype, [N, P], states_from.layout)
    y_s = gl.allocate_shared_memory(dtype, [M, P], y_to.layout)
    dv_s = gl.allocate_shared_memory(dtype, [M, P], dv_to.layout)
    dq_s = gl.allocate_shared_memory(dtype, [M, N], dq_to.layout)
    dk_s = gl.allocate_shared_memory(dtype, [M, N], dk_to.layout)
    # by pairs of tokens: decay from one to the other, and the weight of one's values in the other's output
    tables_s = gl.allocate_shared_memory(
        gl.float32, [STAGES * 2, T, 2, T // 2], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    # by token: what the state before the block grows by until there, decay from there to the end, without and with the
    # token's weight, that weight
    small_s = gl.allocate_shared_memory(gl.float32, [STAGES * 4, T], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    last_s = gl.allocate_shared_memory(gl.float32, [STAGES, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    sums_s = gl.allocate_shared_memory(gl.float32, [STAGES * 5, T], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    columns_s = gl.allocate_shared_memory(gl.float32, [STAGES, 4, T], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    state_filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    small_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    state_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    sums_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    sums_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    made_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    made_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for one in gl.static_range(STAGES):
        mbarrier.init(filled.index(one), count=1)
        mbarrier.init(state_filled.index(one), count=1)
        mbarrier.init(small_ready.index(one), count=1)
        mbarrier.init(free.index(one), count=2)
        mbarrier.init(state_free.index(one), count=2)
        mbarrier.init(v_ready.index(one), count=1)
        mbarrier.init(sums_ready.index(one), count=2)
        mbarrier.init(sums_free.index(one), count=1)
    mbarrier.init(made_ready, count=1)
    mbarrier.init(made_free, count=1)
    fence_async_shared()
    gl.thread_barrier()
    program, first, end, each = pipeline.share(per, jobs, rounds, S // T)
    gl.warp_specialize(
        [
            (
                _queries,
                (
                    up,
                    q_s,
                    k_s,
                    x_s,
                    dy_s,
                    states_s,
                    v_s,
                    scores_s,
                    pairs_s,
                    weighted_s,
                    y_s,
                    dq_s,
                    tables_s,
                    small_s,
                    sums_s,
                    columns_s,
                    y_to,
                    dq_to,
                    filled,
                    state_filled,
                    small_ready,
                    free,
                    state_free,
                    v_ready,
                    made_ready,
                    made_free,
                    sums_ready,
                    sums_free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    N,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                _keys,
                (
                    q_s,
                    k_s,
                    dy_s,
                    states_s,
                    v_s,
                    scores_s,
                    pairs_s,
                    weighted_s,
                    slope_s,
                    dv_s,
                    dk_s,
                    small_s,
                    last_s,
                    sums_s,
                    dv_to,
                    dk_to,
                    filled,
                    state_filled,
                    small_ready,
                    free,
                    state_free,
                    v_ready,
                    made_ready,
                    made_free,
                    sums_ready,
                    sums_free,
                    passed,
                    flags,
                    program,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    N,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                _load,
                (
                    q_from,
                    k_from,
                    x_from,
                    dy_from,
                    states_from,
                    a,
                    own,
                    later,
                    q_s,
                    k_s,
                    x_s,
                    dy_s,
                    states_s,
                    tables_s,
                    small_s,
                    last_s,
                    filled,
                    state_filled,
                    small_ready,
                    free,
                    state_free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    N,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                _sum,
                (
                    d_a,
                    d_own,
                    d_later,
                    sums_s,
                    columns_s,
                    sums_ready,
                    sums_free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    T,
                    STAGES,
                ),
            ),
        ],
        [4, 1, 1],
        [KEYS, LOAD, SUM],
    )


def run_backward(of: Given, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``scan.Launches.backward``."""
    y, dv, *d_wide = *of.narrow(), *of.wide()
    grads, sizes = [torch.empty_like(of.a) for _ in range(3)], of.sizes()
    of_block = sizes["T"] * sizes["R"]
    q, k, states, dy = made
    given = [*(parts.tiles(t, of_block, sizes["N"]) for t in (q, k)), parts.tiles(of.x, sizes["T"], sizes["P"])]
    given += [parts.tiles(dy, of_block, sizes["P"]), parts.matrices(states)]
    to = [parts.tiles(t, of_block, sizes["P"]) for t in (y, dv)]
    to += [parts.tiles(t, of_block, sizes["N"]) for t in d_wide]
    blocks, state = sizes["S"] // sizes["T"], (sizes["N"], sizes["P"])
    shares = pipeline.Shares(of.x, len(of.q) * sizes["H"], blocks, state, True)
    registers = dict(zip(("KEYS", "LOAD", "SUM"), REGISTERS, strict=True))
    mimo_backward[shares.grid](
        *given,
        *to,
        of.up,
        of.a,
        of.own,
        of.later,
        *grads,
        *shares.arguments,
        **{name: sizes[name] for name in "SHRNPT"},
        STAGES=STAGES,
        **registers,
        num_warps=4,
    )
    return y, dv, *d_wide, *grads
