"""Triton kernels of hyper-connections; ``hyper`` launches them.

Forward and, from the bottom up, backward; what stands in one line reads the streams once:

    mapped      TOKENS tokens     all streams -> mixes m = fn x over, over    | map_gradients: d(fn), in parts
    balanced    TOKENS tokens     m -> pre, post, comb by Sinkhorn, divisors  | balanced_gradients, read_gradients
    collapsed   a token, a BLOCK  pre, streams -> the sublayer's input        | weighed: d(pre)
    expanded    a token, a BLOCK  output, streams, post, comb -> streams      | expanded_gradients: all four

Compile-time sizes: S streams of D channels, R rows of fn (S (S + 2), or S of the head), P and W: S and R rounded up to
powers of two. Arguments: x, y the streams [T, S, D]; fn [R, S D] fp32; m, z's gradient dz [T, R], over [T], pre, post
[T, S], comb [T, S, S], all fp32. Products with fn take it as three numbers of 16 bits, or two, where x has 16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from model.layers.deepseek_v4.hybrid.kernels.attend import dot

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter multiplies no bf16


@triton.jit  # type: ignore[untyped-decorator]
def _precise(a: tl.tensor, b: tl.tensor, to: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """to + a b, a bf16 or fp32, b fp32; HALF: b as the sum of three of bf16, which a has."""
    if HALF and COMPILED:
        high = b.to(tl.bfloat16)
        rest = b - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(a, high, tl.dot(a, middle, tl.dot(a, low, to)))
    else:
        return dot(a.to(tl.float32), b, to)


@triton.jit  # type: ignore[untyped-decorator]
def mapped(
    x: tl.tensor,
    fn: tl.tensor,
    m: tl.tensor,
    over: tl.tensor,
    eps: float,
    T: int,
    C: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """m and over of TOKENS tokens; C channels of all streams."""
    t, r = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, W)
    product, square = tl.zeros([TOKENS, W], tl.float32), tl.zeros([TOKENS], tl.float32)
    for start in range(0, C, BLOCK):
        c = start + tl.arange(0, BLOCK)
        at = t.to(tl.int64)[:, None] * C + c[None, :]
        z = tl.load(x + at, mask=(t < T)[:, None] & (c < C)[None, :], other=0.0)
        f = tl.load(fn + r[None, :] * C + c[:, None], mask=(r < R)[None, :] & (c < C)[:, None], other=0.0)
        product = _precise(z, f, product, HALF)
        square += tl.sum(z.to(tl.float32) * z.to(tl.float32), 1)
    scale = tl.rsqrt(square / C + eps)
    tl.store(over + t, scale, mask=t < T)
    tl.store(m + t[:, None] * R + r[None, :], product * scale[:, None], mask=(t < T)[:, None] & (r < R)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def map_gradients(
    x: tl.tensor,
    w: tl.tensor,
    parts: tl.tensor,
    T: int,
    stretch: int,
    C: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """A stretch of tokens' part of d(fn), BLOCK channels of parts [stretches, C, R] fp32; w [T, R] fp32: dm over."""
    c, r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, W)
    number = tl.program_id(1)
    found = tl.zeros([BLOCK, W], tl.float32)
    behind = tl.minimum((number + 1) * stretch, T)
    for start in range(number * stretch, behind, TOKENS):
        t = start + tl.arange(0, TOKENS)
        at = t.to(tl.int64)[:, None] * C + c[None, :]
        z = tl.load(x + at, mask=(t < behind)[:, None] & (c < C)[None, :], other=0.0)
        v = tl.load(w + t[:, None] * R + r[None, :], mask=(t < behind)[:, None] & (r < R)[None, :], other=0.0)
        found = _precise(tl.trans(z), v, found, HALF)
    at = (number.to(tl.int64) * C + c)[:, None] * R + r[None, :]
    tl.store(parts + at, found, mask=(c < C)[:, None] & (r < R)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _square(t: tl.tensor, T: int, S: tl.constexpr, P: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Places of S x S matrices of tokens [TOKENS, P, P], and whether there is a number."""
    i, j = tl.arange(0, P)[None, :, None], tl.arange(0, P)[None, None, :]
    inside = (t < T)[:, None, None] & (i < S) & (j < S)
    return i * S + j, inside


@triton.jit  # type: ignore[untyped-decorator]
def _parts(
    m: tl.tensor, scale: tl.tensor, bias: tl.tensor, t: tl.tensor, T: int, S: tl.constexpr, P: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """z of pre and post [TOKENS, P], and the softmax of comb's over its rows [TOKENS, P, P], 0 beyond S."""
    R: tl.constexpr = S * (S + 2)
    i = tl.arange(0, P)[None, :]
    there = (t < T)[:, None] & (i < S)
    row = m + t[:, None] * R + i
    pre = tl.load(row, mask=there, other=0.0) * tl.load(scale) + tl.load(bias + i, mask=i < S, other=0.0)
    post = tl.load(row + S, mask=there, other=0.0) * tl.load(scale + 1) + tl.load(bias + S + i, mask=i < S, other=0.0)
    at, inside = _square(t, T, S, P)
    logits = tl.load(m + t[:, None, None] * R + 2 * S + at, mask=inside, other=0.0) * tl.load(scale + 2)
    logits += tl.load(bias + 2 * S + at, mask=inside, other=0.0)
    logits = tl.where(inside, logits, float("-inf"))
    top = tl.max(logits, 2)
    c = tl.exp(logits - tl.where(top == float("-inf"), 0.0, top)[:, :, None])
    total = tl.sum(c, 2)
    return pre, post, c / tl.where(total == 0, 1.0, total)[:, :, None]


@triton.jit  # type: ignore[untyped-decorator]
def balanced(
    m: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    pre: tl.tensor,
    post: tl.tensor,
    comb: tl.tensor,
    divisors: tl.tensor,
    eps: float,
    T: int,
    S: tl.constexpr,
    P: tl.constexpr,
    ITERATIONS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """pre, post and comb of TOKENS tokens, and the divisors [T, 2 ITERATIONS - 1, S] of columns, rows, columns…"""
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    first, second, c = _parts(m, scale, bias, t, T, S, P)
    i = tl.arange(0, P)[None, :]
    there = (t < T)[:, None] & (i < S)
    tl.store(pre + t[:, None] * S + i, tl.sigmoid(first) + eps, mask=there)
    tl.store(post + t[:, None] * S + i, 2 * tl.sigmoid(second), mask=there)
    at, inside = _square(t, T, S, P)
    c = tl.where(inside, c + eps, 0.0)
    held = divisors + t[:, None] * ((2 * ITERATIONS - 1) * S) + i
    columns = tl.sum(c, 1) + eps
    tl.store(held, columns, mask=there)
    c = c / columns[:, None, :]
    for step in range(1, ITERATIONS):
        rows = tl.sum(c, 2) + eps
        tl.store(held + (2 * step - 1) * S, rows, mask=there)
        c = c / rows[:, :, None]
        columns = tl.sum(c, 1) + eps
        tl.store(held + 2 * step * S, columns, mask=there)
        c = c / columns[:, None, :]
    tl.store(comb + t[:, None, None] * (S * S) + at, c, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def balanced_gradients(
    m: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    comb: tl.tensor,
    divisors: tl.tensor,
    dpre: tl.tensor,
    dpost: tl.tensor,
    dcomb: tl.tensor,
    over: tl.tensor,
    dz: tl.tensor,
    w: tl.tensor,
    shrink: tl.tensor,
    T: int,
    D: tl.constexpr,
    S: tl.constexpr,
    P: tl.constexpr,
    ITERATIONS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """dz of TOKENS tokens, and what ``read_gradients`` takes: w = dm over, shrink = over² (dm m) / (S D).

    comb's matrix walks back through its divisors, c = c' / d, so c' = c d.
    """
    R: tl.constexpr = S * (S + 2)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    first, second, p = _parts(m, scale, bias, t, T, S, P)
    i = tl.arange(0, P)[None, :]
    there = (t < T)[:, None] & (i < S)
    one, two = tl.sigmoid(first), tl.sigmoid(second)
    first = tl.load(dpre + t[:, None] * S + i, mask=there, other=0.0) * one * (1 - one)
    second = tl.load(dpost + t[:, None] * S + i, mask=there, other=0.0) * 2 * two * (1 - two)
    r = t[:, None] * R + i
    tl.store(dz + r, first, mask=there)
    tl.store(dz + r + S, second, mask=there)
    root = tl.load(over + t, mask=t < T, other=0.0)
    first, second = first * tl.load(scale), second * tl.load(scale + 1)
    tl.store(w + r, first * root[:, None], mask=there)
    tl.store(w + r + S, second * root[:, None], mask=there)
    along = first * tl.load(m + r, mask=there, other=0.0) + second * tl.load(m + r + S, mask=there, other=0.0)
    at, inside = _square(t, T, S, P)
    own = t[:, None, None] * (S * S) + at
    c, g = tl.load(comb + own, mask=inside, other=0.0), tl.load(dcomb + own, mask=inside, other=0.0)
    held = divisors + t[:, None] * ((2 * ITERATIONS - 1) * S) + i
    for back in range(ITERATIONS - 1):
        step = 2 * (ITERATIONS - 1 - back)
        columns = tl.load(held + step * S, mask=there, other=1.0)
        g = (g - tl.sum(g * c, 1)[:, None, :]) / columns[:, None, :]
        c = c * columns[:, None, :]
        rows = tl.load(held + (step - 1) * S, mask=there, other=1.0)
        g = (g - tl.sum(g * c, 2)[:, :, None]) / rows[:, :, None]
        c = c * rows[:, :, None]
    columns = tl.load(held, mask=there, other=1.0)
    g = (g - tl.sum(g * c, 1)[:, None, :]) / columns[:, None, :]
    g = p * (g - tl.sum(p * g, 2)[:, :, None])
    own = t[:, None, None] * R + 2 * S + at
    tl.store(dz + own, g, mask=inside)
    g = tl.where(inside, g, 0.0) * tl.load(scale + 2)
    tl.store(w + own, g * root[:, None, None], mask=inside)
    dots = tl.sum(along, 1) + tl.sum(tl.sum(g * tl.load(m + own, mask=inside, other=0.0), 2), 1)
    tl.store(shrink + t, root * root * dots / (S * D), mask=t < T)


@triton.jit  # type: ignore[untyped-decorator]
def collapsed(
    x: tl.tensor, pre: tl.tensor, u: tl.tensor, S: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """u [T, D] of a token, BLOCK channels."""
    t, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(S):
        value = tl.load(x + (t * S + i) * D + c, mask=c < D, other=0.0)
        total += tl.load(pre + t * S + i) * value.to(tl.float32)
    tl.store(u + t * D + c, total, mask=c < D)


@triton.jit  # type: ignore[untyped-decorator]
def weighed(
    x: tl.tensor, du: tl.tensor, dpre: tl.tensor, S: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """d(pre) of a token, from du [T, D]; BLOCK channels or more are all."""
    t, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    above = tl.load(du + t * D + c, mask=c < D, other=0.0).to(tl.float32)
    for i in tl.static_range(S):
        value = tl.load(x + (t * S + i) * D + c, mask=c < D, other=0.0).to(tl.float32)
        tl.store(dpre + t * S + i, tl.sum(value * above, 0))


@triton.jit  # type: ignore[untyped-decorator]
def read_gradients(
    x: tl.tensor,
    fn: tl.tensor,
    pre: tl.tensor,
    du: tl.tensor,
    w: tl.tensor,
    shrink: tl.tensor,
    around: tl.tensor,
    dx: tl.tensor,
    T: int,
    S: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    AROUND: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """dx of one stream of TOKENS tokens, BLOCK channels: pre du + w fn - shrink x, and with AROUND the gradient of what
    goes around the sublayer. w [T, R]: dm over; shrink [T]."""
    t, r = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, W)
    i, c = tl.program_id(1), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(w + t[:, None] * R + r[None, :], mask=(t < T)[:, None] & (r < R)[None, :], other=0.0)
    at = fn + r[:, None] * (S * D) + i * D + c[None, :]
    f = tl.load(at, mask=(r < R)[:, None] & (c < D)[None, :], other=0.0)
    found = tl.dot(v, f, input_precision="tf32" if HALF else "ieee")
    inside = (t < T)[:, None] & (c < D)[None, :]
    row = t.to(tl.int64)
    above = tl.load(du + row[:, None] * D + c[None, :], mask=inside, other=0.0).to(tl.float32)
    own = (row * S + i)[:, None] * D + c[None, :]
    value = tl.load(x + own, mask=inside, other=0.0).to(tl.float32)
    found += tl.load(pre + row * S + i, mask=t < T, other=0.0)[:, None] * above
    found -= tl.load(shrink + row, mask=t < T, other=0.0)[:, None] * value
    if AROUND:
        found += tl.load(around + own, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + own, found, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def expanded(
    out: tl.tensor,
    x: tl.tensor,
    post: tl.tensor,
    comb: tl.tensor,
    y: tl.tensor,
    S: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """y of a token, BLOCK channels, from the sublayer's output out [T, D]."""
    t, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    output = tl.load(out + t * D + c, mask=c < D, other=0.0).to(tl.float32)
    for j in tl.static_range(S):
        total = tl.load(post + t * S + j) * output
        for i in tl.static_range(S):
            value = tl.load(x + (t * S + i) * D + c, mask=c < D, other=0.0).to(tl.float32)
            total += tl.load(comb + (t * S + i) * S + j) * value
        tl.store(y + (t * S + j) * D + c, total, mask=c < D)


@triton.jit  # type: ignore[untyped-decorator]
def expanded_gradients(
    out: tl.tensor,
    x: tl.tensor,
    post: tl.tensor,
    comb: tl.tensor,
    dy: tl.tensor,
    dout: tl.tensor,
    dx: tl.tensor,
    dpost: tl.tensor,
    dcomb: tl.tensor,
    S: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """All gradients of a token; BLOCK channels or more are all."""
    t, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    output = tl.load(out + t * D + c, mask=c < D, other=0.0).to(tl.float32)
    above = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(S):
        g = tl.load(dy + (t * S + j) * D + c, mask=c < D, other=0.0).to(tl.float32)
        above += tl.load(post + t * S + j) * g
        tl.store(dpost + t * S + j, tl.sum(g * output, 0))
        for i in tl.static_range(S):
            value = tl.load(x + (t * S + i) * D + c, mask=c < D, other=0.0).to(tl.float32)
            tl.store(dcomb + (t * S + i) * S + j, tl.sum(g * value, 0))
    tl.store(dout + t * D + c, above, mask=c < D)
    for i in tl.static_range(S):
        total = tl.zeros([BLOCK], tl.float32)
        for j in tl.static_range(S):
            g = tl.load(dy + (t * S + j) * D + c, mask=c < D, other=0.0).to(tl.float32)
            total += tl.load(comb + (t * S + i) * S + j) * g
        tl.store(dx + (t * S + i) * D + c, total, mask=c < D)
