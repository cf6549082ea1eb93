"""Triton kernels of the indexer; ``indexer`` launches them.

    scored            a token           its heads' products with all entries that it sees -> scores, from ``begin`` on
    best              a token           the K best of them, the earlier of equal ones, in the order of the slots
    among             a token           the scores of the chosen, once more
    among_gradients   a token           their gradient g -> dq, dw
    entry_gradients   KEYS entries and a stretch of tokens -> d(entries), in parts

The K best are those above a bound, which is found bit by bit from the highest. Compile-time sizes: H heads, D channels,
HEADS: H rounded up. Arguments: q [T, H, D]; keys [E, D]; w [T, H]; begin, seen [T] int64; chosen [T, K] int64, -1 for
none, those last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from model.layers.deepseek_v4.hybrid.kernels.attend import dot


@triton.jit  # type: ignore[untyped-decorator]
def _rows(x: tl.tensor, row: tl.tensor, there: tl.tensor, D: tl.constexpr, WIDE: tl.constexpr) -> tl.tensor:
    """[rows, WIDE], 0 where there is none."""
    d = tl.arange(0, WIDE)[None, :]
    return tl.load(x + row.to(tl.int64)[:, None] * D + d, mask=there[:, None] & (d < D), other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _query(
    q: tl.tensor, w: tl.tensor, t: tl.tensor, H: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr, WIDE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """A token's queries [HEADS, WIDE] and weights [HEADS] fp32."""
    h = tl.arange(0, HEADS)
    row = t.to(tl.int64) * H + h
    return _rows(q, row, h < H, D, WIDE), tl.load(w + row, mask=h < H, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def scored(
    q: tl.tensor,
    keys: tl.tensor,
    w: tl.tensor,
    begin: tl.tensor,
    seen: tl.tensor,
    scores: tl.tensor,
    E: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """scores [T, E] fp32 of the entries that a token sees, the first of them first."""
    t = tl.program_id(0)
    query, weight = _query(q, w, t, H, D, HEADS, WIDE)
    first, count = tl.load(begin + t), tl.load(seen + t).to(tl.int32)
    for start in range(0, count, KEYS):
        n = start + tl.arange(0, KEYS)
        k = _rows(keys, first + n, n < count, D, WIDE)
        s = tl.maximum(dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32)), 0.0)
        tl.store(scores + t.to(tl.int64) * E + n, tl.sum(s * weight[:, None], 0), mask=n < count)


@triton.jit  # type: ignore[untyped-decorator]
def best(
    scores: tl.tensor,
    begin: tl.tensor,
    seen: tl.tensor,
    chosen: tl.tensor,
    E: int,
    K: int,
    SLOTS: tl.constexpr,
) -> None:
    """chosen [T, K] of a token, -1 before; SLOTS are E or more."""
    t = tl.program_id(0).to(tl.int64)
    n, count = tl.arange(0, SLOTS), tl.load(seen + t)
    value = tl.load(scores + t * E + n, mask=n < count, other=0.0)
    bits = value.to(tl.int32, bitcast=True)  # zeros of one token have one sign, that of its weights
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000
    order = tl.where(n < count, order, 0)
    bound = tl.zeros([1], tl.uint32)
    for bit in range(32):
        trial = bound | (tl.full([1], 1, tl.uint32) << (31 - bit))
        bound = tl.where(tl.sum((order >= trial).to(tl.int32), 0) >= K, trial, bound)
    above = order > bound
    level = ((order == bound) & (n < count)).to(tl.int32)
    room = K - tl.sum(above.to(tl.int32), 0)
    taken = above | ((level != 0) & (tl.cumsum(level, 0) <= room))
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(chosen + t * K + place, tl.load(begin + t) + n, mask=taken)


@triton.jit  # type: ignore[untyped-decorator]
def among(
    q: tl.tensor,
    keys: tl.tensor,
    w: tl.tensor,
    chosen: tl.tensor,
    scores: tl.tensor,
    K: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """scores [T, K] fp32 of the chosen, 0 for none."""
    t = tl.program_id(0)
    query, weight = _query(q, w, t, H, D, HEADS, WIDE)
    own = t.to(tl.int64) * K
    for start in range(0, K, KEYS):
        n = start + tl.arange(0, KEYS)
        slot = tl.load(chosen + own + n, mask=n < K, other=-1)
        k = _rows(keys, slot, slot >= 0, D, WIDE)
        s = tl.maximum(dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32)), 0.0)
        tl.store(scores + own + n, tl.sum(s * weight[:, None], 0), mask=n < K)


@triton.jit  # type: ignore[untyped-decorator]
def among_gradients(
    q: tl.tensor,
    keys: tl.tensor,
    w: tl.tensor,
    chosen: tl.tensor,
    g: tl.tensor,
    dq: tl.tensor,
    dw: tl.tensor,
    K: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """dq [T, H, D] and dw [T, H] of a token, from g [T, K] fp32."""
    t = tl.program_id(0)
    query, weight = _query(q, w, t, H, D, HEADS, WIDE)
    own = t.to(tl.int64) * K
    of_query, of_weight = tl.zeros([HEADS, WIDE], tl.float32), tl.zeros([HEADS], tl.float32)
    for start in range(0, K, KEYS):
        n = start + tl.arange(0, KEYS)
        slot = tl.load(chosen + own + n, mask=n < K, other=-1)
        k = _rows(keys, slot, slot >= 0, D, WIDE)
        above = tl.load(g + own + n, mask=slot >= 0, other=0.0)
        s = dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32))
        of_weight += tl.sum(tl.maximum(s, 0.0) * above[None, :], 1)
        ds = tl.where(s > 0, weight[:, None] * above[None, :], 0.0)
        of_query = dot(ds.to(k.dtype), k, of_query)
    h, d = tl.arange(0, HEADS), tl.arange(0, WIDE)
    row = t.to(tl.int64) * H + h
    tl.store(dw + row, of_weight, mask=h < H)
    tl.store(dq + row[:, None] * D + d[None, :], of_query, mask=(h < H)[:, None] & (d < D)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def entry_gradients(
    q: tl.tensor,
    keys: tl.tensor,
    w: tl.tensor,
    g: tl.tensor,
    since: tl.tensor,
    until: tl.tensor,
    parts: tl.tensor,
    stretch: int,
    T: int,
    E: int,
    H: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """A stretch of tokens' part of the gradient of KEYS entries, into parts [stretches, E, D] fp32.

    g [T, E] fp32, 0 where an entry is not chosen. ``since``, ``until`` [blocks] int64: the tokens that may see one.
    """
    block, number = tl.program_id(0), tl.program_id(1)
    n = block * KEYS + tl.arange(0, KEYS)
    k = _rows(keys, n, n < E, D, WIDE)
    found = tl.zeros([WIDE, KEYS], tl.float32)
    low = tl.maximum(tl.load(since + block).to(tl.int32), number * stretch)
    high = tl.minimum(tl.load(until + block).to(tl.int32), tl.minimum((number + 1) * stretch, T))
    for step in range(high - low):
        t = low + step
        query, weight = _query(q, w, t, H, D, HEADS, WIDE)
        above = tl.load(g + t.to(tl.int64) * E + n, mask=n < E, other=0.0)
        s = dot(query, tl.trans(k), tl.zeros([HEADS, KEYS], tl.float32))
        ds = tl.where(s > 0, weight[:, None] * above[None, :], 0.0)
        found = dot(tl.trans(query), ds.to(k.dtype), found)
    d = tl.arange(0, WIDE)
    at = (number.to(tl.int64) * E + n)[None, :] * D + d[:, None]
    tl.store(parts + at, found, mask=(n < E)[None, :] & (d < D)[:, None])
