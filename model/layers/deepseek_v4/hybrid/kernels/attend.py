"""Triton kernels of attention over a window and compressed entries, with a sink; ``core`` launches them.

All heads of a token share its keys, so a product has the heads as rows:

    attend           one program a token and HEADS heads      window, then entries: S, P, O; the entries once more: mass
        |  o, lse
    rows.deltas      one a token and some heads               delta = o do; of sinks
        |  delta
    query_gradients  as attend                                window, then entries: S, P, dP, dS -> dq
    key_gradients    KEYS keys and a stretch of tokens        tokens one by one: S, P, dP, dS of all heads -> d(key)
        |  parts [stretches, keys, D], summed in their order

No program waits for another, none adds to another's numbers: the results are the same bits every time. Keys are the
values too. Softmaxes are in base 2: ``scale`` is log2(e) / sqrt(D), and lse [T, H] base 2 with the sink in it. What
a product's shape costs is registers: ptxas spills thousands of bytes where key_gradients sums with keys as rows.

Compile-time sizes: H heads, D channels (a power of two), HEADS of a program, KEYS of a product. WANTED says which keys:
NEAR those of the window, RANGE the ``seen`` entries from ``begin`` on, CHOSEN those of a list, its first ones, as many
as the token sees or the list has. Arguments: q, o, do [T, H, D]; held [T + E, D], latents, then entries; sink [H] fp32;
place, begin, seen [T] int64; chosen [T, K] int32; words [T, L] int32, a bit for each entry that is chosen; mass [T, K]
fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NONE, NEAR, RANGE, CHOSEN = (tl.constexpr(number) for number in range(4))


@triton.jit  # type: ignore[untyped-decorator]
def dot(a: tl.tensor, b: tl.tensor, to: tl.tensor) -> tl.tensor:
    """to + a b, fp32; fp32 operands in full."""
    return tl.dot(a, b, to, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _of_heads(x: tl.tensor, t: tl.tensor, h: tl.tensor, H: tl.constexpr, D: tl.constexpr) -> tl.tensor:
    """[HEADS, D] of a token."""
    at = (t.to(tl.int64) * H + h)[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(x + at, mask=(h < H)[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _counts(
    t: tl.tensor,
    place: tl.tensor,
    seen: tl.tensor,
    window: int,
    K: int,
    WANTED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """How many keys of its window a token sees, and how many entries."""
    near = tl.minimum(tl.load(place + t) + 1, window).to(tl.int32)
    far = near * 0
    if WANTED != NONE:
        far = tl.load(seen + t).to(tl.int32)
    if WANTED == CHOSEN:
        far = tl.minimum(far, K)
    return near, far


@triton.jit  # type: ignore[untyped-decorator]
def _slots(
    start: tl.tensor,
    t: tl.tensor,
    T: int,
    near: tl.tensor,
    far: tl.tensor,
    first: tl.tensor,
    chosen: tl.tensor,
    KEYS: tl.constexpr,
    WANTED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Rows [KEYS] of ``held`` from place ``start`` on, first the window's, then the entries'; whether there is one."""
    n = start + tl.arange(0, KEYS)
    row, there = t + 1 - near + n, n < near + far
    if WANTED == RANGE:
        row = tl.where(n < near, row, T + first + n - near)
    if WANTED == CHOSEN:
        slot = tl.load(chosen + n - near, mask=(n >= near) & there, other=0)
        row, there = tl.where(n < near, row, T + slot), there & (slot >= 0)
    return row, there


@triton.jit  # type: ignore[untyped-decorator]
def _keys(keys: tl.tensor, slot: tl.tensor, there: tl.tensor, D: tl.constexpr) -> tl.tensor:
    """[KEYS, D], rows of 0 for what is not there."""
    at = slot.to(tl.int64)[:, None] * D + tl.arange(0, D)[None, :]
    return tl.load(keys + at, mask=there[:, None], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def attend(
    q: tl.tensor,
    held: tl.tensor,
    sink: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    seen: tl.tensor,
    chosen: tl.tensor,
    o: tl.tensor,
    lse: tl.tensor,
    mass: tl.tensor,
    scale: float,
    window: int,
    T: int,
    K: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    WANTED: tl.constexpr,
    MASS: tl.constexpr,
) -> None:
    """o and lse of a token and HEADS heads; with MASS what each chosen entry gets, summed over these heads, into mass
    [parts, T, K]."""
    t, part = tl.program_id(0), tl.program_id(1)
    h = part * HEADS + tl.arange(0, HEADS)
    query = _of_heads(q, t, h, H, D)
    near, far = _counts(t, place, seen, window, K, WANTED)
    first, own = tl.load(begin + t).to(tl.int32), chosen + t.to(tl.int64) * K
    top = tl.load(sink + h, mask=h < H, other=0.0).to(tl.float32) * LOG2E
    total, out = tl.full([HEADS], 1.0, tl.float32), tl.zeros([HEADS, D], tl.float32)
    for start in range(0, near + far, KEYS):
        slot, there = _slots(start, t, T, near, far, first, own, KEYS, WANTED)
        k = _keys(held, slot, there, D)
        s = dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32)) * scale
        s = tl.where(there[None, :], s, float("-inf"))
        greater = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - greater[:, None])
        shrunk = tl.exp2(top - greater)
        total = total * shrunk + tl.sum(p, 1)
        out = dot(p.to(k.dtype), k, out * shrunk[:, None])
        top = greater
    at = (t.to(tl.int64) * H + h)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(o + at, out / total[:, None], mask=(h < H)[:, None])
    sums = top + tl.log2(total)
    tl.store(lse + t.to(tl.int64) * H + h, sums, mask=h < H)
    if MASS:
        got = mass + (part.to(tl.int64) * T + t) * K
        for start in range(near, near + far, KEYS):
            slot, there = _slots(start, t, T, near, far, first, own, KEYS, WANTED)
            k = _keys(held, slot, there, D)
            s = dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32)) * scale
            p = tl.where((h < H)[:, None] & there[None, :], tl.exp2(s - sums[:, None]), 0.0)
            n = start - near + tl.arange(0, KEYS)
            tl.store(got + n, tl.sum(p, 0), mask=n < far)


@triton.jit  # type: ignore[untyped-decorator]
def query_gradients(
    q: tl.tensor,
    held: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    seen: tl.tensor,
    chosen: tl.tensor,
    do: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    dq: tl.tensor,
    scale: float,
    plain: float,
    window: int,
    T: int,
    K: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    WANTED: tl.constexpr,
) -> None:
    """dq [T, H, D] of delta [T, H]; ``plain`` is 1 / sqrt(D)."""
    t, part = tl.program_id(0), tl.program_id(1)
    h = part * HEADS + tl.arange(0, HEADS)
    row = t.to(tl.int64) * H + h
    query, above = _of_heads(q, t, h, H, D), _of_heads(do, t, h, H, D)
    sums = tl.load(lse + row, mask=h < H, other=0.0)
    product = tl.load(delta + row, mask=h < H, other=0.0)
    near, far = _counts(t, place, seen, window, K, WANTED)
    first, own = tl.load(begin + t).to(tl.int32), chosen + t.to(tl.int64) * K
    found = tl.zeros([HEADS, D], tl.float32)
    for start in range(0, near + far, KEYS):
        slot, there = _slots(start, t, T, near, far, first, own, KEYS, WANTED)
        k = _keys(held, slot, there, D)
        s = dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32)) * scale
        p = tl.where(there[None, :], tl.exp2(s - sums[:, None]), 0.0)
        dp = dot(above, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32))
        found = dot((p * (dp - product[:, None])).to(k.dtype), k, found)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq + at, found * plain, mask=(h < H)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def key_gradients(
    q: tl.tensor,
    keys: tl.tensor,
    place: tl.tensor,
    begin: tl.tensor,
    seen: tl.tensor,
    words: tl.tensor,
    do: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    since: tl.tensor,
    until: tl.tensor,
    parts: tl.tensor,
    scale: float,
    plain: float,
    window: int,
    stretch: int,
    N: int,
    L: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    WANTED: tl.constexpr,
) -> None:
    """A stretch of tokens' part of the gradient of KEYS keys, of N, into parts [stretches, N, D] fp32.

    ``since``, ``until`` [blocks] int64: the tokens that may see a block's keys. ``stretch``: tokens of a stretch.
    """
    block, number = tl.program_id(0), tl.program_id(1)
    n = block * KEYS + tl.arange(0, KEYS)
    k = _keys(keys, n, n < N, D)
    found = tl.zeros([D, KEYS], tl.float32)
    low = tl.maximum(tl.load(since + block).to(tl.int32), number * stretch)
    high = tl.minimum(tl.load(until + block).to(tl.int32), (number + 1) * stretch)
    for step in range(low * tl.cdiv(H, HEADS), high * tl.cdiv(H, HEADS)):
        t = step // tl.cdiv(H, HEADS)
        h = step % tl.cdiv(H, HEADS) * HEADS + tl.arange(0, HEADS)
        if WANTED == NEAR:
            there = (n <= t) & (n > t - window) & (n >= t - tl.load(place + t))
        elif WANTED == RANGE:
            first = tl.load(begin + t)
            there = (n >= first) & (n < first + tl.load(seen + t))
        else:
            word = tl.load(words + t.to(tl.int64) * L + n // 32, mask=n < N, other=0)
            there = ((word >> (n % 32)) & 1) != 0
        row = t.to(tl.int64) * H + h
        query, above = _of_heads(q, t, h, H, D), _of_heads(do, t, h, H, D)
        sums = tl.load(lse + row, mask=h < H, other=0.0)
        s = dot(k, tl.trans(query), tl.zeros([KEYS, HEADS], tl.float32)) * scale
        p = tl.where((h < H)[None, :] & there[:, None], tl.exp2(s - sums[None, :]), 0.0)
        dp = dot(k, tl.trans(above), tl.zeros([KEYS, HEADS], tl.float32))
        ds = p * (dp - tl.load(delta + row, mask=h < H, other=0.0)[None, :]) * plain
        found = dot(tl.trans(above), tl.trans(p.to(k.dtype)), found)
        found = dot(tl.trans(query), tl.trans(ds.to(k.dtype)), found)
    at = (number.to(tl.int64) * N + n)[None, :] * D + tl.arange(0, D)[:, None]
    tl.store(parts + at, found, mask=(n < N)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def mark(chosen: tl.tensor, words: tl.tensor, K: int, L: int, BLOCK: tl.constexpr) -> None:
    """The bits of one token's chosen entries; ``words`` are 0 before."""
    t = tl.program_id(0).to(tl.int64)
    for start in range(0, K, BLOCK):
        n = start + tl.arange(0, BLOCK)
        slot = tl.load(chosen + t * K + n, mask=n < K, other=-1)
        tl.atomic_or(words + t * L + slot // 32, 1 << (slot % 32), mask=slot >= 0)
