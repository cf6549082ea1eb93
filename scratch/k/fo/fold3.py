from __future__ import annotations
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.hopper.fold import _where_there, _put_where, _both_halves

@gluon.jit
def fold_smem(x, bias, angles, d_turned, d_x, d_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    FIRST: gl.constexpr, COLUMNS: gl.constexpr, HEADS: gl.constexpr):
    LH: gl.constexpr = 128 // COLUMNS  # lanes along heads
    PER: gl.constexpr = HEADS // LH
    SUMS: gl.constexpr = 2 * R * COLUMNS
    cube: gl.constexpr = gl.BlockedLayout([R, PER, 4], [1, LH, COLUMNS // 4], [1, 1, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([LH, SUMS // 32], [1, 32], [1, 1], [1, 0])
    part_s = gl.allocate_shared_memory(gl.float32, [LH, SUMS], gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    i_s = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = i_s // (R * COLUMNS) * (N // 2) + i_s // COLUMNS % R * (G * N) + i_s % COLUMNS
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
    group, first = gl.program_id(0) % G, FIRST + gl.program_id(0) // G * COLUMNS
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None] + group * (H // G)
    c = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :] + first
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None] + group * (H // G)
    c_a = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_heads))[None, :] + first
    r_x = gl.arange(0, R, gl.SliceLayout(1, of_ranks))[:, None]
    c_x = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_ranks))[None, :] + first
    there, there_a = h < (group + 1) * (H // G), h_a < (group + 1) * (H // G)
    at, bias_at, angle_at = (r * H + h) * N + c, (h * R + r) * N + c, h_a * A + c_a
    x_at = (r_x * G + group) * N + c_x
    start = gl.program_id(1) * TOKENS
    low_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    high_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    low_next, high_next = _both_halves(d_turned + start.to(gl.int64) * (R * H * N) + at, there, N, ALL)
    for step in range(TOKENS):
        token = start + step
        low, high = low_next.to(gl.float32), high_next.to(gl.float32)
        then = start + gl.minimum(step + 1, TOKENS - 1)
        low_next, high_next = _both_halves(d_turned + then.to(gl.int64) * (R * H * N) + at, there, N, ALL)
        place = token * (R * G * N) + x_at
        if FIRST < A:
            angle = token * (H * A) + angle_at
            cos, sin = turns(_where_there(angles + angle, there_a, ALL))
            cos, sin = cos[None, :, :], sin[None, :, :]
            low, high = cos * low + sin * high, cos * high - sin * low
            x_low, x_high = gl.load(x + place).to(gl.float32), gl.load(x + place + N // 2).to(gl.float32)
            bias_low, bias_high = _both_halves(bias + bias_at, there, N, ALL)
            crossed = high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high)
            _put_where(d_angle + angle, gl.sum(crossed, axis=0), there_a, ALL)
        low_sum += low
        high_sum += high
        low_part = gl.sum(gl.reshape(low, [R, LH, PER, COLUMNS]), axis=2)
        high_part = gl.sum(gl.reshape(high, [R, LH, PER, COLUMNS]), axis=2)
        parts = gl.reshape(gl.permute(gl.join(low_part, high_part), (1, 3, 0, 2)), [LH, SUMS])
        part_s.store(parts)
        sums = gl.sum(part_s.load(flat), axis=0)
        gl.store(d_x + token * (R * G * N) + group * N + first + sum_at, sums.to(d_x.dtype.element_ty))
    part = d_bias + gl.program_id(1) * (H * R * N) + bias_at
    _put_where(part, low_sum, there, ALL)
    _put_where(part + N // 2, high_sum, there, ALL)

