"""Sums over a group's heads, and over tokens, of gradients of q and k in channels that do not turn, by tensor cores.

They are sums of bf16 numbers alone: products with matrices of zeros and ones, exact but for how fp32 rounds.

    _fetch, a pair of tokens  =filled[AHEAD]=>  all warps' products
    the place's next pair     <=gl.thread_barrier=  all warps' products of it are done
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(
    d_q_from: gl.tensor,
    d_k_from: gl.tensor,
    d_q_s: gl.tensor,
    d_k_s: gl.tensor,
    filled: gl.tensor,
    place: gl.tensor,
    token: gl.tensor,
    head: gl.tensor,
    R: gl.constexpr,
    A: gl.constexpr,
) -> None:
    bar = filled.index(place)
    mbarrier.expect(bar, d_q_from.block_type.nbytes + d_k_from.block_type.nbytes)
    tma.async_copy_global_to_shared(d_q_from, [token * R, head, 2 * A], bar, d_q_s.index(place))
    tma.async_copy_global_to_shared(d_k_from, [token * R, head, 2 * A], bar, d_k_s.index(place))


@gluon.jit  # type: ignore[untyped-decorator]
def _columns(pair_s: gl.tensor, layout: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    """[2 A, R HEADS] of each of two tokens' gradients [2 R, HEADS, 2 A] in shared memory."""
    ROWS: gl.constexpr = pair_s.shape[0] // 2 * pair_s.shape[1]
    rows = pair_s._reinterpret(pair_s.dtype, [2, ROWS, pair_s.shape[2]], layout)
    return rows.index(0).permute((1, 0)), rows.index(1).permute((1, 0))


@gluon.jit  # type: ignore[untyped-decorator]
def sum_still(
    d_q_from: gl.tensor,
    d_k_from: gl.tensor,
    d_q: gl.tensor,
    d_k: gl.tensor,
    d_q_bias: gl.tensor,
    d_k_bias: gl.tensor,
    group: gl.tensor,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    A: gl.constexpr,
    TOKENS: gl.constexpr,
    HEADS: gl.constexpr,
    AHEAD: gl.constexpr,
) -> None:
    """Products of a token's columns [2 A, R HEADS] bf16: with the identity, added over tokens, gradients of biases
    fp32; with ones where a row is of a rank, sums over heads, of two tokens side by side: a product has 8 columns.
    """
    EACH: gl.constexpr = H // G
    ROWS: gl.constexpr = R * HEADS
    dtype: gl.constexpr = d_q_from.dtype
    tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, 2 * A], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], dtype)
    ranks: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * R, ROWS], dtype)
    of_rows: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    of_ranks: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * R, 16])
    made: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    gl.static_assert(2 * A == 64 and 2 * R == 8)
    d_q_s = gl.allocate_shared_memory(dtype, [AHEAD, 2 * R, HEADS, 2 * A], d_q_from.layout)
    d_k_s = gl.allocate_shared_memory(dtype, [AHEAD, 2 * R, HEADS, 2 * A], d_q_from.layout)
    rows_s = gl.allocate_shared_memory(dtype, [ROWS, ROWS], square)
    ranks_s = gl.allocate_shared_memory(dtype, [2, 2 * R, ROWS], ranks)
    filled = gl.allocate_shared_memory(gl.int64, [AHEAD, 1], mbarrier.MBarrierLayout())
    for one in gl.static_range(AHEAD):
        mbarrier.init(filled.index(one), count=1)
    fence_async_shared()
    gl.thread_barrier()
    start, head = gl.program_id(1) * TOKENS, group * EACH
    for one in gl.static_range(AHEAD):
        _fetch(d_q_from, d_k_from, d_q_s, d_k_s, filled, one, start + 2 * one, head, R, A)
    row = gl.arange(0, ROWS, gl.SliceLayout(0, made))[None, :]
    same = gl.arange(0, ROWS, gl.SliceLayout(1, made))[:, None] == row
    rows_s.store(gl.where(same, 1.0, 0.0).to(dtype))
    to = gl.arange(0, 2 * R, gl.SliceLayout(1, made))[:, None]
    there = row % HEADS < EACH  # others are of the next group
    ranks_s.index(0).store(gl.where((to == row // HEADS) & there, 1.0, 0.0).to(dtype))
    ranks_s.index(1).store(gl.where((to == row // HEADS + R) & there, 1.0, 0.0).to(dtype))
    fence_async_shared()
    gl.thread_barrier()
    first, second = ranks_s.index(0).permute((1, 0)), ranks_s.index(1).permute((1, 0))
    column = gl.arange(0, 2 * A, gl.SliceLayout(1, of_ranks))[:, None]
    line = gl.arange(0, 2 * R, gl.SliceLayout(0, of_ranks))[None, :]
    sum_at = line * (G * N) + column // A * (N // 2) + A + column % A
    zero = gl.full([2 * A, 2 * R], 0.0, gl.float32, of_ranks)
    q_bias_sum = gl.full([2 * A, ROWS], 0.0, gl.float32, of_rows)
    k_bias_sum = gl.full([2 * A, ROWS], 0.0, gl.float32, of_rows)
    for step in range(TOKENS // 2):
        place = step % AHEAD
        mbarrier.wait(filled.index(place), step // AHEAD % 2)
        q_0, q_1 = _columns(d_q_s.index(place), tile)
        k_0, k_1 = _columns(d_k_s.index(place), tile)
        q_sum = warpgroup_mma(q_0, first, zero, use_acc=False, is_async=True)
        k_sum = warpgroup_mma(k_0, first, zero, use_acc=False, is_async=True)
        q_sum = warpgroup_mma(q_1, second, q_sum, is_async=True)
        k_sum = warpgroup_mma(k_1, second, k_sum, is_async=True)
        q_bias_sum = warpgroup_mma(q_0, rows_s, q_bias_sum, is_async=True)
        k_bias_sum = warpgroup_mma(k_0, rows_s, k_bias_sum, is_async=True)
        q_bias_sum = warpgroup_mma(q_1, rows_s, q_bias_sum, is_async=True)
        k_bias_sum = warpgroup_mma(k_1, rows_s, k_bias_sum, is_async=True)
        q_sum, k_sum, q_bias_sum, k_bias_sum = warpgroup_mma_wait(0, deps=(q_sum, k_sum, q_bias_sum, k_bias_sum))
        gl.thread_barrier()  # all have waited for this place's phase, and every warp's products of it are done
        if step + AHEAD < TOKENS // 2:
            _fetch(d_q_from, d_k_from, d_q_s, d_k_s, filled, place, start + 2 * (step + AHEAD), head, R, A)
        given = (start + 2 * step).to(gl.int64) * (R * G * N) + group * N
        gl.store(d_q + given + sum_at, q_sum.to(dtype))
        gl.store(d_k + given + sum_at, k_sum.to(dtype))
    column = gl.arange(0, 2 * A, gl.SliceLayout(1, of_rows))[:, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(0, of_rows))[None, :]
    at = column // A * (N // 2) + A + column % A + row % HEADS * (R * N) + row // HEADS * N
    part = gl.program_id(1) * (H * R * N) + head * (R * N) + at
    gl.store(d_q_bias + part, q_bias_sum, mask=row % HEADS < EACH)
    gl.store(d_k_bias + part, k_bias_sum, mask=row % HEADS < EACH)
    for one in gl.static_range(AHEAD):
        mbarrier.invalidate(filled.index(one))
