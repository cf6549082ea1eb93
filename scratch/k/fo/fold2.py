from __future__ import annotations
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.hopper.fold import _where_there, _put_where, _both_halves

@gluon.jit
def fold_one(x, bias, angles, d_turned, d_x, d_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    FIRST: gl.constexpr, COLUMNS: gl.constexpr, HEADS: gl.constexpr, WH: gl.constexpr, WC: gl.constexpr):
    LC: gl.constexpr = COLUMNS // WC // 4  # lanes along columns
    cube: gl.constexpr = gl.BlockedLayout([R, HEADS // (32 // LC) // WH, 4], [1, 32 // LC, LC], [1, WH, WC], [2, 1, 0])
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
        gl.store(d_x + place, gl.sum(low, axis=1).to(d_x.dtype.element_ty))
        gl.store(d_x + place + N // 2, gl.sum(high, axis=1).to(d_x.dtype.element_ty))
    part = d_bias + gl.program_id(1) * (H * R * N) + bias_at
    _put_where(part, low_sum, there, ALL)
    _put_where(part + N // 2, high_sum, there, ALL)

@gluon.jit
def _turned_back(low, high, cos, sin):
    return cos * low + sin * high, cos * high - sin * low

@gluon.jit
def _crossed(x, bias, place, bias_at, low, high, there, N: gl.constexpr, ALL: gl.constexpr):
    x_low, x_high = gl.load(x + place).to(gl.float32), gl.load(x + place + N // 2).to(gl.float32)
    bias_low, bias_high = _both_halves(bias + bias_at, there, N, ALL)
    return gl.sum(high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high), axis=0)

@gluon.jit
def _add4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h

@gluon.jit
def fold_both(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    COLUMNS: gl.constexpr, HEADS: gl.constexpr, WH: gl.constexpr, WC: gl.constexpr):
    LC: gl.constexpr = COLUMNS // WC // 4
    cube: gl.constexpr = gl.BlockedLayout([R, HEADS // (32 // LC) // WH, 4], [1, 32 // LC, LC], [1, WH, WC], [2, 1, 0])
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
    group, first = gl.program_id(0) % G, gl.program_id(0) // G * COLUMNS
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
    zero = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    ql_sum, qh_sum, kl_sum, kh_sum = zero, zero, zero, zero
    first_at = start.to(gl.int64) * (R * H * N) + at
    ql_next, qh_next = _both_halves(d_turned_q + first_at, there, N, ALL)
    kl_next, kh_next = _both_halves(d_turned_k + first_at, there, N, ALL)
    for step in range(TOKENS):
        token = start + step
        ql, qh, kl, kh = ql_next.to(gl.float32), qh_next.to(gl.float32), kl_next.to(gl.float32), kh_next.to(gl.float32)
        next_at = (start + gl.minimum(step + 1, TOKENS - 1)).to(gl.int64) * (R * H * N) + at
        ql_next, qh_next = _both_halves(d_turned_q + next_at, there, N, ALL)
        kl_next, kh_next = _both_halves(d_turned_k + next_at, there, N, ALL)
        place, angle = token * (R * G * N) + x_at, token * (H * A) + angle_at
        cos, sin = turns(_where_there(angles + angle, there_a, ALL))
        cos, sin = cos[None, :, :], sin[None, :, :]
        ql, qh = _turned_back(ql, qh, cos, sin)
        kl, kh = _turned_back(kl, kh, cos, sin)
        across = _crossed(q, q_bias, place, bias_at, ql, qh, there, N, ALL)
        across += _crossed(k, k_bias, place, bias_at, kl, kh, there, N, ALL)
        _put_where(d_angle + angle, across, there_a, ALL)
        ql_sum += ql
        qh_sum += qh
        kl_sum += kl
        kh_sum += kh
        ql, qh, kl, kh = gl.reduce((ql, qh, kl, kh), 1, _add4)
        dtype: gl.constexpr = d_q.dtype.element_ty
        gl.store(d_q + place, ql.to(dtype))
        gl.store(d_q + place + N // 2, qh.to(dtype))
        gl.store(d_k + place, kl.to(dtype))
        gl.store(d_k + place + N // 2, kh.to(dtype))
    part = gl.program_id(1) * (H * R * N) + bias_at
    _put_where(d_q_bias + part, ql_sum, there, ALL)
    _put_where(d_q_bias + part + N // 2, qh_sum, there, ALL)
    _put_where(d_k_bias + part, kl_sum, there, ALL)
    _put_where(d_k_bias + part + N // 2, kh_sum, there, ALL)
