"""Triton kernels of M²RNN's recurrence; ``m2rnn_triton`` launches them and says how memory is laid out.

h W mixes the columns of the state only, so its rows are independent: a program, one warp, carries R of the K rows of
one head's state through one lane of documents. What rows or heads share (y, dv, df; dq, dk; dW) is written as a part
by each program and summed afterwards, in the same order every time.

Compile-time sizes: N heads, K, V; S slices of R rows; C columns, V rounded up; CHUNK tokens between kept states; HALF
where inputs have 16 bits. Arguments of both kernels: q, k [T, K]; v [T, N, V]; f, i = 1 - f [T, N] fp32; w [N, V, V];
cu [D+1] int32; order [D] int32, documents from the longest on; states [T // CHUNK + D, N, S, R, C] fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x: tl.tensor) -> tl.tensor:
    """tanh by exp, which overflows to the right limit; by its series near 0, where 1 - 2 / (1 + e²ˣ) cancels."""
    x2 = x * x
    series = x * (1 + x2 * (-1 / 3 + x2 * (2 / 15 + x2 * (-17 / 315))))
    return tl.where(x2 < 0.015625, series, 1 - 2 / (1 + tl.exp(2 * x)))


@triton.jit  # type: ignore[untyped-decorator]
def _candidate(h: tl.tensor, w: tl.tensor, k: tl.tensor, v: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """tanh(h W + k vᵀ) of one slice, [R, C] fp32: h [R, C] fp32, w [C, C], k [R], v [C].

    HALF multiplies in fp16: every entry of h lies in [-1, 1], so that is tf32's precision, and the accumulator's
    layout is then the operand's. Otherwise in full fp32.
    """
    if HALF:
        z = tl.dot(h.to(tl.float16), w.to(tl.float16), k[:, None] * v[None, :])
    else:
        z = tl.dot(h, w, k[:, None] * v[None, :], input_precision="ieee")
    return _tanh(z)


@triton.jit  # type: ignore[untyped-decorator]
def _token(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, f: tl.tensor, i: tl.tensor, t: tl.tensor, live: tl.tensor,
    head: tl.tensor, rows: tl.tensor, cols: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """q_t, k_t [R], v_t [C], f_t, 1 - f_t of token t in fp32, from their pointers; zeros unless ``live``."""
    at = t.to(tl.int64)
    q_t = tl.load(q + at * K + rows, mask=live & (rows < K), other=0.0).to(tl.float32)
    k_t = tl.load(k + at * K + rows, mask=live & (rows < K), other=0.0).to(tl.float32)
    v_t = tl.load(v + (at * N + head) * V + cols, mask=live & (cols < V), other=0.0).to(tl.float32)
    f_t = tl.load(f + at * N + head, mask=live, other=0.0)
    i_t = tl.load(i + at * N + head, mask=live, other=0.0)
    return q_t, k_t, v_t, f_t, i_t


@triton.jit  # type: ignore[untyped-decorator]
def _weight(w: tl.tensor, head: tl.tensor, V: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """One head's W, [C, C] fp32, zero beyond V."""
    a, b = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.load(w + (head * V + a) * V + b, mask=(a < V) & (b < V), other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _document(cu: tl.tensor, order: tl.tensor, nth: tl.tensor, CHUNK: tl.constexpr) -> tl.tensor:
    """First token, end and first slot among the kept states, of the nth longest document.

    start // CHUNK + its number leaves room for the chunks of every document before it.
    """
    number = tl.load(order + nth)
    start = tl.load(cu + number)
    return start, tl.load(cu + number + 1), (start // CHUNK + number).to(tl.int64)


@triton.jit(do_not_specialize=("documents", "tokens"))  # type: ignore[untyped-decorator]
def m2rnn_forward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, f: tl.tensor, i: tl.tensor, w: tl.tensor,
    cu: tl.tensor, order: tl.tensor, states: tl.tensor, documents: tl.tensor, tokens: tl.tensor,
    y: tl.tensor,  # parts, [S, T, N, V] fp32
    N: tl.constexpr, K: tl.constexpr, V: tl.constexpr, S: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    CHUNK: tl.constexpr, HALF: tl.constexpr,
) -> None:  # fmt: skip
    """y's parts, and the state before every CHUNK-th token of each document. Grid (lanes, N, S), one warp."""
    head, part = tl.program_id(1), tl.program_id(2)
    row, cols = tl.arange(0, R), tl.arange(0, C)
    rows = part * R + row
    tile = row[:, None] * C + cols[None, :]
    w_head = _weight(w, head, V, C)
    for nth in range(tl.program_id(0), documents, tl.num_programs(0)):
        start, end, slot = _document(cu, order, nth, CHUNK)
        h = tl.zeros([R, C], dtype=tl.float32)
        q_t, k_t, v_t, f_t, i_t = _token(q, k, v, f, i, start, start < end, head, rows, cols, N, K, V)
        for chunk in range(0, tl.cdiv(end - start, CHUNK)):
            first = start + chunk * CHUNK
            tl.store(states + (((slot + chunk) * N + head) * S + part) * R * C + tile, h)
            for step in range(0, tl.minimum(CHUNK, end - first)):
                t = first + step
                # the next token's loads are under way while this one is worked on
                later = _token(q, k, v, f, i, t + 1, t + 1 < end, head, rows, cols, N, K, V)
                h = f_t * h + i_t * _candidate(h, w_head, k_t, v_t, HALF)
                at = part * tokens + t.to(tl.int64)
                tl.store(y + (at * N + head) * V + cols, tl.sum(q_t[:, None] * h, axis=0), mask=cols < V)
                q_t, k_t, v_t, f_t, i_t = later


@triton.jit  # type: ignore[untyped-decorator]
def _replay(
    h: tl.tensor, q: tl.tensor, k: tl.tensor, v: tl.tensor, f: tl.tensor, i: tl.tensor, w_head: tl.tensor,
    first: tl.tensor, last: tl.tensor, head: tl.tensor, rows: tl.tensor, cols: tl.tensor, tile: tl.tensor,
    kept: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, C: tl.constexpr, HALF: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Forward again from state h through tokens first to last; what was before each, and its candidate, into ``kept``.

    Returns the last state, [R, C] fp32.
    """
    _, k_t, v_t, f_t, i_t = _token(q, k, v, f, i, first, first < last, head, rows, cols, N, K, V)
    for step in range(0, last - first):
        t = first + step
        later = _token(q, k, v, f, i, t + 1, t + 1 < last, head, rows, cols, N, K, V)
        c = _candidate(h, w_head, k_t, v_t, HALF)
        tl.store(kept + step * 2 * R * C + tile, h)
        tl.store(kept + (step * 2 + 1) * R * C + tile, c)
        h = f_t * h + i_t * c
        _, k_t, v_t, f_t, i_t = later
    return h


@triton.jit  # type: ignore[untyped-decorator]
def _kept(
    kept: tl.tensor, q: tl.tensor, k: tl.tensor, v: tl.tensor, f: tl.tensor, i: tl.tensor, dy: tl.tensor,
    t: tl.tensor, first: tl.tensor, live: tl.tensor, head: tl.tensor, rows: tl.tensor, cols: tl.tensor,
    tile: tl.tensor, tile_t: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, V: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """What the step back through token t reads: state before it [R, C] and [C, R], candidate, ``_token``, dy [C]."""
    saved = kept + (t - first) * 2 * R * C
    h_prev = tl.load(saved + tile, mask=live & (tile >= 0), other=0.0)
    h_prev_t = tl.load(saved + tile_t, mask=live & (tile_t >= 0), other=0.0)
    c = tl.load(saved + R * C + tile, mask=live & (tile >= 0), other=0.0)
    q_t, k_t, v_t, f_t, i_t = _token(q, k, v, f, i, t, live, head, rows, cols, N, K, V)
    dy_t = tl.load(dy + (t.to(tl.int64) * N + head) * V + cols, mask=live & (cols < V), other=0.0).to(tl.float32)
    return h_prev, h_prev_t, c, q_t, k_t, v_t, f_t, i_t, dy_t


@triton.jit(do_not_specialize=("documents", "tokens"))  # type: ignore[untyped-decorator]
def m2rnn_backward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, f: tl.tensor, i: tl.tensor, w: tl.tensor,
    cu: tl.tensor, order: tl.tensor, states: tl.tensor, documents: tl.tensor, tokens: tl.tensor,
    dy: tl.tensor,  # [T, N, V]
    scratch: tl.tensor,  # [lanes, N, S, CHUNK, 2, R, C] fp32: the state before each token of a chunk, and its candidate
    # parts: [N, T, K], [N, T, K], [S, T, N, V], [S, T, N], [lanes, S, N, V, V]
    dq: tl.tensor, dk: tl.tensor, dv: tl.tensor, dlog_f: tl.tensor, dw: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, V: tl.constexpr, S: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    CHUNK: tl.constexpr, HALF: tl.constexpr,
) -> None:  # fmt: skip
    """All gradients' parts, chunk by chunk from the end: its states from the kept one, then back. Grid as forward.

    Gradients are multiplied in tf32 under HALF, for they may be smaller than fp16 can say.
    """
    PRECISION: tl.constexpr = "tf32" if HALF else "ieee"
    lane, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, cols = tl.arange(0, R), tl.arange(0, C)
    rows = part * R + row
    tile, tile_t = row[:, None] * C + cols[None, :], row[None, :] * C + cols[:, None]
    w_head = _weight(w, head, V, C)
    w_t = tl.trans(w_head)
    dw_head = tl.zeros([C, C], dtype=tl.float32)
    kept = scratch + ((lane * N + head) * S + part).to(tl.int64) * CHUNK * 2 * R * C
    for nth in range(lane, documents, tl.num_programs(0)):
        start, end, slot = _document(cu, order, nth, CHUNK)
        chunks = tl.cdiv(end - start, CHUNK)
        g = tl.zeros([R, C], dtype=tl.float32)  # dL/dh_t, first by way of later tokens only
        for back in range(0, chunks):
            chunk = chunks - 1 - back
            first = start + chunk * CHUNK
            last = tl.minimum(first + CHUNK, end)
            h = tl.load(states + (((slot + chunk) * N + head) * S + part) * R * C + tile)
            tl.debug_barrier()  # the chunk before has been read, by whichever thread
            h = _replay(h, q, k, v, f, i, w_head, first, last, head, rows, cols, tile, kept, N, K, V, R, C, HALF)
            tl.debug_barrier()  # and this one has been written
            h_prev, h_prev_t, c, q_t, k_t, v_t, f_t, i_t, dy_t = _kept(
                kept, q, k, v, f, i, dy, last - 1, first, first < last, head, rows, cols, tile, tile_t, N, K, V, R, C
            )
            for step in range(0, last - first):
                t = last - 1 - step
                # the loads of the token before are under way while this one is worked on
                earlier = _kept(
                    kept, q, k, v, f, i, dy, t - 1, first, t > first, head, rows, cols, tile, tile_t, N, K, V, R, C
                )
                at = t.to(tl.int64)
                g += q_t[:, None] * dy_t[None, :]
                dz = g * i_t * (1 - c * c)
                own = (head * tokens + at) * K + rows
                tl.store(dq + own, tl.sum(h * dy_t[None, :], axis=1), mask=rows < K)
                tl.store(dk + own, tl.sum(dz * v_t[None, :], axis=1), mask=rows < K)
                shared = (part * tokens + at) * N + head
                tl.store(dv + shared * V + cols, tl.sum(dz * k_t[:, None], axis=0), mask=cols < V)
                tl.store(dlog_f + shared, f_t * tl.sum(g * (h_prev - c)))
                dw_head = tl.dot(h_prev_t, dz, dw_head, input_precision=PRECISION)
                g = tl.dot(dz, w_t, f_t * g, input_precision=PRECISION)
                h = h_prev
                h_prev, h_prev_t, c, q_t, k_t, v_t, f_t, i_t, dy_t = earlier
    a, b = cols[:, None], cols[None, :]
    tl.store(dw + (((lane * S + part) * N + head) * V + a) * V + b, dw_head, mask=(a < V) & (b < V))
