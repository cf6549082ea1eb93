from __future__ import annotations
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from model.layers.mamba3.hopper.parts import turns
from model.layers.mamba3.hopper.fold import _where_there, _put_where, _both_halves


@gluon.jit
def _over_heads(low, high, part_s, to, R: gl.constexpr, LH: gl.constexpr, PER: gl.constexpr, COLUMNS: gl.constexpr, flat: gl.constexpr):
    low_part = gl.sum(gl.reshape(low, [R, LH, PER, COLUMNS]), axis=2)
    high_part = gl.sum(gl.reshape(high, [R, LH, PER, COLUMNS]), axis=2)
    part_s.store(gl.reshape(gl.permute(gl.join(low_part, high_part), (1, 3, 0, 2)), [LH, 2 * R * COLUMNS]))
    sums = gl.sum(part_s.load(flat), axis=0)
    gl.store(to, sums.to(to.dtype.element_ty))


@gluon.jit
def _across(x, bias_p, low, high, there, N: gl.constexpr, ALL: gl.constexpr):
    x_low, x_high = gl.load(x).to(gl.float32), gl.load(x + N // 2).to(gl.float32)
    bias_low, bias_high = _both_halves(bias_p, there, N, ALL)
    return gl.sum(high * (x_low[:, None, :] + bias_low) - low * (x_high[:, None, :] + bias_high), axis=0)


@gluon.jit
def fold_pair(q, k, q_bias, k_bias, angles, d_turned_q, d_turned_k, d_q, d_k, d_q_bias, d_k_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    COLUMNS: gl.constexpr, HEADS: gl.constexpr, WARPS: gl.constexpr):
    LANES: gl.constexpr = 128 // COLUMNS
    LH: gl.constexpr = LANES * WARPS
    PER: gl.constexpr = HEADS // LH
    SUMS: gl.constexpr = 2 * R * COLUMNS
    cube: gl.constexpr = gl.BlockedLayout([R, PER, 4], [1, LANES, COLUMNS // 4], [1, WARPS, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([LH, SUMS // 32 // WARPS], [1, 32], [1, WARPS], [1, 0])
    q_s = gl.allocate_shared_memory(gl.float32, [LH, SUMS], gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    k_s = gl.allocate_shared_memory(gl.float32, [LH, SUMS], gl.SwizzledSharedLayout(16, 1, 8, [1, 0]))
    i_s = gl.arange(0, SUMS, gl.SliceLayout(0, flat))
    sum_at = i_s // (R * COLUMNS) * (N // 2) + i_s // COLUMNS % R * (G * N) + i_s % COLUMNS
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    ALL: gl.constexpr = HEADS == H // G
    of_group, first = gl.program_id(0) % G, gl.program_id(0) // G * COLUMNS
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
    of_bias = head * (R * N) + first
    qb_p, kb_p = q_bias + of_bias + bias_at, k_bias + of_bias + bias_at
    of_wide, of_angle, of_x = head * N + first, head * A + first, of_group * N + first
    zero = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    ql_sum, qh_sum, kl_sum, kh_sum = zero, zero, zero, zero
    ql_next, qh_next = _both_halves(d_turned_q + (start * (R * H * N) + of_wide) + at, there, N, ALL)
    kl_next, kh_next = _both_halves(d_turned_k + (start * (R * H * N) + of_wide) + at, there, N, ALL)
    for step in range(TOKENS):
        token = start + step
        then = (start + gl.minimum(step + 1, TOKENS - 1)) * (R * H * N) + of_wide
        of_token, of_given = token * (H * A) + of_angle, token * (R * G * N) + of_x
        cos, sin = turns(_where_there(angles + of_token + angle_at, there_a, ALL))
        cos, sin = cos[None, :, :], sin[None, :, :]
        low, high = ql_next.to(gl.float32), qh_next.to(gl.float32)
        ql_next, qh_next = _both_halves(d_turned_q + then + at, there, N, ALL)
        low, high = cos * low + sin * high, cos * high - sin * low
        across = _across(q + of_given + x_at, qb_p, low, high, there, N, ALL)
        ql_sum += low
        qh_sum += high
        _over_heads(low, high, q_s, d_q + of_given + sum_at, R, LH, PER, COLUMNS, flat)
        low, high = kl_next.to(gl.float32), kh_next.to(gl.float32)
        kl_next, kh_next = _both_halves(d_turned_k + then + at, there, N, ALL)
        low, high = cos * low + sin * high, cos * high - sin * low
        across += _across(k + of_given + x_at, kb_p, low, high, there, N, ALL)
        kl_sum += low
        kh_sum += high
        _over_heads(low, high, k_s, d_k + of_given + sum_at, R, LH, PER, COLUMNS, flat)
        _put_where(d_angle + of_token + angle_at, across, there_a, ALL)
    part = gl.program_id(1) * (H * R * N) + of_bias
    _put_where(d_q_bias + part + bias_at, ql_sum, there, ALL)
    _put_where(d_q_bias + part + bias_at + N // 2, qh_sum, there, ALL)
    _put_where(d_k_bias + part + bias_at, kl_sum, there, ALL)
    _put_where(d_k_bias + part + bias_at + N // 2, kh_sum, there, ALL)
