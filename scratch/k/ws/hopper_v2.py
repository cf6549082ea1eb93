"""A forward kernel that shares its rows evenly, after three kernels of ``kernels`` for sm_90, in Gluon (Triton 3.6's ``triton.experimental.gluon``), and their launches.

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
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


# The fastest on an H200 of those in docs/log.md
STAGES = 4
COLUMNS = 16  # of each half of q or k that a program sums; of those that do not turn twice as many, if they fit


@gluon.jit  # type: ignore[untyped-decorator]
def _exp(x: gl.tensor) -> gl.tensor:
    """As in ``kernels``, and so the next two: Gluon's code calls no function of Triton's."""
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        "{ .reg .f32 e; mul.f32 e, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, e; }",
        "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit  # type: ignore[untyped-decorator]
def _sigmoid(x: gl.tensor) -> gl.tensor:
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
        " rcp.approx.ftz.f32 $0, e; }",
        "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit  # type: ignore[untyped-decorator]
def _turns(x: gl.tensor) -> tuple[gl.tensor, gl.tensor]:
    times = gl.floor(x * 0.15915494309189535 + 0.5)
    x = x - times * 6.28125 - times * 0.0019353071795864769
    return gl.inline_asm_elementwise(  # type: ignore[no-any-return]
        "cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;",
        "=r,=r,r", [x], dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _pieces(x, T: gl.constexpr, R: gl.constexpr, L: gl.constexpr, wide: gl.constexpr):
    """[T, R, L / 2] each: the columns that turn, and those that do not."""
    turning, still = gl.split(gl.permute(gl.reshape(x, [T, R, 2, L // 2]), (0, 1, 3, 2)))
    return gl.convert_layout(turning, wide), gl.convert_layout(still, wide)


@gluon.jit
def _half(turned, still, M: gl.constexpr, L: gl.constexpr):
    """[M, L] of the columns that turn and those that do not, [T, R, L / 2] each."""
    return gl.reshape(gl.permute(gl.join(turned, still), (0, 1, 3, 2)), [M, L])


@gluon.jit
def _shared(job, first, end, BLOCKS: gl.constexpr):
    """Of a row the blocks a program has: the first one, their number, and whether others come before or after."""
    low, high = gl.maximum(first - job * BLOCKS, 0), gl.minimum(end - job * BLOCKS, BLOCKS)
    return gl.where(low == 0, BLOCKS - high, 0), high - low, high < BLOCKS, low > 0


@gluon.jit
def _ahead(angle_p, x_p, a_p, own_p, later_p, on, step, row, column, row_m, H: gl.constexpr, P: gl.constexpr, A: gl.constexpr, T: gl.constexpr, KEY: gl.constexpr):
    angle, last = gl.load(angle_p + on * (H * A)), gl.load(a_p + on + T - 1)
    if KEY:
        a_t = gl.load(a_p + on + step)
        return angle, gl.load(x_p + on * (H * P)), a_t, gl.load(later_p + on + step), last, a_t
    else:
        at = gl.load(own_p + on + row), gl.load(a_p + on + column), gl.load(a_p + on + row)
        return angle, at, last, gl.load(later_p + on + column), last, gl.load(a_p + on + row_m)


@gluon.jit
def _turning(
    given_from, bias, angles, a, own, later, x, up, raw_s, turned_s, decay_s, grown_s, last_s, v_s, weighted_s, filled, ready, free,
    first, end,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, KEY: gl.constexpr,
):
    """Turns q, or k (KEY), of one block after the other; beside k it makes the values, beside q the decays."""
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    BLOCKS: gl.constexpr = S // T
    dtype: gl.constexpr = turned_s.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 4], [128 // A, 1, A // 4], [4, 1, 1], [2, 1, 0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 8], [256 // P, 1, P // 8], [4, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 4], [128 // A, A // 4], [4, 1], [1, 0])
    made: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])
    tokens_w: gl.constexpr = gl.SliceLayout(1, wide)
    ranks_w: gl.constexpr = gl.SliceLayout(0, wide)
    tokens_n: gl.constexpr = gl.SliceLayout(1, cube)
    ranks_n: gl.constexpr = gl.SliceLayout(0, cube)
    bias_0 = gl.arange(0, R, gl.SliceLayout(1, ranks_w))[:, None] * N + gl.arange(0, A, gl.SliceLayout(0, ranks_w))[None, :]
    angle_0 = gl.arange(0, T, gl.SliceLayout(1, tokens_w))[:, None] * (H * A) + gl.arange(0, A, gl.SliceLayout(0, tokens_w))[None, :]
    table_0 = gl.arange(0, R, gl.SliceLayout(1, ranks_n))[:, None] * P + gl.arange(0, P, gl.SliceLayout(0, ranks_n))[None, :]
    x_0 = gl.arange(0, T, gl.SliceLayout(1, tokens_n))[:, None] * (H * P) + gl.arange(0, P, gl.SliceLayout(0, tokens_n))[None, :]
    step = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    row, column = gl.arange(0, T, gl.SliceLayout(1, made))[:, None], gl.arange(0, T, gl.SliceLayout(0, made))[None, :]
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row_m = gl.arange(0, M, flat) // R
    halves: gl.constexpr = weighted_s.layout
    turn = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        start, count, after, before = _shared(job, first, end, BLOCKS)
        head, line = job % H, job // H
        token, heads = line * S + start * T, (line * H + head) * S + start * T
        group = head // (H // G) * N
        bias_p, up_p, x_p, angle_p = bias + head * (R * N) + bias_0, up + head * (R * P) + table_0, x + head * P + x_0, angles + head * A + angle_0
        for soon in range(gl.minimum(count, 2)):
            place = (turn + soon) % 2
            mbarrier.expect(filled.index(place), 2 * M * N)
            tma.async_copy_global_to_shared(given_from, [(token + soon * T) * R, group], filled.index(place), raw_s.index(place))
        x_h, a_h, own_h, later_h = x_p + token * (H * P), a + heads, own + heads, later + heads
        angle_p += token * (H * A)
        angle_1, x_1, a_1, later_1, last_1, rows_1 = _ahead(angle_p, x_h, a_h, own_h, later_h, 0, step, row, column, row_m, H, P, A, T, KEY)
        angle_2, x_2, a_2, later_2, last_2, rows_2 = _ahead(angle_p, x_h, a_h, own_h, later_h, gl.minimum(1, count - 1) * T, step, row, column, row_m, H, P, A, T, KEY)
        for block in range(count):
            place, phase = turn % 2, turn // 2 % 2
            angle, x_t, a_t, later_t, last, rows = angle_1, x_1, a_1, later_1, last_1, rows_1
            angle_1, x_1, a_1, later_1, last_1, rows_1 = angle_2, x_2, a_2, later_2, last_2, rows_2
            cos, sin = _turns(angle)
            cos, sin = cos[:, None, :], sin[:, None, :]
            mbarrier.wait(filled.index(place), phase)
            raw_p = raw_s.index(place)
            raw_h, turned_h = raw_p._reinterpret(dtype, [2, M, L], halves), turned_s.index(place)._reinterpret(dtype, [2, M, L], halves)
            low, low_still = _pieces(raw_h.index(0).load(read), T, R, L, wide)
            high, high_still = _pieces(raw_h.index(1).load(read), T, R, L, wide)
            gl.thread_barrier()
            if block + 2 < count:
                mbarrier.expect(filled.index(place), 2 * M * N)
                tma.async_copy_global_to_shared(given_from, [(token + (block + 2) * T) * R, group], filled.index(place), raw_p)
            mbarrier.wait(free.index(place), phase ^ 1)
            low_still = (low_still.to(gl.float32) + gl.load(bias_p + A)[None, :, :]).to(dtype)
            high_still = (high_still.to(gl.float32) + gl.load(bias_p + L + A)[None, :, :]).to(dtype)
            low, high = low.to(gl.float32) + gl.load(bias_p)[None, :, :], high.to(gl.float32) + gl.load(bias_p + L)[None, :, :]
            turned_h.index(0).store(_half((cos * low - sin * high).to(dtype), low_still, M, L))
            turned_h.index(1).store(_half((sin * low + cos * high).to(dtype), high_still, M, L))
            if KEY:
                value = x_t.to(gl.float32)[:, None, :] * gl.load(up_p)[None, :, :]
                v_s.index(place).store(gl.reshape(value.to(dtype), [M, P]))
                weight = _exp(last - a_t) * later_t
                weighted_s.index(place).store(gl.reshape((value * weight[:, None, None]).to(dtype), [M, P]))
            else:
                own_t, from_t, to_t = x_t
                decay = gl.where(row > column, _exp(gl.where(row > column, to_t - from_t, 0.0)) * later_t, 0.0)
                decay_s.index(place).store(decay + gl.where(row == column, own_t, 0.0))
                grown_s.index(place).store(_exp(rows))
                last_s.index(place).store(gl.full([N], 0.0, gl.float32, flat) + _exp(last))
            fence_async_shared()
            # not before the fence, which waits for what is loaded
            angle_2, x_2, a_2, later_2, last_2, rows_2 = _ahead(angle_p, x_h, a_h, own_h, later_h, gl.minimum(block + 2, count - 1) * T, step, row, column, row_m, H, P, A, T, KEY)
            gl.thread_barrier()
            mbarrier.arrive(ready.index(place), count=1)
            turn += 1


@gluon.jit
def _multiplying(
    states_to, q_s, k_s, decay_s, grown_s, last_s, v_s, weighted_s, state_s, y_s, q_ready, k_ready, free, y_ready, y_free,
    passed, flags, program, first, end,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr, T: gl.constexpr, KEEP: gl.constexpr,
):
    """All products; the state stays in registers."""
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    dtype: gl.constexpr = q_s.dtype
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=square, k_width=2)
    # [T, R, T, R]: what a thread has of [M, M], of which a token's ranks have one number
    fours: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [2, 0, 0, 0], [0, 0, 2, 0], [0, 0, 4, 0], [0, 0, 8, 0]],
        [[0, 0, 0, 2], [0, 0, 1, 0], [0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0]],
        [[4, 0, 0, 0], [8, 0, 0, 0]], [], [T, R, T, R],
    )
    spread: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, fours))
    state_at = gl.arange(0, N, gl.SliceLayout(1, square))[:, None] * P + gl.arange(0, P, gl.SliceLayout(0, square))[None, :]
    turn = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        start, count, after, before = _shared(job, first, end, BLOCKS)
        head, line = job % H, job // H
        state = gl.full([N, P], 0.0, gl.float32, square)
        if after:
            while gl.atomic_add(flags + program + 1, 0, sem="acquire") == 0:
                pass
            gl.thread_barrier()
            state = gl.load(passed + (program + 1) * (N * P) + state_at)
        for block in range(count):
            place, phase = turn % 2, turn // 2 % 2
            q_p, k_p = q_s.index(place), k_s.index(place)
            state_s.store(state.to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            if KEEP:
                if (start + block) % 2 == 0:
                    tma.async_copy_shared_to_global(states_to, [((line * BLOCKS + start + block) // 2 * H + head) * N, 0], state_s)
            mbarrier.wait(q_ready.index(place), phase)
            mbarrier.wait(k_ready.index(place), phase)
            zero = gl.full([M, P], 0.0, gl.float32, square)
            scores = warpgroup_mma(q_p, k_p.permute((1, 0)), zero, use_acc=False, is_async=True)
            y = warpgroup_mma(q_p, state_s, zero, use_acc=False, is_async=True)
            state *= last_s.index(place).load(gl.SliceLayout(1, square))[:, None]
            state = warpgroup_mma(k_p.permute((1, 0)), weighted_s.index(place), state, is_async=True)
            decay = decay_s.index(place).load(spread)[:, None, :, None] + gl.full([T, R, T, R], 0.0, gl.float32, fours)
            decay = gl.convert_layout(gl.reshape(decay, [M, M]), square)
            grown = grown_s.index(place).load(gl.SliceLayout(1, square))[:, None]
            scores = warpgroup_mma_wait(2, deps=(scores,))
            p = gl.convert_layout((scores * decay).to(dtype), left)
            near = warpgroup_mma(p, v_s.index(place), zero, use_acc=False, is_async=True)
            near, y, state, p = warpgroup_mma_wait(0, deps=(near, y, state, p))
            y = y * grown + near
            if KEEP:
                tma.store_wait(0)
            gl.thread_barrier()
            mbarrier.arrive(free.index(place), count=1)
            mbarrier.wait(y_free.index(place), phase ^ 1)
            y_s.index(place).store(y)
            gl.thread_barrier()
            mbarrier.arrive(y_ready.index(place), count=1)
            turn += 1
        if before:
            gl.store(passed + program * (N * P) + state_at, state)
            gl.thread_barrier()
            gl.atomic_xchg(flags + program, 1, sem="release")


@gluon.jit
def _gating(
    x, z, up, gate, down, skip, out, y_s, y_ready, y_free, first, end,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, P: gl.constexpr, T: gl.constexpr,
):
    BLOCKS: gl.constexpr = S // T
    cube: gl.constexpr = gl.BlockedLayout([1, R, 8], [256 // P, 1, P // 8], [4, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 8], [256 // P, P // 8], [4, 1], [1, 0])
    tokens: gl.constexpr = gl.SliceLayout(1, cube)
    ranks: gl.constexpr = gl.SliceLayout(0, cube)
    table_0 = gl.arange(0, R, gl.SliceLayout(1, ranks))[:, None] * P + gl.arange(0, P, gl.SliceLayout(0, ranks))[None, :]
    x_0 = gl.arange(0, T, gl.SliceLayout(1, tokens))[:, None] * (H * P) + gl.arange(0, P, gl.SliceLayout(0, tokens))[None, :]
    turn = 0
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        start, count, after, before = _shared(job, first, end, BLOCKS)
        head, line = job % H, job // H
        token = line * S + start * T
        up_p, gate_p, down_p = up + head * (R * P) + table_0, gate + head * (R * P) + table_0, down + head * (R * P) + table_0
        x_p, z_p, out_p, skipped = x + head * P + x_0, z + head * P + x_0, out + head * P + x_0, gl.load(skip + head)
        x_n, z_n = gl.load(x_p + token * (H * P)), gl.load(z_p + token * (H * P))
        for block in range(count):
            place, phase = turn % 2, turn // 2 % 2
            x_t, z_t = x_n, z_n
            soon = (token + gl.minimum(block + 1, count - 1) * T) * (H * P)
            x_n, z_n = gl.load(x_p + soon), gl.load(z_p + soon)
            mbarrier.wait(y_ready.index(place), phase)
            y = gl.convert_layout(gl.reshape(y_s.index(place).load(read), [T, R, P]), cube)
            gl.thread_barrier()
            mbarrier.arrive(y_free.index(place), count=1)
            y += skipped * (x_t.to(gl.float32)[:, None, :] * gl.load(up_p)[None, :, :])
            gated = z_t.to(gl.float32)[:, None, :] * gl.load(gate_p)[None, :, :]
            y = y * gl.load(down_p)[None, :, :] * gated * _sigmoid(gated)
            gl.store(out_p + (token + block * T) * (H * P), gl.sum(y, axis=1).to(x_t.dtype))
            turn += 1


@gluon.jit
def mimo_forward(
    q_from, k_from, states_to, q_bias, k_bias, angles, x, z, up, gate, down, skip, a, own, later,
    out, passed, flags, per, jobs,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, KEEP: gl.constexpr, TURN_REGS: gl.constexpr, GATE_REGS: gl.constexpr,
):
    """out [B, S, H, P]. A program takes ``per`` of all blocks, row by row, with four warps each for turning q, turning
    k, products, and what comes after them.

    Of a row that two programs share the one with the lower number has the earlier blocks, and hands the state on; the
    other has them last.
    """
    M: gl.constexpr = T * R
    BLOCKS: gl.constexpr = S // T
    gl.static_assert(N == 2 * P and N == 4 * A and M == P and T == 16 and R == 4)
    dtype: gl.constexpr = q_from.dtype
    raw_q = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    raw_k = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    q_s = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    k_s = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    decay_s = gl.allocate_shared_memory(gl.float32, [2, T, T], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    grown_s = gl.allocate_shared_memory(gl.float32, [2, M], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    last_s = gl.allocate_shared_memory(gl.float32, [2, N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    v_s = gl.allocate_shared_memory(dtype, [2, M, P], states_to.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [2, M, P], states_to.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], states_to.layout)
    y_s = gl.allocate_shared_memory(gl.float32, [2, M, P], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    raw_q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    raw_k_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    y_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    y_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(2):
        mbarrier.init(raw_q_full.index(one), count=1)
        mbarrier.init(raw_k_full.index(one), count=1)
        mbarrier.init(q_ready.index(one), count=1)
        mbarrier.init(k_ready.index(one), count=1)
        mbarrier.init(free.index(one), count=1)
        mbarrier.init(y_ready.index(one), count=1)
        mbarrier.init(y_free.index(one), count=1)
    fence_async_shared()
    gl.thread_barrier()
    program = gl.num_programs(0) - 1 - gl.program_id(0)
    first, end = program * per, gl.minimum(program * per + per, jobs * BLOCKS)
    gl.warp_specialize(
        [
            (_multiplying, (states_to, q_s, k_s, decay_s, grown_s, last_s, v_s, weighted_s, state_s, y_s, q_ready, k_ready, free, y_ready, y_free, passed, flags, program, first, end, S, H, R, N, P, T, KEEP)),
            (_turning, (q_from, q_bias, angles, a, own, later, x, up, raw_q, q_s, decay_s, grown_s, last_s, v_s, weighted_s, raw_q_full, q_ready, free, first, end, S, H, G, R, N, P, A, T, False)),
            (_turning, (k_from, k_bias, angles, a, own, later, x, up, raw_k, k_s, decay_s, grown_s, last_s, v_s, weighted_s, raw_k_full, k_ready, free, first, end, S, H, G, R, N, P, A, T, True)),
            (_gating, (x, z, up, gate, down, skip, out, y_s, y_ready, y_free, first, end, S, H, R, P, T)),
        ],
        [4, 4, 4], [TURN_REGS, TURN_REGS, GATE_REGS],
    )


def _rows(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x [..., heads, width], ``rows`` rows of ``columns`` of a head's numbers at a time."""
    return _descriptor(x.view(-1, x.shape[-2] * x.shape[-1]), [rows, columns])


def _whole(x: Tensor) -> TensorDescriptor:
    """Of x [..., N, P], one [N, P] at a time."""
    return _descriptor(x.view(-1, x.shape[-1]), list(x.shape[-2:]))


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    kind = gl.float32 if x.dtype == torch.float32 else gl.bfloat16
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, kind))


def run_forward(q, k, x, q_bias, k_bias, up, down, z, skip, gate, angles, a, own, later, chunk, *, keep=False, slots=132, turn=104, gate_regs=96, **options):
    """[B, S, H, P] of what ``scan.mimo_backward`` has."""
    rows, length, rank, groups, width = q.shape
    heads, channels = x.shape[2:]
    out = torch.empty_like(x)
    states = x.new_empty(rows, length // (2 * chunk), heads, width, channels) if keep else None
    jobs = rows * heads
    slots = min(slots, jobs)
    per = -(-jobs * (length // chunk) // slots)
    passed, flags = x.new_empty(slots + 1, width, channels, dtype=torch.float32), x.new_zeros(slots + 1, dtype=torch.int32)
    kept = _whole(states) if keep else _rows(x, chunk * rank, channels)
    mimo_forward[(slots,)](
        *(_rows(t, chunk * rank, width) for t in (q, k)), kept, q_bias, k_bias, angles, x, z, up, gate, down, skip,
        a, own, later, out, passed, flags, per, jobs, S=length, H=heads, G=groups, R=rank, N=width, P=channels, A=angles.shape[-1], T=chunk,
        KEEP=keep, TURN_REGS=turn, GATE_REGS=gate_regs, num_warps=4, **options,
    )
    return (out, states) if keep else out
