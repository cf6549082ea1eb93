"""The state before each block, a row by one program, its state in registers; on the way k is turned.

Who fills, who waits and who frees, as in ``forward``; places in brackets.

    _load, 1 warp                 turn k, _value                       _multiply
    raw k, x, angles  =filled[]=>     both
                      <=raw_free[]=   both, a count of 2
    weights           =small_ready[]=> _value: v weighted
    last decay        =small_ready[]==============================>    scales the state
                                  k turned       =turned_ready[]=>     its product
                                  v weighted     =values_ready[]=>     its product
    stores the next   <=free[]=========================================  the block's product is done
                                  store the next     <=free[]========
    The state goes to memory before each block, k turned too: ``tma.store_wait`` before their places are written again.
"""

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

from model.layers.mamba3.hopper import parts, pipeline
from model.layers.mamba3.hopper.turned import run_turned
from model.layers.mamba3.scan import Given

STAGES = 3  # blocks of which something lies in shared memory
REGISTERS = (128, 104, 56)  # of a thread that turns, makes values, loads; one that multiplies has the rest


@gluon.jit  # type: ignore[untyped-decorator]
def _load(
    k_from: gl.tensor,
    x_from: gl.tensor,
    angles_from: gl.tensor,
    a: gl.tensor,
    later: gl.tensor,
    raw_s: gl.tensor,
    x_s: gl.tensor,
    angle_s: gl.tensor,
    weight_s: gl.tensor,
    last_s: gl.tensor,
    filled: gl.tensor,
    raw_free: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    A: gl.constexpr,
    R: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """One warp. Its own loads are three blocks ahead, for nothing hides how long they take."""
    BLOCKS: gl.constexpr = S // T
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    of_state: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
    step = gl.arange(0, T, flat)
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        token, heads = line * S + start * T, (line * H + head) * S + start * T
        a_p, later_p = a + heads + step, later + heads + step
        soon, then = gl.minimum(1, count - 1) * T, gl.minimum(2, count - 1) * T
        a_1, later_1 = gl.load(a_p), gl.load(later_p)
        a_2, later_2 = gl.load(a_p + soon), gl.load(later_p + soon)
        a_3, later_3 = gl.load(a_p + then), gl.load(later_p + then)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            a_t, later_t = a_1, later_1
            a_1, later_1, a_2, later_2 = a_2, later_2, a_3, later_3
            then = gl.minimum(block + 3, count - 1) * T
            a_3, later_3 = gl.load(a_p + then), gl.load(later_p + then)
            at = token + block * T
            mbarrier.wait(raw_free.index(place), phase ^ 1)
            bar = filled.index(place)
            BYTES: gl.constexpr = k_from.block_type.nbytes + x_from.block_type.nbytes
            mbarrier.expect(bar, BYTES + angles_from.block_type.nbytes)
            tma.async_copy_global_to_shared(angles_from, [at, head * A], bar, angle_s.index(place))
            tma.async_copy_global_to_shared(k_from, [at * R, head // (H // G) * N], bar, raw_s.index(place))
            tma.async_copy_global_to_shared(x_from, [at, head * P], bar, x_s.index(place))
            last = gl.sum(gl.where(step == T - 1, a_t, 0.0), axis=0)
            weight = parts.exp(last - a_t) * later_t
            mbarrier.wait(free.index(place), phase ^ 1)
            weight_s.index(place).store(weight)
            last_s.index(place).store(gl.full([N], 0.0, gl.float32, of_state) + parts.exp(last))
            gl.thread_barrier()
            mbarrier.arrive(small_ready.index(place), count=1)
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def _value(
    up: gl.tensor,
    x_s: gl.tensor,
    weight_s: gl.tensor,
    weighted_s: gl.tensor,
    filled: gl.tensor,
    raw_free: gl.tensor,
    small_ready: gl.tensor,
    ready: gl.tensor,
    free: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    R: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """v of a block, weighted for the state."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, _, count, _, _ = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        up_h = gl.load(up + row % H * (R * P) + parts.places(R, P, P, gl.SliceLayout(0, cube)))[None, :, :]
        for _block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            mbarrier.wait(filled.index(place), phase)
            x_t = x_s.index(place).load(gl.SliceLayout(1, cube))
            gl.thread_barrier()
            mbarrier.arrive(raw_free.index(place), count=1)
            value = parts.widened(x_t)[:, None, :] * up_h
            mbarrier.wait(free.index(place), phase ^ 1)
            pipeline.put_weighted(value, weighted_s, weight_s, small_ready, place, phase, M, P, cube)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(ready.index(place), count=1)
            done += 1


@gluon.jit  # type: ignore[untyped-decorator]
def _multiply(
    states_to: gl.tensor,
    turned_s: gl.tensor,
    weighted_s: gl.tensor,
    last_s: gl.tensor,
    states_s: gl.tensor,
    turned_ready: gl.tensor,
    values_ready: gl.tensor,
    small_ready: gl.tensor,
    free: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    program: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    rounds: gl.tensor,
    each: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """The state [N, P], which goes to memory before each block."""
    BLOCKS: gl.constexpr = S // T
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, before, after = pipeline.part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        state = pipeline.take_on(passed, flags, program, before, N, P, layout)
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            state_s = states_s.index(done % 2)
            tma.store_wait(1)  # what lay here is in memory
            gl.thread_barrier()
            state_s.store(state.to(state_s.dtype))
            fence_async_shared()
            gl.thread_barrier()
            at = ((line * BLOCKS + start + block) * H + head) * N
            tma.async_copy_shared_to_global(states_to, [at, 0], state_s)
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
    k_from: gl.tensor,
    x_from: gl.tensor,
    angles_from: gl.tensor,
    bias: gl.tensor,
    up: gl.tensor,
    a: gl.tensor,
    later: gl.tensor,
    turned_to: gl.tensor,
    states_to: gl.tensor,
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
    TURN: gl.constexpr,
    VALUE: gl.constexpr,
    LOAD: gl.constexpr,
) -> None:
    """Rows from their first block to their last."""
    M: gl.constexpr = T * R
    gl.static_assert(N == 2 * P and N == 4 * A and M == P)
    dtype: gl.constexpr = k_from.dtype
    raw_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], k_from.layout)
    turned_s = gl.allocate_shared_memory(dtype, [STAGES, M, N], k_from.layout)
    angle_s = gl.allocate_shared_memory(gl.float32, [STAGES, T, A], angles_from.layout)
    x_s = gl.allocate_shared_memory(dtype, [STAGES, T, P], x_from.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [STAGES, M, P], turned_to.layout)
    states_s = gl.allocate_shared_memory(dtype, [2, N, P], states_to.layout)
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
        mbarrier.init(free.index(one), count=1)
    fence_async_shared()
    gl.thread_barrier()
    program, first, end, each = pipeline.share(per, jobs, rounds, S // T)
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    states_to,
                    turned_s,
                    weighted_s,
                    last_s,
                    states_s,
                    turned_ready,
                    values_ready,
                    small_ready,
                    free,
                    passed,
                    flags,
                    program,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    N,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                pipeline.turn,
                (
                    bias,
                    up,
                    raw_s,
                    angle_s,
                    x_s,
                    turned_s,
                    weight_s,
                    weighted_s,
                    weighted_s,
                    turned_to,
                    filled,
                    raw_free,
                    small_ready,
                    turned_ready,
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
                    True,
                ),
            ),
            (
                _value,
                (
                    up,
                    x_s,
                    weight_s,
                    weighted_s,
                    filled,
                    raw_free,
                    small_ready,
                    values_ready,
                    free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    R,
                    P,
                    T,
                    STAGES,
                ),
            ),
            (
                _load,
                (
                    k_from,
                    x_from,
                    angles_from,
                    a,
                    later,
                    raw_s,
                    x_s,
                    angle_s,
                    weight_s,
                    last_s,
                    filled,
                    raw_free,
                    small_ready,
                    free,
                    first,
                    end,
                    rounds,
                    each,
                    S,
                    H,
                    G,
                    N,
                    P,
                    A,
                    R,
                    T,
                    STAGES,
                ),
            ),
        ],
        [4, 4, 1],
        [TURN, VALUE, LOAD],
    )


def run_states(of: Given) -> tuple[Tensor, ...]:
    """``scan.Launches.states``."""
    sizes, turned = of.sizes(), of.wide()
    chunk, of_block, width, channels = sizes["T"], sizes["T"] * sizes["R"], sizes["N"], sizes["P"]
    states = of.q.new_empty(len(of.q), sizes["S"] // chunk, sizes["H"], width, channels)
    shares = pipeline.Shares(of.x, len(of.q) * sizes["H"], sizes["S"] // chunk, (width, channels), True)
    registers = dict(zip(("TURN", "VALUE", "LOAD"), REGISTERS, strict=True))
    x, angles = parts.tiles(of.x, chunk, channels), parts.tiles(of.angles, chunk, sizes["A"])
    mimo_states[shares.grid](
        parts.tiles(of.k, of_block, width),
        x,
        angles,
        of.k_bias,
        of.up,
        of.a,
        of.later,
        parts.tiles(turned[1], of_block, width // 2),
        parts.matrices(states),
        *shares.arguments,
        **sizes,
        STAGES=STAGES,
        **registers,
        num_warps=4,
    )
    return *turned, states, run_turned(of, turned[0])
