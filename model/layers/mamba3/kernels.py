"""Triton kernels of the backward pass of Mamba-3's MIMO scan over rows of one length; ``scan`` launches them.

The scan is linear attention with a decay. With q, k [N] rotated and v, y [P] of each token and rank, in blocks of T:

    y_i = sum_{j < i} exp(a_i - a_j) later_j (q_i k_j) v_j + own_i (q_i k_i) v_i + exp(a_i) q_i S,
    S'  = exp(a_last) S + sum_j exp(a_last - a_j) later_j k_j v_jᵀ,

a the running sum of log decays in the block, i and j tokens, S [N, P] the state before it. Blocks know nothing of each
other but S and the gradient of S', so that they are computed side by side, a program each.

Arguments: q, k [B, S, R, G, N]; turned [B, S, R, H, N] likewise, rotated; x, z, above [B, S, H, P]; v and the gradient
dy of y [B, S, R, H, P]; biases [H, R, N], up, gate, down [H, R, P], skip [H] fp32; a, own, later [B, H, S] fp32; angles
[B, S, H, A] fp32; states, slopes (gradients of states) [B, S / (2 T), H, N, P] as q, one for a pair of blocks.
Component n turns with n + N / 2 by angle n < A.
"""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no inline assembly
EXP = tl.constexpr("{ .reg .f32 e; mul.f32 e, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, e; }")
SIGMOID = tl.constexpr(
    "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
    " rcp.approx.ftz.f32 $0, e; }"
)
TURNS = tl.constexpr("cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;")
WIDENED = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")  # two of bf16, as fp32; Hopper's alone


@triton.jit  # type: ignore[untyped-decorator]
def _exp(x: tl.tensor) -> tl.tensor:
    """exp of fp32 by the GPU's own approximation, good to a bit or two: tl.exp also makes what is below 2^-126."""
    if COMPILED:
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            EXP,
            "=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.exp(x)


@triton.jit  # type: ignore[untyped-decorator]
def _sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x)) of fp32, likewise."""
    if COMPILED:
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            SIGMOID,
            "=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return 1 / (1 + tl.exp(-x))


@triton.jit  # type: ignore[untyped-decorator]
def _turns(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """cos and sin of fp32, off by 1e-6 where |x| < 10,000: 2 pi as a number of nine bits and the rest of it."""
    if COMPILED:
        times = tl.floor(x * 0.15915494309189535 + 0.5)
        x = x - times * 6.28125 - times * 0.0019353071795864769
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            TURNS,
            "=r,=r,r",
            [x],
            dtype=(tl.float32, tl.float32),
            is_pure=True,
            pack=1,
        )
    else:
        return tl.cos(x), tl.sin(x)


@triton.jit  # type: ignore[untyped-decorator]
def _turned(
    x: tl.tensor,
    bias: tl.tensor,
    angles: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    H: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    A: tl.constexpr,
) -> tl.tensor:
    """Both halves [M, N / 2] of q or k of M rows (tokens by ranks) from a token on, rotated, as x."""
    row, half = tl.arange(0, M)[:, None], tl.arange(0, N // 2)[None, :]
    at = x + (token * R * G + head // (H // G)) * N
    away = row * (G * N) + half
    table = bias + head * R * N + row % R * N + half
    low = tl.load(at + away).to(tl.float32) + tl.load(table)
    high = tl.load(at + N // 2 + away).to(tl.float32) + tl.load(table + N // 2)
    angle = (token * H + head) * A + row // R * (H * A) + half
    c, s = _turns(tl.load(angles + angle, mask=half < A, other=0.0))
    dtype = x.dtype.element_ty
    return (c * low - s * high).to(dtype), (s * low + c * high).to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _tall(
    x: tl.tensor, token: tl.tensor, head: tl.tensor, H: tl.constexpr, R: tl.constexpr, M: tl.constexpr, P: tl.constexpr
) -> tl.tensor:
    """x [B, S, H, P] of one head from a token on, each token's R times: [M, P] fp32."""
    at = x + (token * H + head) * P
    return tl.load(at + tl.arange(0, M)[:, None] // R * (H * P) + tl.arange(0, P)[None, :]).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _table(x: tl.tensor, head: tl.tensor, R: tl.constexpr, M: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """One head of a table [H, R, P], for each token again: [M, P]."""
    return tl.load(x + head * R * P + tl.arange(0, M)[:, None] % R * P + tl.arange(0, P)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _values(
    x: tl.tensor,
    up: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    H: tl.constexpr,
    R: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
) -> tl.tensor:
    """v [M, P], as x."""
    return (_tall(x, token, head, H, R, M, P) * _table(up, head, R, M, P)).to(x.dtype.element_ty)


@triton.jit  # type: ignore[untyped-decorator]
def _grads(
    z: tl.tensor,
    above: tl.tensor,
    gate: tl.tensor,
    down: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    H: tl.constexpr,
    R: tl.constexpr,
    M: tl.constexpr,
    P: tl.constexpr,
) -> tl.tensor:
    """The gradient of y [M, P], as z."""
    g = _tall(z, token, head, H, R, M, P) * _table(gate, head, R, M, P)
    grad = _tall(above, token, head, H, R, M, P) * _table(down, head, R, M, P) * g * _sigmoid(g)
    return grad.to(z.dtype.element_ty)


@triton.jit  # type: ignore[untyped-decorator]
def _put(x: tl.tensor, value: tl.tensor, stride: tl.constexpr, M: tl.constexpr, N: tl.constexpr) -> None:
    tl.store(x + (tl.arange(0, M)[:, None] * stride + tl.arange(0, N)[None, :]), value.to(x.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def mimo_states(
    q: tl.tensor,
    k: tl.tensor,
    q_bias: tl.tensor,
    k_bias: tl.tensor,
    angles: tl.tensor,
    x: tl.tensor,
    z: tl.tensor,
    above: tl.tensor,
    up: tl.tensor,
    gate: tl.tensor,
    down: tl.tensor,
    a: tl.tensor,
    later: tl.tensor,
    turned_q: tl.tensor,
    turned_k: tl.tensor,
    v: tl.tensor,
    dy: tl.tensor,
    states: tl.tensor,
    slopes: tl.tensor,
    S: tl.constexpr,
    H: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    A: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """k rotated, v and what two blocks add to the state after them, or (odd programs of axis 2) q rotated, the gradient
    of y and what they add to the gradient of the state before them.
    """
    M: tl.constexpr = T * R
    L: tl.constexpr = N // 2
    head, pair, line = tl.program_id(0), tl.program_id(1), tl.program_id(2) // 2
    token, heads = (line * S + pair * 2 * T).to(tl.int64), (line * H + head).to(tl.int64) * S + pair * 2 * T
    forward = tl.program_id(2) % 2 == 0
    row = tl.arange(0, M) // R
    first_last, last = tl.load(a + heads + T - 1), tl.load(a + heads + 2 * T - 1)
    dtype = states.dtype.element_ty
    low_sum, high_sum = tl.zeros([L, P], tl.float32), tl.zeros([L, P], tl.float32)
    for one in range(2):
        at, here = token + one * T, heads + one * T
        if forward:
            low, high = _turned(k, k_bias, angles, at, head, H, G, R, M, N, A)
            given = _values(x, up, at, head, H, R, M, P)
            wide, narrow = turned_k, v
        else:
            low, high = _turned(q, q_bias, angles, at, head, H, G, R, M, N, A)
            given = _grads(z, above, gate, down, at, head, H, R, M, P)
            wide, narrow = turned_q, dy
        # after the large loads, for these wait: they are read by few threads, which tell the others
        a_m, later_m = tl.load(a + here + row), tl.load(later + here + row)
        before, after = tl.where(one == 0, 0.0, first_last), tl.where(one == 0, first_last + last, last)
        weight = _exp(tl.where(forward, after - a_m, before + a_m)) * tl.where(forward, later_m, 1.0)
        wide += (at * R * H + head) * N
        _put(wide, low, H * N, M, L)
        _put(wide + L, high, H * N, M, L)
        _put(narrow + (at * R * H + head) * P, given, H * P, M, P)
        given = (given * weight[:, None]).to(dtype)
        low_sum = tl.dot(tl.trans(low), given, low_sum, input_precision="ieee")
        high_sum = tl.dot(tl.trans(high), given, high_sum, input_precision="ieee")
    place = ((line * (S // (2 * T)) + pair) * H + head).to(tl.int64) * N * P
    to = (states if forward else slopes) + place
    _put(to, low_sum, P, L, P)
    _put(to + L * P, high_sum, P, L, P)


@triton.jit  # type: ignore[untyped-decorator]
def _decay(a: tl.tensor, heads: tl.tensor, pair: tl.tensor, T: tl.constexpr) -> tl.tensor:
    """Of both blocks of a pair."""
    at = a + heads + pair * 2 * T
    return _exp(tl.load(at + T - 1) + tl.load(at + 2 * T - 1))


@triton.jit  # type: ignore[untyped-decorator]
def mimo_carry(
    states: tl.tensor,
    slopes: tl.tensor,
    a: tl.tensor,
    S: tl.constexpr,
    H: tl.constexpr,
    SIZE: tl.constexpr,
    T: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Each pair's share becomes the state before it, or (odd programs of axis 2) the gradient of the one after it.

    AHEAD pairs are loaded at a time: the loads of one would wait for those of the one before.
    """
    part, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2) // 2
    PAIRS: tl.constexpr = S // (2 * T)
    step = tl.arange(0, AHEAD)
    at = part * BLOCK + tl.arange(0, BLOCK)
    heads = (row * H + head).to(tl.int64) * S
    carried = tl.zeros([BLOCK], tl.float32)
    backward = tl.program_id(2) % 2 == 1
    for block in range(0, PAIRS // AHEAD):
        pairs = block * AHEAD + step
        pairs = tl.where(backward, PAIRS - 1 - pairs, pairs)
        place = ((row * PAIRS + pairs) * H + head).to(tl.int64)[:, None] * SIZE + at[None, :]
        shares = (tl.load(slopes + place) if backward else tl.load(states + place)).to(tl.float32)
        decays = _decay(a, heads, pairs, T)
        entering = tl.zeros([AHEAD, BLOCK], tl.float32)
        for one in tl.static_range(AHEAD):
            chosen = (step == one)[:, None]
            entering = tl.where(chosen, carried[None, :], entering)
            decay = tl.sum(tl.where(step == one, decays, 0.0), axis=0)
            carried = decay * carried + tl.sum(tl.where(chosen, shares, 0.0), axis=0)
        if backward:
            tl.store(slopes + place, entering.to(slopes.dtype.element_ty))
        else:
            tl.store(states + place, entering.to(states.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _rows(
    x: tl.tensor, first: tl.tensor, head: tl.tensor, H: tl.constexpr, M: tl.constexpr, N: tl.constexpr
) -> tl.tensor:
    """[M, N] of one head of x [B, S, R, H, N] from its row ``first`` on."""
    return tl.load(x + (first * H + head) * N + tl.arange(0, M)[:, None] * (H * N) + tl.arange(0, N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _held(one: tl.tensor, two: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Both bf16 tensors, no sooner than both are loaded: Triton would change the layout of one, which waits for it,
    before it loads the other."""
    if COMPILED:
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            "mov.b32 $0, $2; mov.b32 $1, $3;",
            "=r,=r,r,r",
            [one, two],
            dtype=(one.dtype, two.dtype),
            is_pure=False,
            pack=2,
        )
    else:
        return one, two


@triton.jit  # type: ignore[untyped-decorator]
def _held_five(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, e: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The same of five fp32 tensors."""
    if COMPILED:
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            "mov.b32 $0, $5; mov.b32 $1, $6; mov.b32 $2, $7; mov.b32 $3, $8; mov.b32 $4, $9;",
            "=r,=r,=r,=r,=r,r,r,r,r,r",
            [a, b, c, d, e],
            dtype=(a.dtype, b.dtype, c.dtype, d.dtype, e.dtype),
            is_pure=False,
            pack=1,
        )
    else:
        return a, b, c, d, e


@triton.jit  # type: ignore[untyped-decorator]
def mimo_backward(
    turned_q: tl.tensor,
    turned_k: tl.tensor,
    v: tl.tensor,
    dy: tl.tensor,
    a: tl.tensor,
    own: tl.tensor,
    later: tl.tensor,
    states: tl.tensor,
    slopes: tl.tensor,
    y: tl.tensor,
    dv: tl.tensor,
    d_turned_q: tl.tensor,
    d_turned_k: tl.tensor,
    d_a: tl.tensor,
    d_own: tl.tensor,
    d_later: tl.tensor,
    S: tl.constexpr,
    H: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    P: tl.constexpr,
    T: tl.constexpr,
) -> None:
    """One block of one head, from the states before and the gradients of the states after each pair of blocks.

    y and dv [B, S, R, H, P] without what skips; d_turned_q, d_turned_k [B, S, R, H, N]; d_a, d_own, d_later [B, H, S]
    fp32.
    """
    M: tl.constexpr = T * R
    dtype = turned_q.dtype.element_ty
    head, block, line = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    odd = block % 2 == 1
    token, heads = (line * S + block * T).to(tl.int64), (line * H + head).to(tl.int64) * S + block * T
    row, step = tl.arange(0, M) // R, tl.arange(0, T)
    at = ((line * (S // (2 * T)) + block // 2) * H + head).to(tl.int64) * N * P
    at += tl.arange(0, N)[:, None] * P + tl.arange(0, P)[None, :]
    # All loads are issued before anything waits for one of them; in another order they are issued part by part.
    # The other block of the pair lies between this one and the state, or the gradient of the state, that is there.
    beside, beside_heads = tl.where(odd, token - T, token + T), tl.where(odd, heads - T, heads + T)
    if odd:
        wide_from, narrow_from = turned_k, v
    else:
        wide_from, narrow_from = turned_q, dy
    wide = _rows(wide_from, beside * R, head, H, M, N)
    narrow = _rows(narrow_from, beside * R, head, H, M, P)
    state, slope = tl.load(states + at), tl.load(slopes + at)
    q, k = _rows(turned_q, token * R, head, H, M, N), _rows(turned_k, token * R, head, H, M, N)
    v_m, dy_m = _rows(v, token * R, head, H, M, P), _rows(dy, token * R, head, H, M, P)
    a_m, own_m, later_m = tl.load(a + heads + row), tl.load(own + heads + row), tl.load(later + heads + row)
    other, beside_later = tl.load(a + beside_heads + row), tl.load(later + beside_heads + row)
    a_last, other_last = tl.load(a + heads + T - 1), tl.load(a + beside_heads + T - 1)
    state, slope = _held(state, slope)
    a_m, own_m, later_m, other, beside_later = _held_five(a_m, own_m, later_m, other, beside_later)

    weight = _exp(tl.where(odd, other_last - other, other)) * tl.where(odd, beside_later, 1.0)
    carried = tl.where(odd, state, slope)
    carried = tl.dot(
        tl.trans(wide),
        (narrow * weight[:, None]).to(dtype),
        carried.to(tl.float32) * _exp(other_last),
        input_precision="ieee",
    ).to(dtype)
    if odd:
        state = carried
    else:
        slope = carried
    carried = tl.sum(tl.sum(state.to(tl.float32) * slope, axis=1), axis=0)

    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    pairs = tl.dot(dy_m, tl.trans(v_m), input_precision="ieee")
    past, same = row[:, None] > row[None, :], row[:, None] == row[None, :]
    both = scores * pairs
    tl.store(d_own + heads + step, tl.sum(tl.reshape(tl.sum(tl.where(same, both, 0.0), axis=1), [T, R]), axis=1))
    decay = tl.where(past, _exp(tl.where(past, a_m[:, None] - a_m[None, :], 0.0)), 0.0)
    both *= decay
    d_a_m = tl.sum(both * later_m[None, :], axis=1)
    d_later_m = tl.sum(both, axis=0)
    weight = decay * later_m[None, :] + tl.where(same, own_m[:, None], 0.0)
    scores, pairs = (scores * weight).to(dtype), (pairs * weight).to(dtype)

    narrow = (token * R * H + head) * P + tl.arange(0, M)[:, None] * (H * P) + tl.arange(0, P)[None, :]
    e_m = _exp(a_m)
    value = tl.dot(q, state, input_precision="ieee") * e_m[:, None]
    d_a_m += tl.sum(value * dy_m, axis=1)
    value = tl.dot(scores, v_m, value, input_precision="ieee")
    tl.store(y + narrow, value.to(dtype))

    left = _exp(a_last - a_m)
    value = tl.dot(k, slope, input_precision="ieee") * left[:, None]
    out_m = tl.sum(value * v_m, axis=1)
    d_later_m += out_m
    d_a_m -= d_later_m * later_m
    value = tl.dot(tl.trans(scores), dy_m, value * later_m[:, None], input_precision="ieee")
    tl.store(dv + narrow, value.to(dtype))

    d_last = carried * _exp(a_last) + tl.sum(out_m * later_m, axis=0)
    d_a_c = tl.sum(tl.reshape(d_a_m, [T, R]), axis=1) + tl.where(step == T - 1, d_last, 0.0)
    tl.store(d_a + heads + step, d_a_c)
    tl.store(d_later + heads + step, tl.sum(tl.reshape(d_later_m, [T, R]), axis=1))

    wide = (token * R * H + head) * N + tl.arange(0, M)[:, None] * (H * N) + tl.arange(0, N)[None, :]
    grad = tl.dot((dy_m * e_m[:, None]).to(dtype), tl.trans(state), input_precision="ieee")
    tl.store(d_turned_q + wide, tl.dot(pairs, k, grad, input_precision="ieee").to(dtype))
    grad = tl.dot((v_m * (left * later_m)[:, None]).to(dtype), tl.trans(slope), input_precision="ieee")
    tl.store(d_turned_k + wide, tl.dot(tl.trans(pairs), q, grad, input_precision="ieee").to(dtype))


@triton.jit  # type: ignore[untyped-decorator]
def _narrow(x: tl.tensor, token: tl.tensor, head: tl.tensor, H: tl.constexpr, P: tl.constexpr) -> tl.tensor:
    """A token's x of some heads, [heads, P] fp32."""
    return tl.load(x + (token * H + head[:, None]) * P + tl.arange(0, P)[None, :]).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def mimo_gates(
    x: tl.tensor,
    z: tl.tensor,
    above: tl.tensor,
    up: tl.tensor,
    gate: tl.tensor,
    down: tl.tensor,
    skip: tl.tensor,
    y: tl.tensor,
    dv: tl.tensor,
    d_x: tl.tensor,
    d_z: tl.tensor,
    d_up: tl.tensor,
    d_gate: tl.tensor,
    d_down: tl.tensor,
    d_skip: tl.tensor,
    H: tl.constexpr,
    R: tl.constexpr,
    P: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """From y and dv [B, S, R, H, P] without what skips: d_x, d_z [B, S, H, P]; parts of each program's tokens, fp32,
    d_up, d_gate, d_down [B S / TOKENS, H, R, P], d_skip [B S / TOKENS, H].
    """
    head, ranks = tl.program_id(0) * HEADS + tl.arange(0, HEADS), tl.arange(0, R)
    cols = tl.arange(0, P)[None, None, :]
    table = (head[:, None, None] * R + ranks[None, :, None]) * P + cols
    up_h, gate_h, down_h = tl.load(up + table), tl.load(gate + table), tl.load(down + table)
    skipped = tl.load(skip + head)[:, None, None]
    up_sum, gate_sum, down_sum = tl.zeros_like(up_h), tl.zeros_like(up_h), tl.zeros_like(up_h)
    skip_sum = tl.zeros([HEADS, R], tl.float32)
    for step in tl.range(TOKENS, num_stages=STAGES):
        token = tl.program_id(1).to(tl.int64) * TOKENS + step
        x_t, z_t = _narrow(x, token, head, H, P)[:, None, :], _narrow(z, token, head, H, P)[:, None, :]
        above_t = _narrow(above, token, head, H, P)[:, None, :]
        at = ((token * R + ranks[None, :, None]) * H + head[:, None, None]) * P + cols
        v_t, g = x_t * up_h, z_t * gate_h
        s = _sigmoid(g)
        grad = above_t * down_h * g * s
        skip_sum += tl.sum(grad * v_t, axis=2)
        y_t = tl.load(y + at).to(tl.float32) + skipped * v_t
        dv_t = tl.load(dv + at).to(tl.float32) + skipped * grad
        up_sum += dv_t * x_t
        down_sum += above_t * y_t * g * s
        d_g = above_t * down_h * y_t * s * (1 + g * (1 - s))
        gate_sum += d_g * z_t
        to = (token * H + head[:, None]) * P + tl.arange(0, P)[None, :]
        tl.store(d_x + to, tl.sum(dv_t * up_h, axis=1).to(d_x.dtype.element_ty))
        tl.store(d_z + to, tl.sum(d_g * gate_h, axis=1).to(d_z.dtype.element_ty))
    part = tl.program_id(1).to(tl.int64) * H
    tl.store(d_up + part * R * P + table, up_sum)
    tl.store(d_gate + part * R * P + table, gate_sum)
    tl.store(d_down + part * R * P + table, down_sum)
    tl.store(d_skip + part + head, tl.sum(skip_sum, axis=1))


@triton.jit  # type: ignore[untyped-decorator]
def _halves(x: tl.tensor, at: tl.tensor, there: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """What lies at ``at`` and half a row further, fp32; 0 where nothing is ``there``."""
    low, high = tl.load(x + at, mask=there, other=0.0), tl.load(x + at + N // 2, mask=there, other=0.0)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def mimo_fold(
    x: tl.tensor,
    bias: tl.tensor,
    angles: tl.tensor,
    d_turned: tl.tensor,
    d_x: tl.tensor,
    d_bias: tl.tensor,
    d_angle: tl.tensor,
    H: tl.constexpr,
    G: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    A: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HEADS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Of d_turned [B, S, R, H, N]: d_x [B, S, R, G, N], d_angle [B, S, H, A], parts of d_bias [B S / TOKENS, H, R, N].

    A program takes COLUMNS of each half of one group's heads (HEADS: their number, rounded up to a power of two), and
    TOKENS tokens. One warp a program, since several would wait for each other's sums. The gradient of an angle is the
    cross product of what turns and its gradient, which rotation does not change.
    """
    group = tl.program_id(0) // (N // 2 // COLUMNS)
    half = tl.program_id(0) % (N // 2 // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
    heads, rank = group * (H // G) + tl.arange(0, HEADS)[None, :, None], tl.arange(0, R)[:, None, None]
    there = (tl.arange(0, HEADS) < H // G)[None, :, None] & (half < N)
    turns = there & (half < A)
    biases = (heads * R + rank) * N + half
    low_bias, high_bias = _halves(bias, biases, there, N)
    low_sum, high_sum = tl.zeros_like(low_bias), tl.zeros_like(low_bias)
    for step in tl.range(TOKENS, num_stages=STAGES):
        token = tl.program_id(1).to(tl.int64) * TOKENS + step
        first, second = _halves(d_turned, token * R * H * N + (rank * H + heads) * N + half, there, N)
        at = token * R * G * N + (rank * G + group) * N + half
        if tl.program_id(0) % (N // 2 // COLUMNS) * COLUMNS < A:
            angle = token * H * A + heads * A + half
            c, s = _turns(tl.load(angles + angle, mask=turns, other=0.0))
            first, second = c * first + s * second, c * second - s * first
            low, high = _halves(x, at, half < N, N)
            crossed = second * (low + low_bias) - first * (high + high_bias)
            tl.store(d_angle + angle, tl.sum(crossed, axis=0, keep_dims=True), mask=turns)
        low_sum += first
        high_sum += second
        tl.store(d_x + at, tl.sum(first, axis=1, keep_dims=True).to(d_x.dtype.element_ty))
        tl.store(d_x + at + N // 2, tl.sum(second, axis=1, keep_dims=True).to(d_x.dtype.element_ty))
    part = d_bias + tl.program_id(1).to(tl.int64) * H * R * N + biases
    tl.store(part, low_sum, mask=there)
    tl.store(part + N // 2, high_sum, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def mimo_weights(
    dt: tl.tensor, trap: tl.tensor, own: tl.tensor, later: tl.tensor, size: int, S: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """own, later of ``size`` tokens, fp32: their weights in their own output and, before decay, in every later one's.

    A token's share in the state is by half that of the one before it: the trapezoidal rule.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there, next_there = at < size, (at < size) & (at % S != S - 1)
    mine = tl.load(dt + at, mask=there) * tl.sigmoid(tl.load(trap + at, mask=there).to(tl.float32))
    rest = tl.sigmoid(-tl.load(trap + at + 1, mask=next_there, other=0.0).to(tl.float32))
    tl.store(own + at, mine, mask=there)
    tl.store(later + at, mine + rest * tl.load(dt + at + 1, mask=next_there, other=0.0), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def mimo_weights_back(
    dt: tl.tensor,
    trap: tl.tensor,
    d_own: tl.tensor,
    d_later: tl.tensor,
    d_dt: tl.tensor,
    d_trap: tl.tensor,
    size: int,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Of gradients of ``mimo_weights``' results those of what it reads."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    now, step = tl.load(trap + at, mask=there).to(tl.float32), tl.load(dt + at, mask=there)
    grad = tl.load(d_later + at, mask=there)
    before = tl.load(d_later + at - 1, mask=there & (at % S != 0), other=0.0)
    grad += tl.load(d_own + at, mask=there)
    share, rest = tl.sigmoid(now), tl.sigmoid(-now)
    tl.store(d_dt + at, grad * share + before * rest, mask=there)
    tl.store(d_trap + at, (step * share * rest * (grad - before)).to(d_trap.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def mimo_sums(
    x: tl.tensor, out: tl.tensor, size: int, REVERSE: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """``out`` of ``size`` numbers, fp32: sums of x within each T, from its first number on or (REVERSE) to its last."""
    at = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]) * T + tl.arange(0, T)[None, :]
    tl.store(out + at, tl.cumsum(tl.load(x + at, mask=at < size), axis=1, reverse=REVERSE), mask=at < size)
