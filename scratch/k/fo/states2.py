"""States before, and gradients of those after, each pair of blocks: a row by one program, its state in registers."""

from __future__ import annotations

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

from model.layers.mamba3.hopper import parts
import pipeline2 as pipeline
from model.layers.mamba3.scan import Given

STAGES = 3  # blocks of which something lies in shared memory
REGISTERS = (128, 104, 56)  # of a thread that turns, makes values, loads; one that multiplies has the rest


@gluon.jit  # type: ignore[untyped-decorator]
def _load(
    given_from: gl.tensor, x_from: gl.tensor, z_from: gl.tensor, angles_from: gl.tensor, a: gl.tensor, later: gl.tensor,
    raw_s: gl.tensor, x_s: gl.tensor, z_s: gl.tensor, angle_s: gl.tensor, weight_s: gl.tensor, last_s: gl.tensor,
    filled: gl.tensor, raw_free: gl.tensor, small_ready: gl.tensor, free: gl.tensor, first: gl.tensor, end: gl.tensor,
    rounds: gl.tensor, each: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, N: gl.constexpr, P: gl.constexpr, A: gl.constexpr,
    R: gl.constexpr, T: gl.constexpr, STAGES: gl.constexpr, FORWARD: gl.constexpr,
) -> None:  # fmt: skip
    """One warp. Its own loads are three blocks ahead, for nothing hides how long they take."""
    BLOCKS: gl.constexpr = S // T
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    of_state: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    step = gl.arange(0, T, flat)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        a_p, later_p = a + (line * H + head) * S + step, later + (line * H + head) * S + step
        at = pipeline.block_at(start, BLOCKS, FORWARD) * T
        a_1, later_1 = gl.load(a_p + at), gl.load(later_p + at)
        at = pipeline.block_at(start + gl.minimum(1, count - 1), BLOCKS, FORWARD) * T
        a_2, later_2 = gl.load(a_p + at), gl.load(later_p + at)
        at = pipeline.block_at(start + gl.minimum(2, count - 1), BLOCKS, FORWARD) * T
        a_3, later_3 = gl.load(a_p + at), gl.load(later_p + at)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            a_t, later_t = a_1, later_1
            a_1, later_1, a_2, later_2 = a_2, later_2, a_3, later_3
            at = pipeline.block_at(start + gl.minimum(block + 3, count - 1), BLOCKS, FORWARD) * T
            a_3, later_3 = gl.load(a_p + at), gl.load(later_p + at)
            token = line * S + pipeline.block_at(start + block, BLOCKS, FORWARD) * T
            mbarrier.wait(raw_free.index(place), phase ^ 1)
            bar = filled.index(place)
            BYTES: gl.constexpr = given_from.block_type.nbytes + x_from.block_type.nbytes
            GATE: gl.constexpr = 0 if FORWARD else z_from.block_type.nbytes
            mbarrier.expect(bar, BYTES + GATE + angles_from.block_type.nbytes)
            tma.async_copy_global_to_shared(angles_from, [token, head * A], bar, angle_s.index(place))
            tma.async_copy_global_to_shared(given_from, [token * R, head // (H // G) * N], bar, raw_s.index(place))
            tma.async_copy_global_to_shared(x_from, [token, head * P], bar, x_s.index(place))
            if not FORWARD:
                tma.async_copy_global_to_shared(z_from, [token, head * P], bar, z_s.index(place))
            last = gl.sum(gl.where(step == T - 1, a_t, 0.0), axis=0)
            weight = parts.exp(last - a_t) * later_t if FORWARD else parts.exp(a_t)
            mbarrier.wait(free.index(place), phase ^ 1)
            weight_s.index(place).store(weight)
            last_s.index(place).store(gl.full([N], 0.0, gl.float32, of_state) + parts.exp(last))
            gl.thread_barrier()
            mbarrier.arrive(small_ready.index(place), count=1)
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def _value(
    table: gl.tensor, gate: gl.tensor, x_s: gl.tensor, z_s: gl.tensor, weight_s: gl.tensor, made_s: gl.tensor,
    weighted_s: gl.tensor, made_to: gl.tensor, filled: gl.tensor, raw_free: gl.tensor, small_ready: gl.tensor,
    ready: gl.tensor, free: gl.tensor, first: gl.tensor, end: gl.tensor, rounds: gl.tensor, each: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, P: gl.constexpr, T: gl.constexpr, STAGES: gl.constexpr,
    FORWARD: gl.constexpr,
) -> None:  # fmt: skip
    """v or, not FORWARD, the gradient of y, which goes to memory; weighted, for the state."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    tokens: gl.constexpr = gl.SliceLayout(1, cube)
    table_at = parts.places(R, P, P, gl.SliceLayout(0, cube))
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        table_h = gl.load(table + head * (R * P) + table_at)[None, :, :]
        if not FORWARD:
            gate_h = gl.load(gate + head * (R * P) + table_at)[None, :, :]
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            mbarrier.wait(filled.index(place), phase)
            x_t = x_s.index(place).load(tokens)
            if not FORWARD:
                z_t = z_s.index(place).load(tokens)
                tma.store_wait(STAGES - 1)
            gl.thread_barrier()
            mbarrier.arrive(raw_free.index(place), count=1)
            value = x_t.to(gl.float32)[:, None, :] * table_h
            if not FORWARD:
                gated = z_t.to(gl.float32)[:, None, :] * gate_h
                value = value * gated * parts.sigmoid(gated)
            mbarrier.wait(free.index(place), phase ^ 1)
            if FORWARD:
                pipeline.put_weighted(value, weighted_s, weight_s, small_ready, place, phase, M, P, cube)
            else:
                pipeline.put_values(value, made_s, weighted_s, weight_s, small_ready, place, phase, M, P, cube)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(ready.index(place), count=1)
            if not FORWARD:
                token = line * S + pipeline.block_at(start + block, BLOCKS, FORWARD) * T
                tma.async_copy_shared_to_global(made_to, [token * R, head * P], made_s.index(place))
            done += 1
    if not FORWARD:
        tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def _multiply(
    states_to: gl.tensor, turned_s: gl.tensor, weighted_s: gl.tensor, last_s: gl.tensor, state_s: gl.tensor,
    turned_ready: gl.tensor, values_ready: gl.tensor, small_ready: gl.tensor, free: gl.tensor, passed: gl.tensor,
    flags: gl.tensor, program: gl.tensor, first: gl.tensor, end: gl.tensor, rounds: gl.tensor, each: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, N: gl.constexpr, P: gl.constexpr, T: gl.constexpr, STAGES: gl.constexpr,
    FORWARD: gl.constexpr,
) -> None:  # fmt: skip
    """The state [N, P] block by block, to memory before each pair of them."""
    BLOCKS: gl.constexpr = S // T
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, before, after = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        state = pipeline.take_on(passed, flags, program, before, N, P, layout)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            if (start + block) % 2 == 0:
                tma.store_wait(0)
                gl.thread_barrier()
                state_s.store(state.to(state_s.dtype))
                fence_async_shared()
                gl.thread_barrier()
                pair = line * (BLOCKS // 2) + pipeline.block_at(start + block, BLOCKS, FORWARD) // 2
                tma.async_copy_shared_to_global(states_to, [(pair * H + head) * N, 0], state_s)
            mbarrier.wait(small_ready.index(place), phase)
            state *= last_s.index(place).load(gl.SliceLayout(1, layout))[:, None]
            mbarrier.wait(turned_ready.index(place), phase)
            mbarrier.wait(values_ready.index(place), phase)
            turned = turned_s.index(place).permute((1, 0))
            state = warpgroup_mma(turned, weighted_s.index(place), state, is_async=True)
            state = warpgroup_mma_wait(0, deps=(state,))
            gl.thread_barrier()
            mbarrier.arrive(free.index(place), count=1)
            done += 1
        if after:
            pipeline.hand_on(state, passed, flags, program, N, P, layout)
    tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_states(
    given_from: gl.tensor, x_from: gl.tensor, z_from: gl.tensor, angles_from: gl.tensor, bias: gl.tensor,
    table: gl.tensor, gate: gl.tensor, a: gl.tensor, later: gl.tensor, turned_to: gl.tensor, made_to: gl.tensor,
    states_to: gl.tensor, passed: gl.tensor, flags: gl.tensor, per: gl.tensor, jobs: gl.tensor, rounds: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, STAGES: gl.constexpr, FORWARD: gl.constexpr,
    TURN: gl.constexpr, VALUE: gl.constexpr, LOAD: gl.constexpr,
) -> None:  # fmt: skip
    """One side: FORWARD of k, x and ``up``, else from the end on of q, what comes from above and ``down``."""
    M: gl.constexpr = T * R
    gl.static_assert(N == 2 * P and N == 4 * A and M == P)
    dtype: gl.constexpr = given_from.dtype
    raw_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], given_from.layout)
    turned_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], given_from.layout)
    angle_s = gl.allocate_shared_memory(gl.float32, [STAGES, T, A], angles_from.layout)
    x_s = gl.allocate_shared_memory(dtype, [STAGES, T, P], x_from.layout)
    z_s = gl.allocate_shared_memory(dtype, [STAGES, T, P], x_from.layout)
    made_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], made_to.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], made_to.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], states_to.layout)
    weight_s = gl.allocate_shared_memory(gl.float32, [STAGES, T], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    last_s = gl.allocate_shared_memory(gl.float32, [STAGES, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    raw_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    small_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turned_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    values_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(STAGES):
        mbarrier.init(filled.index(one), count=1)
        mbarrier.init(raw_free.index(one), count=2)
        mbarrier.init(small_ready.index(one), count=1)
        mbarrier.init(turned_ready.index(one), count=1)
        mbarrier.init(values_ready.index(one), count=1)
        mbarrier.init(free.index(one), count=2)
    fence_async_shared()
    gl.thread_barrier()
    program, first, end, each = pipeline.share(per, jobs, rounds, S // T)
    gl.warp_specialize(
        [
            (_multiply, (
                states_to, turned_s, weighted_s, last_s, state_s, turned_ready, values_ready, small_ready, free,
                passed, flags, program, first, end, rounds, each, S, H, N, P, T, STAGES, FORWARD,
            )),
            (pipeline.turn, (
                bias, table, raw_s, angle_s, x_s, turned_s, weight_s, made_s, weighted_s, turned_to, filled, raw_free,
                small_ready, turned_ready, free, first, end, rounds, each, S, H, R, N, P, A, T, STAGES, False,
                True, FORWARD, 2, 0,
            )),
            (pipeline.turn, (
                bias, table, raw_s, angle_s, x_s, turned_s, weight_s, made_s, weighted_s, turned_to, filled, raw_free,
                small_ready, turned_ready, free, first, end, rounds, each, S, H, R, N, P, A, T, STAGES, False,
                True, FORWARD, 2, 1,
            )),
            (_value, (
                table, gate, x_s, z_s, weight_s, made_s, weighted_s, made_to, filled, raw_free, small_ready,
                values_ready, free, first, end, rounds, each, S, H, R, P, T, STAGES, FORWARD,
            )),
            (_load, (
                given_from, x_from, z_from, angles_from, a, later, raw_s, x_s, z_s, angle_s, weight_s, last_s, filled,
                raw_free, small_ready, free, first, end, rounds, each, S, H, G, N, P, A, R, T, STAGES, FORWARD,
            )),
        ],
        [4, 4, 4, 1], [TURN, TURN, VALUE, LOAD],
    )  # fmt: skip


def run_states(of: Given) -> tuple[Tensor, ...]:
    """``scan.Launches.states``."""
    (states, slopes), sizes = of.states(), of.sizes()
    turned, grads = of.wide(), of.x.new_empty(*of.q.shape[:3], *of.x.shape[2:])
    chunk, of_block, width, channels = sizes["T"], sizes["T"] * sizes["R"], sizes["N"], sizes["P"]
    registers = dict(zip(("TURN", "VALUE", "LOAD"), REGISTERS, strict=True))
    z, angles = parts.tiles(of.z, chunk, channels), parts.tiles(of.angles, chunk, sizes["A"])
    for forward, (given, bias, x, table, to, sums) in (
        (True, (of.k, of.k_bias, of.x, of.up, turned[1], states)),
        (False, (of.q, of.q_bias, of.above, of.down, turned[0], slopes)),
    ):
        shares = pipeline.Shares(of.x, len(of.q) * sizes["H"], sizes["S"] // chunk, (width, channels), True)
        mimo_states[shares.grid](
            parts.tiles(given, of_block, width), parts.tiles(x, chunk, channels), z, angles, bias, table, of.gate,
            of.a, of.later, parts.tiles(to, of_block, width // 2), parts.tiles(grads, of_block, channels),
            parts.matrices(sums), *shares.arguments, **sizes, STAGES=STAGES, FORWARD=forward, **registers, num_warps=4,
        )  # fmt: skip
    return *turned, states, slopes, grads
