from __future__ import annotations
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.hopper.fold import _where_there, _put_where, _both_halves


@gluon.jit
def _part(x, R: gl.constexpr, LH: gl.constexpr, PER: gl.constexpr, COLUMNS: gl.constexpr):
    return gl.sum(gl.reshape(x, [R, LH, PER, COLUMNS]), axis=2)


@gluon.jit
def _put_parts(low, high, part_s, R: gl.constexpr, LH: gl.constexpr, PER: gl.constexpr, COLUMNS: gl.constexpr):
    both = gl.join(_part(low, R, LH, PER, COLUMNS), _part(high, R, LH, PER, COLUMNS))
    part_s.store(gl.reshape(gl.permute(both, (1, 3, 0, 2)), [LH, 2 * R * COLUMNS]))


@gluon.jit
def _across(x, bias_p, low, high, there, N: gl.constexpr, ALL: gl.constexpr):
    x_low, x_high = gl.load(x).to(gl.float32), gl.load(x + N // 2).to(gl.float32)
    bias_low, bias_high = _both_halves(bias_p, there, N, ALL)
    return gl.sum(high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high), axis=0)


@gluon.jit
def _fold(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle, part_s, group, 
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    FIRST: gl.constexpr, COLUMNS: gl.constexpr, HEADS: gl.constexpr, WARPS: gl.constexpr, LATE: gl.constexpr):
    LANES: gl.constexpr = 128 // COLUMNS
    LH: gl.constexpr = LANES * WARPS
    PER: gl.constexpr = HEADS // LH
    SUMS: gl.constexpr = 2 * R * COLUMNS
    cube: gl.constexpr = gl.BlockedLayout([R, PER, 4], [1, LANES, COLUMNS // 4], [1, WARPS, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([LH, SUMS // 32 // WARPS], [1, 32], [1, WARPS], [1, 0])
    i_s = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = i_s // (R * COLUMNS) * (N // 2) + i_s // COLUMNS % R * (G * N) + i_s % COLUMNS
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
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
    head = group * (H // G)
    of_bias = head * (R * N) + FIRST
    qb_p, kb_p = q_bias + of_bias + bias_at, k_bias + of_bias + bias_at
    of_wide, of_angle, of_x = head * N + FIRST, head * A + FIRST, group * N + FIRST
    zero = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    ql_sum, qh_sum, kl_sum, kh_sum = zero, zero, zero, zero
    ql_next, qh_next = _both_halves(d_turned_q + (start * (R * H * N) + of_wide) + at, there, N, ALL)
    kl_next, kh_next = _both_halves(d_turned_k + (start * (R * H * N) + of_wide) + at, there, N, ALL)
    dtype: gl.constexpr = d_q.dtype.element_ty
    for step in range(TOKENS):
        token = start + step
        then = (start + gl.minimum(step + 1, TOKENS - 1)) * (R * H * N) + of_wide
        of_token, of_given = token * (H * A) + of_angle, token * (R * G * N) + of_x
        if LATE:
            before = of_given - R * G * N + sum_at
            gl.store(d_q + before, gl.sum(part_s.index(0).load(flat), axis=0).to(dtype), mask=step > 0)
            gl.store(d_k + before, gl.sum(part_s.index(1).load(flat), axis=0).to(dtype), mask=step > 0)
        if FIRST < A:
            cos, sin = turns(_where_there(angles + of_token + angle_at, there_a, ALL))
            cos, sin = cos[None, :, :], sin[None, :, :]
        low, high = ql_next.to(gl.float32), qh_next.to(gl.float32)
        ql_next, qh_next = _both_halves(d_turned_q + then + at, there, N, ALL)
        if FIRST < A:
            low, high = cos * low + sin * high, cos * high - sin * low
            across = _across(q + of_given + x_at, qb_p, low, high, there, N, ALL)
        ql_sum += low
        qh_sum += high
        _put_parts(low, high, part_s.index(0), R, LH, PER, COLUMNS)
        low, high = kl_next.to(gl.float32), kh_next.to(gl.float32)
        kl_next, kh_next = _both_halves(d_turned_k + then + at, there, N, ALL)
        if FIRST < A:
            low, high = cos * low + sin * high, cos * high - sin * low
            across += _across(k + of_given + x_at, kb_p, low, high, there, N, ALL)
            _put_where(d_angle + of_token + angle_at, across, there_a, ALL)
        kl_sum += low
        kh_sum += high
        _put_parts(low, high, part_s.index(1), R, LH, PER, COLUMNS)
        if not LATE:
            gl.store(d_q + of_given + sum_at, gl.sum(part_s.index(0).load(flat), axis=0).to(dtype))
            gl.store(d_k + of_given + sum_at, gl.sum(part_s.index(1).load(flat), axis=0).to(dtype))
    if LATE:
        last = (start + TOKENS - 1) * (R * G * N) + of_x + sum_at
        gl.store(d_q + last, gl.sum(part_s.index(0).load(flat), axis=0).to(dtype))
        gl.store(d_k + last, gl.sum(part_s.index(1).load(flat), axis=0).to(dtype))
    part = gl.program_id(1) * (H * R * N) + of_bias
    _put_where(d_q_bias + part + bias_at, ql_sum, there, ALL)
    _put_where(d_q_bias + part + bias_at + N // 2, qh_sum, there, ALL)
    _put_where(d_k_bias + part + bias_at, kl_sum, there, ALL)
    _put_where(d_k_bias + part + bias_at + N // 2, kh_sum, there, ALL)


@gluon.jit
def fold_all(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    HEADS: gl.constexpr, WARPS: gl.constexpr, LATE: gl.constexpr, WHICH: gl.constexpr):
    LH: gl.constexpr = 128 // A * WARPS
    part_s = gl.allocate_shared_memory(gl.float32, [2, LH, 2 * R * A], gl.SwizzledSharedLayout(16, 1, 8, [2, 1, 0]) if False else gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    if WHICH == 2:
        if gl.program_id(0) < G:
            _fold(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle, part_s, gl.program_id(0), H, G, R, N, A, TOKENS, 0, A, HEADS, WARPS, LATE)
        else:
            _fold(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle, part_s, gl.program_id(0) - G, H, G, R, N, A, TOKENS, A, A, HEADS, WARPS, LATE)
    else:
        _fold(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle, part_s, gl.program_id(0), H, G, R, N, A, TOKENS, WHICH * A, A, HEADS, WARPS, LATE)
