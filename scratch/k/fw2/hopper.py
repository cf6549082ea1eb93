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
def _turn(halves, low, high, bias_p, cos, sin, T: gl.constexpr, R: gl.constexpr, L: gl.constexpr, A: gl.constexpr, wide: gl.constexpr):
    """Both halves [M, L] of q or k, with their bias, turned, to shared memory."""
    M: gl.constexpr = T * R
    dtype: gl.constexpr = halves.dtype
    low, low_still = _pieces(low, T, R, L, wide)
    high, high_still = _pieces(high, T, R, L, wide)
    low_still = (low_still.to(gl.float32) + gl.load(bias_p + A)[None, :, :]).to(dtype)
    high_still = (high_still.to(gl.float32) + gl.load(bias_p + L + A)[None, :, :]).to(dtype)
    low, high = low.to(gl.float32) + gl.load(bias_p)[None, :, :], high.to(gl.float32) + gl.load(bias_p + L)[None, :, :]
    halves.index(0).store(_half((cos * low - sin * high).to(dtype), low_still, M, L))
    halves.index(1).store(_half((sin * low + cos * high).to(dtype), high_still, M, L))


@gluon.jit
def _fetch(q_from, k_from, token, group, bar, q_p, k_p, M: gl.constexpr, N: gl.constexpr, R: gl.constexpr):
    mbarrier.expect(bar, 2 * 2 * M * N)
    tma.async_copy_global_to_shared(k_from, [token * R, group], bar, k_p)
    tma.async_copy_global_to_shared(q_from, [token * R, group], bar, q_p)


@gluon.jit
def _ahead(angles, x, z, a, own, later, at, here, head, angle_at, x_at, step, row, column, H: gl.constexpr, P: gl.constexpr, A: gl.constexpr, T: gl.constexpr):
    return (
        gl.load(angles + at * (H * A) + head * A + angle_at), gl.load(x + at * (H * P) + head * P + x_at), gl.load(z + at * (H * P) + head * P + x_at),
        gl.load(a + here + step), gl.load(later + here + step), gl.load(a + here + row), gl.load(own + here + row),
        gl.load(a + here + column), gl.load(later + here + column), gl.load(a + here + T - 1),
    )


@gluon.jit
def mimo_forward(
    q_from, k_from, states_to, q_bias, k_bias, angles, x, z, up, gate, down, skip, a, own, later,
    out, passed, flags, per, jobs,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, W: gl.constexpr, KEEP: gl.constexpr,
):
    """A head's row, block by block; the state stays in registers. out [B, S, H, P].

    A program takes ``per`` of all blocks, row by row. Of a row that two share the one with the lower number has the
    earlier blocks, and hands the state on; the other has them last.
    """
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    V: gl.constexpr = W // 4
    BLOCKS: gl.constexpr = S // T
    gl.static_assert(L == P and L == 2 * A and M == P and T == 16 and R == 4)
    dtype: gl.constexpr = q_from.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 4 // V], [128 // A // V, 1, A // 4 * V], [W, 1, 1], [2, 1, 0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 8 // V], [256 // P // V, 1, P // 8 * V], [W, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 4 // V], [128 // A // V, A // 4 * V], [W, 1], [1, 0])
    read_y: gl.constexpr = gl.BlockedLayout([R, 8 // V], [256 // P // V, P // 8 * V], [W, 1], [1, 0])
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, V], [16, P // V, 16])
    whole: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [W, 1], [16, P, 16])
    made: gl.constexpr = gl.BlockedLayout([1, 2 // V], [4, 8], [W // 2 * V, 2 // V] if V == 1 else [4, 2], [1, 0])
    # [T, R, T, R]: what a thread has of [M, M], of which a token's ranks have one number
    fours: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 0, 1], [2, 0, 0, 0], [0, 0, 2, 0], [0, 0, 4, 0]] + ([[0, 0, 8, 0]] if V == 1 else []),
        [[0, 0, 0, 2], [0, 0, 1, 0], [0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0]],
        [[4, 0, 0, 0], [8, 0, 0, 0]] + ([[0, 0, 8, 0]] if V == 2 else []),
        [], [T, R, T, R],
    )
    spread: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, fours))
    tokens_w: gl.constexpr = gl.SliceLayout(1, wide)
    ranks_w: gl.constexpr = gl.SliceLayout(0, wide)
    tokens_n: gl.constexpr = gl.SliceLayout(1, cube)
    ranks_n: gl.constexpr = gl.SliceLayout(0, cube)
    bias_0 = gl.arange(0, R, gl.SliceLayout(1, ranks_w))[:, None] * N + gl.arange(0, A, gl.SliceLayout(0, ranks_w))[None, :]
    angle_0 = gl.arange(0, T, gl.SliceLayout(1, tokens_w))[:, None] * (H * A) + gl.arange(0, A, gl.SliceLayout(0, tokens_w))[None, :]
    table_0 = gl.arange(0, R, gl.SliceLayout(1, ranks_n))[:, None] * P + gl.arange(0, P, gl.SliceLayout(0, ranks_n))[None, :]
    out_0 = gl.arange(0, T, gl.SliceLayout(1, tokens_n))[:, None] * (H * P) + gl.arange(0, P, gl.SliceLayout(0, tokens_n))[None, :]
    state_at = gl.arange(0, N, gl.SliceLayout(1, whole))[:, None] * P + gl.arange(0, P, gl.SliceLayout(0, whole))[None, :]
    step = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    row, column = gl.arange(0, T, gl.SliceLayout(1, made))[:, None], gl.arange(0, T, gl.SliceLayout(0, made))[None, :]
    row_m = gl.arange(0, M, gl.SliceLayout(1, square)) // R

    q_s = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    k_s = gl.allocate_shared_memory(dtype, [2, M, N], q_from.layout)
    decay_s = gl.allocate_shared_memory(gl.float32, [T, T], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    v_s = gl.allocate_shared_memory(dtype, [M, P], states_to.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [M, P], states_to.layout)
    scores_s = gl.allocate_shared_memory(dtype, [M, M], states_to.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], states_to.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    y_s = state_s._reinterpret(gl.float32, [M, P], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    for one in gl.static_range(2):
        mbarrier.init(bars.index(one), count=1)
    fence_async_shared()
    program = gl.num_programs(0) - 1 - gl.program_id(0)
    first, end = program * per, gl.minimum(program * per + per, jobs * BLOCKS)
    turn = 0  # of the two places
    for job in range(first // BLOCKS, (end + BLOCKS - 1) // BLOCKS):
        low_end, high_end = gl.maximum(first - job * BLOCKS, 0), gl.minimum(end - job * BLOCKS, BLOCKS)
        start = gl.where(low_end == 0, BLOCKS - high_end, 0)
        count = high_end - low_end
        head, line = job % H, job // H
        token, heads = line * S + start * T, (line * H + head) * S + start * T
        group = head // (H // G) * N
        q_bias_h, k_bias_h, skipped = q_bias + head * (R * N), k_bias + head * (R * N), gl.load(skip + head)
        up_h, gate_h, down_h = up + head * (R * P), gate + head * (R * P), down + head * (R * P)
        for soon in range(gl.minimum(count, 2)):
            place = (turn + soon) % 2
            _fetch(q_from, k_from, token + soon * T, group, bars.index(place), q_s.index(place), k_s.index(place), M, N, R)
        angle_n, x_n, z_n, a_t_n, later_t_n, a_m_n, own_n, a_n_n, later_n_n, a_last_n = _ahead(
            angles, x, z, a, own, later, token, heads, head, angle_0, out_0, step, row, column, H, P, A, T)
        state = gl.full([N, P], 0.0, gl.float32, whole)
        if high_end < BLOCKS:
            while gl.atomic_add(flags + program + 1, 0, sem="acquire") == 0:
                pass
            gl.thread_barrier()
            state = gl.load(passed + (program + 1) * (N * P) + state_at)
        for block in range(count):
            place, phase = turn % 2, turn // 2 % 2
            at, here = token + block * T, heads + block * T
            angle, x_t, z_t, a_t, later_t, a_m, own_m, a_n, later_n, a_last = (
                angle_n, x_n.to(gl.float32)[:, None, :], z_n, a_t_n, later_t_n, a_m_n, own_n, a_n_n, later_n_n, a_last_n)
            soon = gl.minimum(block + 1, count - 1) * T
            angle_n, x_n, z_n, a_t_n, later_t_n, a_m_n, own_n, a_n_n, later_n_n, a_last_n = _ahead(
                angles, x, z, a, own, later, token + soon, heads + soon, head, angle_0, out_0, step, row, column, H, P, A, T)
            q_p, k_p = q_s.index(place), k_s.index(place)
            q_h, k_h = q_p._reinterpret(dtype, [2, M, L], states_to.layout), k_p._reinterpret(dtype, [2, M, L], states_to.layout)
            mbarrier.wait(bars.index(place), phase)
            k_low, k_high = k_h.index(0).load(read), k_h.index(1).load(read)
            q_low, q_high = q_h.index(0).load(read), q_h.index(1).load(read)
            gl.thread_barrier()  # the last block's y lay where the state goes; all have read q and k
            state_s.store(state.to(dtype))
            decay = gl.where(row > column, _exp(gl.where(row > column, a_m - a_n, 0.0)) * later_n, 0.0)
            decay_s.store(decay + gl.where(row == column, own_m, 0.0))
            value = x_t * gl.load(up_h + table_0)[None, :, :]
            weight = _exp(a_last - a_t) * later_t
            v_s.store(gl.reshape(value.to(dtype), [M, P]))
            weighted_s.store(gl.reshape((value * weight[:, None, None]).to(dtype), [M, P]))
            cos, sin = _turns(angle)
            cos, sin = cos[:, None, :], sin[:, None, :]
            _turn(k_h, k_low, k_high, k_bias_h + bias_0, cos, sin, T, R, L, A, wide)
            _turn(q_h, q_low, q_high, q_bias_h + bias_0, cos, sin, T, R, L, A, wide)
            fence_async_shared()
            gl.thread_barrier()
            if KEEP:
                if (start + block) % 2 == 0:
                    tma.async_copy_shared_to_global(states_to, [((line * BLOCKS + start + block) // 2 * H + head) * N, 0], state_s)
            zero = gl.full([M, P], 0.0, gl.float32, square)
            scores = warpgroup_mma(q_p, k_p.permute((1, 0)), zero, use_acc=False, is_async=True)
            y = warpgroup_mma(q_p, state_s, zero, use_acc=False, is_async=True)
            spread_decay = gl.reshape((decay_s.load(spread)[:, None, :, None] + gl.full([T, R, T, R], 0.0, gl.float32, fours)), [M, M])
            spread_decay = gl.convert_layout(spread_decay, square)
            state *= _exp(a_last)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            state = warpgroup_mma(k_p.permute((1, 0)), weighted_s, state, is_async=True)
            scores_s.store((scores * spread_decay).to(dtype))
            fence_async_shared()
            gl.thread_barrier()
            y = warpgroup_mma_wait(1, deps=(y,))
            y *= _exp(gl.load(a + here + row_m))[:, None]
            y = warpgroup_mma(scores_s, v_s, y, is_async=True)
            y, state = warpgroup_mma_wait(0, deps=(y, state))
            if KEEP:
                tma.store_wait(0)
            gl.thread_barrier()  # every warp has waited: what q, k and the state lay in is free
            if block + 2 < count:
                _fetch(q_from, k_from, at + 2 * T, group, bars.index(place), q_p, k_p, M, N, R)
            y_s.store(y)
            gl.thread_barrier()
            y_t = gl.convert_layout(gl.reshape(y_s.load(read_y), [T, R, P]), cube)
            y_t += skipped * (x_t * gl.load(up_h + table_0)[None, :, :])
            gated = z_t.to(gl.float32)[:, None, :] * gl.load(gate_h + table_0)[None, :, :]
            y_t = y_t * gl.load(down_h + table_0)[None, :, :] * gated * _sigmoid(gated)
            gl.store(out + at * (H * P) + head * P + out_0, gl.sum(y_t, axis=1).to(dtype))
            turn += 1
        if low_end > 0:
            gl.store(passed + program * (N * P) + state_at, state)
            gl.thread_barrier()
            gl.atomic_xchg(flags + program, 1, sem="release")
    for one in gl.static_range(2):
        mbarrier.invalidate(bars.index(one))


def _rows(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x [..., heads, width], ``rows`` rows of ``columns`` of a head's numbers at a time."""
    return _descriptor(x.view(-1, x.shape[-2] * x.shape[-1]), [rows, columns])


def _whole(x: Tensor) -> TensorDescriptor:
    """Of x [..., N, P], one [N, P] at a time."""
    return _descriptor(x.view(-1, x.shape[-1]), list(x.shape[-2:]))


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    kind = gl.float32 if x.dtype == torch.float32 else gl.bfloat16
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, kind))


def run_forward(q, k, x, q_bias, k_bias, up, down, z, skip, gate, angles, a, own, later, chunk, *, keep=False, warps=8, slots=264, **options):
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
        W=warps, KEEP=keep, num_warps=warps, **options,
    )
    return (out, states) if keep else out
