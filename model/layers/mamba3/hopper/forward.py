"""The forward pass: what a row gives, block by block, its state in registers.

Who fills, who waits and who frees. ``=name=>`` is a barrier that the left side arrives at when data is there, and that
the right side waits for; ``<=name=`` one by which the right side gives the place back. In brackets: its places.

    _load, 1 warp                    turn q, turn k, 4 warps each      _multiply, 4 warps        _gate, 4 warps
    raw q and k, x, angles  =filled[2]=>      both
                            <=raw_free[2]=    both, a count of 2
    weights                 =small_ready[2]=> k: v, and v weighted
    decay, grown, last      =small_ready[2]========================>  scales by them
                                     q turned           =q_ready[2]=> its products
                                     k turned, v, v weighted
                                                        =k_ready[2]=> its products
    stores the next ones    <=free[2]=========================================  all products of a block are done
                                     store the next ones      <=free[2]=
    x, z once more          =late_filled[4]============================================>  skip and gate
                            <=late_free[4]=============================================   in registers
                                                                       y        =y_ready=>  adds, gates, sums ranks
                                                                                <=y_free=   in registers

``_multiply`` of the program that has a row's next blocks waits for ``flags``, which ``pipeline.hand_on`` sets.
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
from model.layers.mamba3.scan import weights

STAGES, LATE = 2, 4  # blocks of which something lies in shared memory; of which x and z lie there until the output
REGISTERS = (88, 104, 64, 48)  # of a thread for q, k, gates, loads; one that multiplies has the rest


@gluon.jit  # type: ignore[untyped-decorator]
def _load(
    q_from: gl.tensor,
    k_from: gl.tensor,
    x_from: gl.tensor,
    z_from: gl.tensor,
    angles_from: gl.tensor,
    a: gl.tensor,
    own: gl.tensor,
    later: gl.tensor,
    raw_q: gl.tensor,
    raw_k: gl.tensor,
    x_s: gl.tensor,
    angle_s: gl.tensor,
    late_x: gl.tensor,
    late_z: gl.tensor,
    decay_s: gl.tensor,
    grown_s: gl.tensor,
    last_s: gl.tensor,
    weight_s: gl.tensor,
    filled: gl.tensor,
    raw_free: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    late_filled: gl.tensor,
    late_free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    A: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
    LATE: gl.constexpr,
) -> None:
    """One warp: copies, and the decays of a block. Its own loads are three blocks ahead."""
    BLOCKS: gl.constexpr = S // T
    made: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [1, 1], [1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    of_state: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    of_row: gl.constexpr = gl.SliceLayout(1, made)
    of_column: gl.constexpr = gl.SliceLayout(0, made)
    to_at, from_at = gl.arange(0, T, of_row)[:, None], gl.arange(0, T, of_column)[None, :]
    step = gl.arange(0, T, flat)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        token, heads = line * S + start * T, (line * H + head) * S + start * T
        group = head // (H // G) * N
        a_p, own_p, later_p = a + heads + step, own + heads + step, later + heads + step
        soon, then = gl.minimum(1, count - 1) * T, gl.minimum(2, count - 1) * T
        a_1, own_1, later_1 = gl.load(a_p), gl.load(own_p), gl.load(later_p)
        a_2, own_2, later_2 = gl.load(a_p + soon), gl.load(own_p + soon), gl.load(later_p + soon)
        a_3, own_3, later_3 = gl.load(a_p + then), gl.load(own_p + then), gl.load(later_p + then)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            a_t, own_t, later_t = a_1, own_1, later_1
            a_1, own_1, later_1, a_2, own_2, later_2 = a_2, own_2, later_2, a_3, own_3, later_3
            then = gl.minimum(block + 3, count - 1) * T
            a_3, own_3, later_3 = gl.load(a_p + then), gl.load(own_p + then), gl.load(later_p + then)
            mbarrier.wait(raw_free.index(place), phase ^ 1)
            bar = filled.index(place)
            BYTES: gl.constexpr = x_from.block_type.nbytes + angles_from.block_type.nbytes
            mbarrier.expect(bar, BYTES + 2 * q_from.block_type.nbytes)
            at = token + block * T
            tma.async_copy_global_to_shared(angles_from, [at, head * A], bar, angle_s.index(place))
            tma.async_copy_global_to_shared(k_from, [at * R, group], bar, raw_k.index(place))
            tma.async_copy_global_to_shared(q_from, [at * R, group], bar, raw_q.index(place))
            tma.async_copy_global_to_shared(x_from, [at, head * P], bar, x_s.index(place))
            late, late_phase = done % LATE, done // LATE % 2
            mbarrier.wait(late_free.index(late), late_phase ^ 1)
            bar = late_filled.index(late)
            mbarrier.expect(bar, 2 * x_from.block_type.nbytes)
            tma.async_copy_global_to_shared(x_from, [at, head * P], bar, late_x.index(late))
            tma.async_copy_global_to_shared(z_from, [at, head * P], bar, late_z.index(late))
            last = gl.sum(gl.where(step == T - 1, a_t, 0.0), axis=0)
            to, own_r = gl.convert_layout(a_t, of_row)[:, None], gl.convert_layout(own_t, of_row)[:, None]
            since, later_c = gl.convert_layout(a_t, of_column)[None, :], gl.convert_layout(later_t, of_column)[None, :]
            decay = gl.where(to_at > from_at, parts.exp(gl.where(to_at > from_at, to - since, 0.0)) * later_c, 0.0)
            decay += gl.where(to_at == from_at, own_r, 0.0)
            grown, weight = parts.exp(a_t), parts.exp(last - a_t) * later_t
            mbarrier.wait(free.index(place), phase ^ 1)
            decay_s.index(place).store(decay)
            grown_s.index(place).store(grown)
            weight_s.index(place).store(weight)
            last_s.index(place).store(gl.full([N], 0.0, gl.float32, of_state) + parts.exp(last))
            gl.thread_barrier()
            mbarrier.arrive(small_ready.index(place), count=1)
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def _multiply(
    q_s: gl.tensor,
    k_s: gl.tensor,
    decay_s: gl.tensor,
    grown_s: gl.tensor,
    last_s: gl.tensor,
    v_s: gl.tensor,
    weighted_s: gl.tensor,
    state_s: gl.tensor,
    y_s: gl.tensor,
    q_ready: gl.tensor,
    k_ready: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    y_ready: gl.tensor,
    y_free: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    program: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """y [T, R, P] fp32 of a block: of the state before it and of its own tokens; then the state after it."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    gl.static_assert(T == 16 and R == 4)
    dtype: gl.constexpr = q_s.dtype
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=square, k_width=2)
    # [T, R, T, R], what a thread has of [M, M]: one number serves all ranks of a token
    fours: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [2, 0, 0, 0], [0, 0, 2, 0], [0, 0, 4, 0], [0, 0, 8, 0]],
        [[0, 0, 0, 2], [0, 0, 1, 0], [0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0]],
        [[4, 0, 0, 0], [8, 0, 0, 0]],
        [],
        [T, R, T, R],
    )
    of_rows: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, fours))
    of_tokens: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, fours))
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        _, _, count, before, after = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        state = pipeline.take_on(passed, flags, program, before, N, P, square)
        for _block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            q_p, k_p = q_s.index(place), k_s.index(place)
            state_s.store(state.to(dtype))
            mbarrier.wait(small_ready.index(place), phase)
            # before the first product: between them ptxas would have one wait for the other
            state *= last_s.index(place).load(gl.SliceLayout(1, square))[:, None]
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.wait(q_ready.index(place), phase)
            mbarrier.wait(k_ready.index(place), phase)
            zero = gl.full([M, P], 0.0, gl.float32, square)
            scores = warpgroup_mma(q_p, k_p.permute((1, 0)), zero, use_acc=False, is_async=True)
            far = warpgroup_mma(q_p, state_s, zero, use_acc=False, is_async=True)
            state = warpgroup_mma(k_p.permute((1, 0)), weighted_s.index(place), state, is_async=True)
            decay = decay_s.index(place).load(of_tokens)[:, None, :, None]
            decay = gl.reshape(decay + gl.full([T, R, T, R], 0.0, gl.float32, fours), [M, M])
            grown = grown_s.index(place).load(gl.SliceLayout(1, of_rows))[:, None]
            grown = gl.reshape(grown + gl.full([T, R], 0.0, gl.float32, of_rows), [M])
            scores = warpgroup_mma_wait(2, deps=(scores,))
            scores = gl.convert_layout((scores * gl.convert_layout(decay, square)).to(dtype), left)
            near = warpgroup_mma(scores, v_s.index(place), zero, use_acc=False, is_async=True)
            near, far, state, scores = warpgroup_mma_wait(0, deps=(near, far, state, scores))
            y = far * gl.convert_layout(grown, gl.SliceLayout(1, square))[:, None] + near
            gl.thread_barrier()
            mbarrier.arrive(free.index(place), count=1)
            mbarrier.wait(y_free, done % 2 ^ 1)
            y_s.store(y)
            gl.thread_barrier()
            mbarrier.arrive(y_ready, count=1)
            done += 1
        if after:
            pipeline.hand_on(state, passed, flags, program, N, P, square)


@gluon.jit  # type: ignore[untyped-decorator]
def _gate(
    up: gl.tensor,
    gate: gl.tensor,
    down: gl.tensor,
    skip: gl.tensor,
    out: gl.tensor,
    y_s: gl.tensor,
    late_x: gl.tensor,
    late_z: gl.tensor,
    y_ready: gl.tensor,
    y_free: gl.tensor,
    late_filled: gl.tensor,
    late_free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    LATE: gl.constexpr,
) -> None:
    """Of y the output: what skips is added, the gate put on, ranks are summed."""
    BLOCKS: gl.constexpr = S // T
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 2], [1, 32], [4, 1], [1, 0])
    tokens: gl.constexpr = gl.SliceLayout(1, cube)
    table_at, out_at = parts.places(R, P, P, gl.SliceLayout(0, cube)), parts.places(T, P, H * P, tokens)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        tables = head * (R * P) + table_at
        gate_h, down_h = gl.load(gate + tables)[None, :, :], gl.load(down + tables)[None, :, :]
        skip_h = gl.load(skip + head) * gl.load(up + tables)[None, :, :]
        out_p = out + (line * S + start * T) * (H * P) + head * P + out_at
        for block in range(count):
            late, late_phase = done % LATE, done // LATE % 2
            mbarrier.wait(late_filled.index(late), late_phase)
            x_t, z_t = late_x.index(late).load(tokens), late_z.index(late).load(tokens)
            gl.thread_barrier()
            mbarrier.arrive(late_free.index(late), count=1)
            gated = parts.widened(z_t)[:, None, :] * gate_h
            mbarrier.wait(y_ready, done % 2)
            y = gl.convert_layout(gl.reshape(y_s.load(read), [T, R, P]), cube)
            gl.thread_barrier()
            mbarrier.arrive(y_free, count=1)
            y += skip_h * parts.widened(x_t)[:, None, :]
            y = y * down_h * gated * parts.sigmoid(gated)
            gl.store(out_p + block * (T * H * P), gl.sum(y, axis=1).to(x_t.dtype))
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_forward(
    q_from: gl.tensor,
    k_from: gl.tensor,
    x_from: gl.tensor,
    z_from: gl.tensor,
    angles_from: gl.tensor,
    q_bias: gl.tensor,
    k_bias: gl.tensor,
    up: gl.tensor,
    gate: gl.tensor,
    down: gl.tensor,
    skip: gl.tensor,
    a: gl.tensor,
    own: gl.tensor,
    later: gl.tensor,
    out: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    per: gl.tensor,
    jobs: gl.tensor,
    rounds: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    A: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
    LATE: gl.constexpr,
    TURN_Q: gl.constexpr,
    TURN_K: gl.constexpr,
    GATE: gl.constexpr,
    LOAD: gl.constexpr,
) -> None:
    """out [B, S, H, P]. Four warps each turn q, turn k and make values, multiply, and make the output; one loads."""
    M: gl.constexpr = T * R
    gl.static_assert(N == 2 * P and N == 4 * A and M == P)
    dtype: gl.constexpr = q_from.dtype
    halves: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, P], gl.bfloat16)
    raw_q = gl.allocate_shared_memory(dtype, [STAGES, M, N], q_from.layout)
    raw_k = gl.allocate_shared_memory(dtype, [STAGES, M, N], q_from.layout)
    q_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], q_from.layout)
    k_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], q_from.layout)
    x_s = gl.allocate_shared_memory(dtype, [STAGES, T, P], x_from.layout)
    angle_s = gl.allocate_shared_memory(gl.float32, [STAGES, T, A], angles_from.layout)
    weight_s = gl.allocate_shared_memory(gl.float32, [STAGES, T], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    grown_s = gl.allocate_shared_memory(gl.float32, [STAGES, T], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    last_s = gl.allocate_shared_memory(gl.float32, [STAGES, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    decay_s = gl.allocate_shared_memory(gl.float32, [STAGES, T, T], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    v_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], halves)
    weighted_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], halves)
    state_s = gl.allocate_shared_memory(dtype, [N, P], halves)
    late_x = gl.allocate_shared_memory(dtype, [LATE, T, P], x_from.layout)
    late_z = gl.allocate_shared_memory(dtype, [LATE, T, P], x_from.layout)
    y_s = gl.allocate_shared_memory(gl.float32, [M, P], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    raw_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    small_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    late_filled = gl.allocate_shared_memory(gl.int64, [LATE, 1], mbarrier.MBarrierLayout())
    late_free = gl.allocate_shared_memory(gl.int64, [LATE, 1], mbarrier.MBarrierLayout())
    y_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    y_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for one in gl.static_range(STAGES):
        mbarrier.init(filled.index(one), count=1)
        mbarrier.init(raw_free.index(one), count=2)
        mbarrier.init(small_ready.index(one), count=1)
        mbarrier.init(q_ready.index(one), count=1)
        mbarrier.init(k_ready.index(one), count=1)
        mbarrier.init(free.index(one), count=1)
    for one in gl.static_range(LATE):
        mbarrier.init(late_filled.index(one), count=1)
        mbarrier.init(late_free.index(one), count=1)
    mbarrier.init(y_ready, count=1)
    mbarrier.init(y_free, count=1)
    fence_async_shared()
    gl.thread_barrier()
    program, first, end, each = pipeline.share(per, jobs, rounds, S // T)
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    q_s,
                    k_s,
                    decay_s,
                    grown_s,
                    last_s,
                    v_s,
                    weighted_s,
                    state_s,
                    y_s,
                    q_ready,
                    k_ready,
                    small_ready,
                    free,
                    y_ready,
                    y_free,
                    passed,
                    flags,
                    program,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    R,
                    N,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                pipeline.turn,
                (
                    q_bias,
                    up,
                    raw_q,
                    angle_s,
                    x_s,
                    q_s,
                    weight_s,
                    v_s,
                    weighted_s,
                    q_from,
                    filled,
                    raw_free,
                    small_ready,
                    q_ready,
                    free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    N,
                    P,
                    A,
                    T,
                    STAGES,
                    False,
                    False,
                ),
            ),
            (
                pipeline.turn,
                (
                    k_bias,
                    up,
                    raw_k,
                    angle_s,
                    x_s,
                    k_s,
                    weight_s,
                    v_s,
                    weighted_s,
                    k_from,
                    filled,
                    raw_free,
                    small_ready,
                    k_ready,
                    free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    N,
                    P,
                    A,
                    T,
                    STAGES,
                    True,
                    False,
                ),
            ),
            (
                _gate,
                (
                    up,
                    gate,
                    down,
                    skip,
                    out,
                    y_s,
                    late_x,
                    late_z,
                    y_ready,
                    y_free,
                    late_filled,
                    late_free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    P,
                    T,
                    LATE,
                ),
            ),
            (
                _load,
                (
                    q_from,
                    k_from,
                    x_from,
                    z_from,
                    angles_from,
                    a,
                    own,
                    later,
                    raw_q,
                    raw_k,
                    x_s,
                    angle_s,
                    late_x,
                    late_z,
                    decay_s,
                    grown_s,
                    last_s,
                    weight_s,
                    filled,
                    raw_free,
                    small_ready,
                    free,
                    late_filled,
                    late_free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    G,
                    R,
                    N,
                    P,
                    A,
                    T,
                    STAGES,
                    LATE,
                ),
            ),
        ],
        [4, 4, 4, 1],
        [TURN_Q, TURN_K, GATE, LOAD],
    )


def run_forward(
    q: Tensor,
    k: Tensor,
    x: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    up: Tensor,
    down: Tensor,
    z: Tensor,
    skip: Tensor,
    gate: Tensor,
    angles: Tensor,
    a: Tensor,
    a_left: None,
    dt: Tensor,
    trap: Tensor,
    segments: None,
    *,
    chunk_size: int,
    rotary_dim_divisor: int,
    dtype: torch.dtype,
    return_state: bool = False,
) -> tuple[Tensor, None, None]:
    """In place of ``mamba_mimo_forward`` (ops/tilelang/mamba3/mamba3_mimo_fwd.py @ ``scan``'s), for rows of one length.

    ``scan.Launches.forward``; arguments as ``scan.mimo_backward`` has them. Returns the output [B, S, H, P]; no last
    state and no last key. Raises ValueError if they are asked for.
    """
    if return_state:
        raise ValueError("mamba3=hopper_rows has no states to go on from\n  fix: --path mamba3=tilelang_rows")
    batch, length, rank, _, width = q.shape
    heads, channels = x.shape[2:]
    own, later = weights(dt, trap)
    out, of_block = torch.empty_like(x), chunk_size * rank
    shares = pipeline.Shares(x, batch * heads, length // chunk_size, (width, channels), False)
    registers = dict(zip(("TURN_Q", "TURN_K", "GATE", "LOAD"), REGISTERS, strict=True))
    mimo_forward[shares.grid](
        parts.tiles(q, of_block, width),
        parts.tiles(k, of_block, width),
        parts.tiles(x, chunk_size, channels),
        parts.tiles(z, chunk_size, channels),
        parts.tiles(angles, chunk_size, angles.shape[-1]),
        q_bias,
        k_bias,
        up,
        gate,
        down,
        skip,
        a,
        own,
        later,
        out,
        *shares.arguments,
        S=length,
        H=heads,
        G=q.shape[3],
        R=rank,
        N=width,
        P=channels,
        A=angles.shape[-1],
        T=chunk_size,
        STAGES=STAGES,
        LATE=LATE,
        **registers,
        num_warps=4,
    )
    return out, None, None
