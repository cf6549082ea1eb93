"""Rows by programs whose warps do different work at a time, block after block, and hand it on in shared memory.

A row is that of one head: 384 rows are 2.9 for each of 132 multiprocessors, and would take the time of three. So a
program takes its share of all blocks. Of a row that two of them share, the one that is launched first has the first
blocks, and hands the state on in memory; the other takes the rest of that row last, and so seldom waits. It is launched
later, and so waits only for programs that run already. (McNaughton, "Scheduling with deadlines and loss functions",
Management Science 6(1), 1959: no schedule is shorter where a job may be cut.)

``filled``, ``ready``, ``free`` and the like are barriers of each place in shared memory: their phase is done when what
they are named after holds for the block whose turn it is.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from model.layers.mamba3.hopper import parts

WHOLE = 0.8  # of all multiprocessors, those that rounds of whole rows keep busy at least


@gluon.jit  # type: ignore[untyped-decorator]
def share(
    per: gl.tensor, jobs: gl.tensor, rounds: gl.tensor, BLOCKS: gl.constexpr
) -> tuple[gl.tensor, gl.tensor, gl.tensor, gl.tensor]:
    """This program's number from the last launched on; its first block, and the one after its last, of BLOCKS in each
    of ``jobs`` rows; and how many rows a round has.
    """
    program = gl.num_programs(0) - 1 - gl.program_id(0)
    return program, program * per, gl.minimum(program * per + per, jobs * BLOCKS), jobs // rounds


@gluon.jit  # type: ignore[untyped-decorator]
def part_of(
    job: gl.tensor, first: gl.tensor, end: gl.tensor, rounds: gl.tensor, each: gl.tensor, BLOCKS: gl.constexpr
) -> tuple[gl.tensor, gl.tensor, gl.tensor, gl.tensor, gl.tensor]:
    """A row, of it a program's first block, their number, and whether others have blocks before and after them."""
    low, high = gl.maximum(first - job * BLOCKS, 0), gl.minimum(end - job * BLOCKS, BLOCKS)
    row = job % rounds * each + job // rounds
    return row, gl.where(low == 0, BLOCKS - high, 0), high - low, high < BLOCKS, low > 0


@gluon.jit  # type: ignore[untyped-decorator]
def take_on(
    passed: gl.tensor,
    flags: gl.tensor,
    program: gl.tensor,
    waits: gl.tensor,
    N: gl.constexpr,
    P: gl.constexpr,
    layout: gl.constexpr,
) -> gl.tensor:
    """The state [N, P] before a program's first block of a row: zeros, or from the program that has those before it."""
    state = gl.full([N, P], 0.0, gl.float32, layout)
    if waits:
        while gl.atomic_add(flags + program + 1, 0, sem="acquire") == 0:
            pass
        gl.thread_barrier()
        state = gl.load(passed + (program + 1) * (N * P) + parts.places(N, P, P, layout))
    return state


@gluon.jit  # type: ignore[untyped-decorator]
def hand_on(
    state: gl.tensor,
    passed: gl.tensor,
    flags: gl.tensor,
    program: gl.tensor,
    N: gl.constexpr,
    P: gl.constexpr,
    layout: gl.constexpr,
) -> None:
    """The state [N, P] fp32 to the program that has the row's next blocks."""
    gl.store(passed + program * (N * P) + parts.places(N, P, P, layout), state)
    gl.thread_barrier()
    gl.atomic_xchg(flags + program, 1, sem="release")


@gluon.jit  # type: ignore[untyped-decorator]
def turn(
    bias: gl.tensor,
    up: gl.tensor,
    raw_s: gl.tensor,
    angle_s: gl.tensor,
    x_s: gl.tensor,
    turned_s: gl.tensor,
    weight_s: gl.tensor,
    v_s: gl.tensor,
    weighted_s: gl.tensor,
    turned_to: gl.tensor,
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
    N: gl.constexpr,
    P: gl.constexpr,
    A: gl.constexpr,
    T: gl.constexpr,
    STAGES: gl.constexpr,
    VALUES: gl.constexpr,
    STORED: gl.constexpr,
) -> None:
    """Turns q or k [T, R, N] of a block, its channels in this room's order; with VALUES also makes v, and v weighted,
    [T, R, P] of x and ``up``; STORED: what turned goes to memory, too.

    A thread has several tokens of a few columns, so that its share of the tables stays in registers.
    """
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    BLOCKS: gl.constexpr = S // T
    dtype: gl.constexpr = turned_s.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 2], [64 // A, 1, A // 2], [4, 1, 1], [2, 1, 0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 2], [64 // A, A // 2], [4, 1], [1, 0])
    bias_at = parts.places(R, A, N, gl.SliceLayout(0, wide))
    table_at = parts.places(R, P, P, gl.SliceLayout(0, cube))
    done = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        row, start, count, _, _ = part_of(job, first, end, rounds, each, BLOCKS)
        head, line = row % H, row // H
        bias_p = bias + head * (R * N) + bias_at
        low_bias, low_still_bias = gl.load(bias_p)[None, :, :], gl.load(bias_p + A)[None, :, :]
        high_bias, high_still_bias = gl.load(bias_p + L)[None, :, :], gl.load(bias_p + L + A)[None, :, :]
        if VALUES:
            up_h = gl.load(up + head * (R * P) + table_at)[None, :, :]
        for block in range(count):
            place, phase = done % STAGES, done // STAGES % 2
            mbarrier.wait(filled.index(place), phase)
            cos, sin = parts.turns(angle_s.index(place).load(gl.SliceLayout(1, wide)))
            cos, sin = cos[:, None, :], sin[:, None, :]
            raw = raw_s.index(place)._reinterpret(dtype, [2, M, L], weighted_s.layout)  # rows of 128 bytes
            turned = turned_s.index(place)._reinterpret(dtype, [2, M, L], weighted_s.layout)
            low, low_still = parts.pieces(raw.index(0).load(read), T, R, L, wide)
            high, high_still = parts.pieces(raw.index(1).load(read), T, R, L, wide)
            if VALUES:
                x_t = x_s.index(place).load(gl.SliceLayout(1, cube))
            if STORED:
                tma.store_wait(STAGES - 1)
            gl.thread_barrier()
            mbarrier.arrive(raw_free.index(place), count=1)
            mbarrier.wait(free.index(place), phase ^ 1)
            low, high = parts.widened(low) + low_bias, parts.widened(high) + high_bias
            low_still = parts.widened(low_still) + low_still_bias
            high_still = parts.widened(high_still) + high_still_bias
            turned.index(0).store(parts.turned_half(low, high, cos, sin, dtype, M, L))
            turned.index(1).store(parts.half(low_still.to(dtype), high_still.to(dtype), M, L))
            if VALUES:
                value = parts.widened(x_t)[:, None, :] * up_h
                put_values(value, v_s, weighted_s, weight_s, small_ready, place, phase, M, P, cube)
            fence_async_shared()
            gl.thread_barrier()
            mbarrier.arrive(ready.index(place), count=1)
            if STORED:
                at = (line * S + (start + block) * T) * R
                tma.async_copy_shared_to_global(turned_to, [at, head * N], turned.index(0))
                tma.async_copy_shared_to_global(turned_to, [at, head * N + L], turned.index(1))
            done += 1
    if STORED:
        tma.store_wait(0)


@gluon.jit  # type: ignore[untyped-decorator]
def put_values(
    value: gl.tensor,
    v_s: gl.tensor,
    weighted_s: gl.tensor,
    weight_s: gl.tensor,
    small_ready: gl.tensor,
    place: gl.tensor,
    phase: gl.tensor,
    M: gl.constexpr,
    P: gl.constexpr,
    cube: gl.constexpr,
) -> None:
    """Values [T, R, P] fp32 of a block to shared memory [M, P], as they are and weighted."""
    v_s.index(place).store(gl.reshape(value.to(v_s.dtype), [M, P]))
    put_weighted(value, weighted_s, weight_s, small_ready, place, phase, M, P, cube)


@gluon.jit  # type: ignore[untyped-decorator]
def put_weighted(
    value: gl.tensor,
    weighted_s: gl.tensor,
    weight_s: gl.tensor,
    small_ready: gl.tensor,
    place: gl.tensor,
    phase: gl.tensor,
    M: gl.constexpr,
    P: gl.constexpr,
    cube: gl.constexpr,
) -> None:
    """Values likewise, weighted by token, once the weights are there."""
    mbarrier.wait(small_ready.index(place), phase)
    weight = weight_s.index(place).load(gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    weighted_s.index(place).store(gl.reshape((value * weight).to(weighted_s.dtype), [M, P]))


class Shares:
    """Grid and arguments of kernels whose programs share ``jobs`` rows of ``blocks`` blocks evenly.

    With ``in_rounds`` programs take whole rows, if that leaves few multiprocessors idle: all are at the same place of
    neighbouring heads' rows at a time, and what they write lies side by side in memory. For kernels that write much.
    """

    def __init__(self, x: Tensor, jobs: int, blocks: int, state: tuple[int, int], in_rounds: bool) -> None:
        grid = min(parts.programs(x.device), jobs)
        rounds = triton.cdiv(jobs, grid)
        if in_rounds and jobs % rounds == 0 and jobs >= WHOLE * rounds * grid:
            grid = jobs // rounds
        else:
            rounds = 1
        self.grid = (grid,)
        per = triton.cdiv(jobs * blocks, grid)
        passed = x.new_empty(grid + 1, *state, dtype=torch.float32)
        flags = (x.new_zeros if per % blocks else x.new_empty)(
            grid + 1, dtype=torch.int32
        )  # read where rows are shared
        self.arguments = (passed, flags, per, jobs, rounds)
