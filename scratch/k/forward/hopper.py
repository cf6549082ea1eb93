"""A forward kernel, after three kernels of ``kernels`` for sm_90, in Gluon (Triton 3.6's ``triton.experimental.gluon``), and their launches.

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
def _block(
    angles, x, z, a, later, token, heads, angle_at, narrow_at, step_at,
    H: gl.constexpr, P: gl.constexpr, A: gl.constexpr, FORWARD: gl.constexpr,
):
    angle = gl.load(angles + token * (H * A) + angle_at)
    x_t = gl.load(x + token * (H * P) + narrow_at)
    z_t = x_t if FORWARD else gl.load(z + token * (H * P) + narrow_at)
    return angle, x_t, z_t, gl.load(a + heads + step_at), gl.load(later + heads + step_at)


@gluon.jit
def _raw(given_from, row, column, bar, raw, M: gl.constexpr, L: gl.constexpr):
    mbarrier.expect(bar, 2 * 2 * M * L)
    tma.async_copy_global_to_shared(given_from, [row, column], bar, raw.index(0))
    tma.async_copy_global_to_shared(given_from, [row, column + L], bar, raw.index(1))


@gluon.jit
def _pieces(x, T: gl.constexpr, R: gl.constexpr, L: gl.constexpr, wide: gl.constexpr):
    """[T, R, L / 2] each: the columns that turn, and those that do not."""
    turning, still = gl.split(gl.permute(gl.reshape(x, [T, R, 2, L // 2]), (0, 1, 3, 2)))
    return gl.convert_layout(turning, wide), gl.convert_layout(still, wide)


@gluon.jit  # type: ignore[untyped-decorator]
def _half(turned: gl.tensor, still: gl.tensor, M: gl.constexpr, L: gl.constexpr) -> gl.tensor:
    """[M, L] of the columns that turn and those that do not, [T, R, L / 2] each."""
    return gl.reshape(gl.permute(gl.join(turned, still), (0, 1, 3, 2)), [M, L])


@gluon.jit  # type: ignore[untyped-decorator]
def _value(
    x: gl.tensor, z: gl.tensor, table: gl.tensor, gate: gl.tensor, table_at: gl.tensor, FORWARD: gl.constexpr
) -> gl.tensor:
    """v [T, R, P] fp32 of x and ``up`` or, not FORWARD, the gradient of y, of what comes from above, z and ``down``."""
    value = x.to(gl.float32)[:, None, :] * gl.load(table + table_at)[None, :, :]
    if FORWARD:
        return value
    else:
        gated = z.to(gl.float32)[:, None, :] * gl.load(gate + table_at)[None, :, :]
        return value * gated * _sigmoid(gated)


@gluon.jit
def _turn(
    halves, bias_p, cos, sin, T: gl.constexpr, R: gl.constexpr, L: gl.constexpr, A: gl.constexpr,
    read: gl.constexpr, wide: gl.constexpr,
):
    """Both halves [M, L] of q or k in shared memory, with their bias, turned where they lie."""
    M: gl.constexpr = T * R
    dtype: gl.constexpr = halves.dtype
    low, low_still = _pieces(halves.index(0).load(read), T, R, L, wide)
    high, high_still = _pieces(halves.index(1).load(read), T, R, L, wide)
    low_still = (low_still.to(gl.float32) + gl.load(bias_p + A)[None, :, :]).to(dtype)
    high_still = (high_still.to(gl.float32) + gl.load(bias_p + L + A)[None, :, :]).to(dtype)
    low, high = low.to(gl.float32) + gl.load(bias_p)[None, :, :], high.to(gl.float32) + gl.load(bias_p + L)[None, :, :]
    halves.index(0).store(_half((cos * low - sin * high).to(dtype), low_still, M, L))
    halves.index(1).store(_half((sin * low + cos * high).to(dtype), high_still, M, L))


@gluon.jit
def mimo_forward(
    q_from, k_from, q_bias, k_bias, angles, x, z, up, gate, down, skip, a, own, later, out,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr,
):
    """A head's row, block by block; the state stays in registers. out [B, S, H, P]."""
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    BLOCKS: gl.constexpr = S // T
    gl.static_assert(L == P and L == 2 * A and M == P)
    dtype: gl.constexpr = q_from.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 4], [128 // A, 1, A // 4], [4, 1, 1], [2, 1, 0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 8], [256 // P, 1, P // 8], [4, 1, 1], [2, 1, 0])
    read: gl.constexpr = gl.BlockedLayout([R, 4], [128 // A, A // 4], [4, 1], [1, 0])
    read_y: gl.constexpr = gl.BlockedLayout([R, 8], [256 // P, P // 8], [4, 1], [1, 0])
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=square, k_width=2)
    tokens_w: gl.constexpr = gl.SliceLayout(1, wide)
    ranks_w: gl.constexpr = gl.SliceLayout(0, wide)
    tokens_n: gl.constexpr = gl.SliceLayout(1, cube)
    ranks_n: gl.constexpr = gl.SliceLayout(0, cube)
    head, line = gl.program_id(0), gl.program_id(1)
    token, heads = line * S, (line * H + head) * S
    group = head // (H // G) * N
    angle_at = (gl.arange(0, T, gl.SliceLayout(1, tokens_w))[:, None] * H + head) * A
    angle_at = angle_at + gl.arange(0, A, gl.SliceLayout(0, tokens_w))[None, :]
    narrow_at = (gl.arange(0, T, gl.SliceLayout(1, tokens_n))[:, None] * H + head) * P
    narrow_at = narrow_at + gl.arange(0, P, gl.SliceLayout(0, tokens_n))[None, :]
    step_at = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    bias_at = (head * R + gl.arange(0, R, gl.SliceLayout(1, ranks_w))[:, None]) * N
    bias_at = bias_at + gl.arange(0, A, gl.SliceLayout(0, ranks_w))[None, :]
    table_at = (head * R + gl.arange(0, R, gl.SliceLayout(1, ranks_n))[:, None]) * P
    table_at = table_at + gl.arange(0, P, gl.SliceLayout(0, ranks_n))[None, :]
    row, column = gl.arange(0, M, gl.SliceLayout(1, square)) // R, gl.arange(0, M, gl.SliceLayout(0, square)) // R
    skipped = gl.load(skip + head)

    q_s = gl.allocate_shared_memory(dtype, [M, N], gl.NVMMASharedLayout.get_default_for([M, L], gl.bfloat16))
    k_s = gl.allocate_shared_memory(dtype, [M, N], gl.NVMMASharedLayout.get_default_for([M, L], gl.bfloat16))
    v_s = gl.allocate_shared_memory(dtype, [M, P], q_from.layout)
    weighted_s = gl.allocate_shared_memory(dtype, [M, P], q_from.layout)
    state_s = gl.allocate_shared_memory(dtype, [N, P], q_from.layout)
    bars = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    y_s = state_s._reinterpret(gl.float32, [M, P], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
    q_h, k_h = q_s._reinterpret(dtype, [2, M, L], q_from.layout), k_s._reinterpret(dtype, [2, M, L], q_from.layout)
    bar = bars.index(0)
    mbarrier.init(bar, count=1)
    fence_async_shared()
    _both(q_from, k_from, token * R, group, bar, q_h, k_h, M, L)
    state = gl.full([N, P], 0.0, gl.float32, square)
    for block in range(BLOCKS):
        at, here = token + block * T, heads + block * T
        x_t, z_t = gl.load(x + at * (H * P) + narrow_at), gl.load(z + at * (H * P) + narrow_at)
        angle = gl.load(angles + at * (H * A) + angle_at)
        a_t, later_t, a_last = gl.load(a + here + step_at), gl.load(later + here + step_at), gl.load(a + here + T - 1)
        gl.thread_barrier()  # the last block's y lay where the state goes
        state_s.store(state.to(dtype))
        value = _value(x_t, x_t, up, up, table_at, True)
        weight = _exp(a_last - a_t) * later_t
        v_s.store(gl.reshape(value.to(dtype), [M, P]))
        weighted_s.store(gl.reshape((value * weight[:, None, None]).to(dtype), [M, P]))
        cos, sin = _turns(angle)
        cos, sin = cos[:, None, :], sin[:, None, :]
        mbarrier.wait(bar, block % 2)
        _turn(q_h, q_bias + bias_at, cos, sin, T, R, L, A, read, wide)
        _turn(k_h, k_bias + bias_at, cos, sin, T, R, L, A, read, wide)
        fence_async_shared()
        gl.thread_barrier()
        zero = gl.full([M, P], 0.0, gl.float32, square)
        scores = warpgroup_mma(q_s, k_s.permute((1, 0)), zero, use_acc=False, is_async=True)
        state *= _exp(a_last)
        state = warpgroup_mma(k_s.permute((1, 0)), weighted_s, state, is_async=True)
        a_m, own_m = gl.load(a + here + row), gl.load(own + here + row)
        a_n, later_n = gl.load(a + here + column), gl.load(later + here + column)
        past, same = row[:, None] > column[None, :], row[:, None] == column[None, :]
        scores = warpgroup_mma_wait(1, deps=(scores,))
        y = warpgroup_mma(q_s, state_s, zero, use_acc=False, is_async=True)
        decay = gl.where(past, _exp(gl.where(past, a_m[:, None] - a_n[None, :], 0.0)) * later_n[None, :], 0.0)
        p = gl.convert_layout((scores * (decay + gl.where(same, own_m[:, None], 0.0))).to(dtype), left)
        y = warpgroup_mma_wait(0, deps=(y,))
        y *= _exp(a_m)[:, None]
        y = warpgroup_mma(p, v_s, y, is_async=True)
        y, state, p = warpgroup_mma_wait(0, deps=(y, state, p))
        gl.thread_barrier()  # every warp has waited: what q, k and the state lay in is free
        if block + 1 < BLOCKS:
            _both(q_from, k_from, (at + T) * R, group, bar, q_h, k_h, M, L)
        y_s.store(y)
        gl.thread_barrier()
        y_t = gl.convert_layout(gl.reshape(y_s.load(read_y), [T, R, P]), cube)
        y_t += skipped * _value(x_t, x_t, up, up, table_at, True)
        gated = z_t.to(gl.float32)[:, None, :] * gl.load(gate + table_at)[None, :, :]
        y_t = y_t * gl.load(down + table_at)[None, :, :] * gated * _sigmoid(gated)
        gl.store(out + at * (H * P) + narrow_at, gl.sum(y_t, axis=1).to(dtype))
    mbarrier.invalidate(bar)


@gluon.jit
def _both(q_from, k_from, row, column, bar, q_h, k_h, M: gl.constexpr, L: gl.constexpr):
    mbarrier.expect(bar, 2 * 4 * M * L)
    tma.async_copy_global_to_shared(q_from, [row, column], bar, q_h.index(0))
    tma.async_copy_global_to_shared(q_from, [row, column + L], bar, q_h.index(1))
    tma.async_copy_global_to_shared(k_from, [row, column], bar, k_h.index(0))
    tma.async_copy_global_to_shared(k_from, [row, column + L], bar, k_h.index(1))


def _rows(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x [..., heads, width], ``rows`` rows of ``columns`` of a head's numbers at a time."""
    return _descriptor(x.view(-1, x.shape[-2] * x.shape[-1]), [rows, columns])


def _whole(x: Tensor) -> TensorDescriptor:
    """Of x [..., N, P], one [N, P] at a time."""
    return _descriptor(x.view(-1, x.shape[-1]), list(x.shape[-2:]))


def _descriptor(x: Tensor, block: list[int]) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))


def run_forward(q, k, x, q_bias, k_bias, up, down, z, skip, gate, angles, a, own, later, chunk, **options):
    """[B, S, H, P] of what ``scan.mimo_backward`` has."""
    rows, length, rank, groups, width = q.shape
    heads, channels = x.shape[2:]
    out = torch.empty_like(x)
    mimo_forward[heads, rows](
        *(_rows(t, chunk * rank, width // 2) for t in (q, k)), q_bias, k_bias, angles, x, z, up, gate, down, skip,
        a, own, later, out, S=length, H=heads, G=groups, R=rank, N=width, P=channels, A=angles.shape[-1], T=chunk,
        num_warps=4, **options,
    )
    return out
