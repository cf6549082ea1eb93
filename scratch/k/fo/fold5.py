from __future__ import annotations
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.hopper.fold import _where_there, _put_where, _both_halves

@gluon.jit
def fold_warps(x, bias, angles, d_turned, d_x, d_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    FIRST: gl.constexpr, COLUMNS: gl.constexpr, HEADS: gl.constexpr, WARPS: gl.constexpr):
    LANES: gl.constexpr = 128 // COLUMNS  # along heads
    LH: gl.constexpr = LANES * WARPS
    PER: gl.constexpr = HEADS // LH
    SUMS: gl.constexpr = 2 * R * COLUMNS
    cube: gl.constexpr = gl.BlockedLayout([R, PER, 4], [1, LANES, COLUMNS // 4], [1, WARPS, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([LH, SUMS // 32 // WARPS], [1, 32], [1, WARPS], [1, 0])
    part_s = gl.allocate_shared_memory(gl.float32, [LH, SUMS], gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    i_s = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = i_s // (R * COLUMNS) * (N // 2) + i_s // COLUMNS % R * (G * N) + i_s % COLUMNS
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
    of_group, first = gl.program_id(0) % G, FIRST + gl.program_id(0) // G * COLUMNS
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None]
    c = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None]
    c_a = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_heads))[None, :]
    r_x = gl.arange(0, R, gl.SliceLayout(1, of_ranks))[:, None]
    c_x = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_ranks))[None, :]
    there, there_a = h < H // G, h_a < H // G
    at, bias_at, angle_at, x_at = r * (H * N) + h * N + c, h * (R * N) + r * N + c, h_a * A + c_a, r_x * (G * N) + c_x
    start = (gl.program_id(1) * TOKENS).to(gl.int64)
    head = of_group * (H // G)
    bias_p = bias + (head * (R * N) + first) + bias_at
    wide_p, angle_p = d_turned + (head * N + first), head * A + first
    x_p, sum_p = of_group * N + first, d_x + (of_group * N + first)
    low_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    high_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    low_next, high_next = _both_halves(wide_p + start * (R * H * N) + at, there, N, ALL)
    for step in range(TOKENS):
        token = start + step
        low, high = low_next.to(gl.float32), high_next.to(gl.float32)
        then = start + gl.minimum(step + 1, TOKENS - 1)
        low_next, high_next = _both_halves(wide_p + then * (R * H * N) + at, there, N, ALL)
        if FIRST < A:
            of_token = token * (H * A) + angle_p
            cos, sin = turns(_where_there(angles + of_token + angle_at, there_a, ALL))
            cos, sin = cos[None, :, :], sin[None, :, :]
            low, high = cos * low + sin * high, cos * high - sin * low
            given = x + (token * (R * G * N) + x_p) + x_at
            x_low, x_high = gl.load(given).to(gl.float32), gl.load(given + N // 2).to(gl.float32)
            bias_low, bias_high = _both_halves(bias_p, there, N, ALL)
            crossed = high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high)
            _put_where(d_angle + of_token + angle_at, gl.sum(crossed, axis=0), there_a, ALL)
        low_sum += low
        high_sum += high
        low_part = gl.sum(gl.reshape(low, [R, LH, PER, COLUMNS]), axis=2)
        high_part = gl.sum(gl.reshape(high, [R, LH, PER, COLUMNS]), axis=2)
        parts = gl.reshape(gl.permute(gl.join(low_part, high_part), (1, 3, 0, 2)), [LH, SUMS])
        part_s.store(parts)
        sums = gl.sum(part_s.load(flat), axis=0)
        gl.store(sum_p + token * (R * G * N) + sum_at, sums.to(d_x.dtype.element_ty))
    part = d_bias + (gl.program_id(1) * (H * R * N) + head * (R * N) + first) + bias_at
    _put_where(part, low_sum, there, ALL)
    _put_where(part + N // 2, high_sum, there, ALL)
