"""Triton kernels of M²RNN's recurrence; ``m2rnn_triton`` launches them.

Only the recurrences themselves go token by token, forward through the states and back through their gradients. What
reads these, each token by itself, does so for all tokens side by side.

h W mixes the columns of the state only, so its rows are independent: in a recurrence a program, one warp, carries R of
the K rows of one head's state through one lane of documents. dq, dk and dW are written as parts, which are summed
afterwards in the same order every time.

Compile-time sizes: N heads, K, V; S slices of R rows; C columns, V rounded up; TOKENS a step of what is side by side;
HALF where inputs have 16 bits. Arguments: q, k [T, K]; v, dy, y, dv [T, N, V]; f, i = 1 - f [T, N] fp32; w [N, V, V];
cu [D+1] int32; order [D] int32, documents from the longest on; carries [T] fp32, 0 at a document's first token, else 1;
states, slopes, grads [T, N, S R, C]: h after each token, 1 - tanh² of its candidate, and the gradient of h. Inputs of
loops are fp32: Triton copies ahead what has four bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no inline assembly


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """1 - 2 / (1 + e²ˣ), which overflows to the right limit. It cancels near 0: off by 1e-7, nothing to fp16; else its
    series there.

    On a GPU HALF takes the approximations by themselves, good to a bit or two: Triton's own scale their operands
    before and their results after, while a recurrence waits.
    """
    if HALF and COMPILED:
        return tl.inline_asm_elementwise(  # type: ignore[no-any-return]
            "{ .reg .f32 e; mul.f32 e, $1, 0f4038AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
            " rcp.approx.ftz.f32 e, e; fma.rn.f32 $0, e, 0fC0000000, 0f3F800000; }",
            "=r,r",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    rest = 1 - 2 / (1 + tl.exp(2 * x))
    x2 = x * x
    return rest if HALF else tl.where(x2 < 0.015625, x * (1 + x2 * (-1 / 3 + x2 * (2 / 15 + x2 * (-17 / 315)))), rest)


@triton.jit  # type: ignore[untyped-decorator]
def _candidate(h: tl.tensor, w: tl.tensor, added: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """tanh(h W + k vᵀ) of some rows, [rows, C] fp32: h [rows, C], w [C, C], added [rows, C] fp32.

    HALF multiplies in fp16: every entry of h lies in [-1, 1], so that is tf32's precision, and the accumulator's
    layout is then the operand's. Otherwise in full fp32.
    """
    if HALF:
        h, w = h.to(tl.float16), w.to(tl.float16)
    return _tanh(tl.dot(h, w, added, input_precision="ieee"), HALF)


@triton.jit  # type: ignore[untyped-decorator]
def _through(dz: tl.tensor, w_t: tl.tensor, rest: tl.tensor, HALF: tl.constexpr, BF16: tl.constexpr) -> tl.tensor:
    """rest + dz Wᵀ, [R, C] fp32. dz may be smaller than fp16 can say.

    BF16, where W has that dtype: dz as two numbers of it, 16 bits together, in the accumulator's layout. tf32 would
    have another one.
    """
    if BF16 and COMPILED:  # the interpreter multiplies no bf16
        high = dz.to(tl.bfloat16)
        low = (dz - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(low, w_t.to(tl.bfloat16), tl.dot(high, w_t.to(tl.bfloat16), rest))
    else:
        return tl.dot(dz, w_t, rest, input_precision="tf32" if HALF else "ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _weight(w: tl.tensor, head: tl.tensor, V: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """One head's W, [C, C] fp32, zero beyond V."""
    a, b = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return tl.load(w + (head * V + a) * V + b, mask=(a < V) & (b < V), other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _document(cu: tl.tensor, order: tl.tensor, nth: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """First token and end of the nth longest document."""
    number = tl.load(order + nth)
    return tl.load(cu + number), tl.load(cu + number + 1)


@triton.jit  # type: ignore[untyped-decorator]
def _token(
    wide: tl.tensor,
    narrow: tl.tensor,
    f: tl.tensor,
    i: tl.tensor,
    t: tl.tensor,
    head: tl.tensor,
    rows: tl.tensor,
    cols: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of token t k vᵀ or q dyᵀ, [R, C] fp32, and f and 1 - f, [R, 1]. Four bytes a load can be copied ahead."""
    one = tl.load(wide + t * K + rows, mask=rows < K, other=0.0)
    two = tl.load(narrow + (t * N + head) * V + cols, mask=cols < V, other=0.0)
    at = t * N + head + rows * 0
    return one[:, None] * two[None, :], tl.load(f + at)[:, None], tl.load(i + at)[:, None]


@triton.jit(do_not_specialize=("documents",))  # type: ignore[untyped-decorator]
def m2rnn_states(
    k: tl.tensor,
    v: tl.tensor,
    f: tl.tensor,
    i: tl.tensor,
    w: tl.tensor,
    cu: tl.tensor,
    order: tl.tensor,
    states: tl.tensor,
    documents: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """``states``; k and v are fp32. Grid (lanes, N, S), one warp."""
    head, part = tl.program_id(1), tl.program_id(2)
    row, cols = tl.arange(0, R), tl.arange(0, C)
    rows = part * R + row
    tile = (head * S + part) * R * C + row[:, None] * C + cols[None, :]
    w_head = _weight(w, head, V, C)
    for nth in range(tl.program_id(0), documents, tl.num_programs(0)):
        start, end = _document(cu, order, nth)
        h = tl.zeros([R, C], dtype=tl.float32)
        for step in tl.range(0, end - start, num_stages=STAGES):
            t = (start + step).to(tl.int64)
            added, f_t, i_t = _token(k, v, f, i, t, head, rows, cols, N, K, V)
            h = f_t * h + i_t * _candidate(h, w_head, added, HALF)
            tl.store(states + t * (N * S * R * C) + tile, h.to(states.dtype.element_ty))


@triton.jit(do_not_specialize=("tokens",))  # type: ignore[untyped-decorator]
def m2rnn_read(
    q: tl.tensor,
    states: tl.tensor,
    y: tl.tensor,
    tokens: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """``y``. Grid (⌈T / TOKENS⌉, N)."""
    head = tl.program_id(1)
    t = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    row, cols = tl.arange(0, S * R)[None, :, None], tl.arange(0, C)[None, None, :]
    h = tl.load(states + ((t * N + head) * (S * R) + row) * C + cols, mask=t < tokens, other=0.0).to(tl.float32)
    q_t = tl.load(q + t * K + row, mask=(t < tokens) & (row < K), other=0.0).to(tl.float32)
    y_t = tl.sum(q_t * h, axis=1, keep_dims=True)
    tl.store(y + (t * N + head) * V + cols, y_t.to(y.dtype.element_ty), mask=(t < tokens) & (cols < V))


@triton.jit  # type: ignore[untyped-decorator]
def _before(
    k: tl.tensor,
    v: tl.tensor,
    carries: tl.tensor,
    states: tl.tensor,
    w_head: tl.tensor,
    t: tl.tensor,
    row: tl.tensor,
    col: tl.tensor,
    head: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The state before token t and its candidate, [S R, C] fp32; k [S R, 1] and v [1, C]."""
    at = ((tl.maximum(t - 1, 0) * N + head) * (S * R) + row) * C + col
    h = tl.load(states + at).to(tl.float32) * tl.load(carries + t + row * 0)
    k_t = tl.load(k + t * K + row, mask=row < K, other=0.0)
    v_t = tl.load(v + (t * N + head) * V + col, mask=col < V, other=0.0)
    return h, _candidate(h, w_head, k_t * v_t, HALF), k_t, v_t


@triton.jit(do_not_specialize=("tokens",))  # type: ignore[untyped-decorator]
def m2rnn_slopes(
    k: tl.tensor,
    v: tl.tensor,
    w: tl.tensor,
    carries: tl.tensor,
    states: tl.tensor,
    slopes: tl.tensor,
    tokens: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """``slopes``; k and v are fp32. Grid (⌈T / TOKENS⌉, N), one warp."""
    head, row, col = tl.program_id(1), tl.arange(0, S * R)[:, None], tl.arange(0, C)[None, :]
    w_head = _weight(w, head, V, C)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    for t in tl.range(first, tl.minimum(first + TOKENS, tokens), num_stages=STAGES):
        _, c, _, _ = _before(k, v, carries, states, w_head, t, row, col, head, N, K, V, S, R, C, HALF)
        to = slopes + ((t * N + head) * (S * R) + row) * C + col
        tl.store(to, (1 - c * c).to(slopes.dtype.element_ty))


@triton.jit(do_not_specialize=("documents",))  # type: ignore[untyped-decorator]
def m2rnn_back(
    q: tl.tensor,
    dy: tl.tensor,
    f: tl.tensor,
    i: tl.tensor,
    w: tl.tensor,
    cu: tl.tensor,
    order: tl.tensor,
    slopes: tl.tensor,
    grads: tl.tensor,
    documents: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """``grads``, which may lie where ``slopes`` lie: a token's slope is read before. q and dy are fp32. Grid as
    ``m2rnn_states``.
    """
    BF16: tl.constexpr = w.dtype.element_ty == tl.bfloat16
    head, part = tl.program_id(1), tl.program_id(2)
    row, cols = tl.arange(0, R), tl.arange(0, C)
    rows = part * R + row
    tile = (head * S + part) * R * C + row[:, None] * C + cols[None, :]
    w_t = tl.trans(_weight(w, head, V, C))
    for nth in range(tl.program_id(0), documents, tl.num_programs(0)):
        start, end = _document(cu, order, nth)
        g = tl.zeros([R, C], dtype=tl.float32)
        for step in tl.range(0, end - start, num_stages=STAGES):
            t = (end - 1 - step).to(tl.int64)
            added, f_t, i_t = _token(q, dy, f, i, t, head, rows, cols, N, K, V)
            slope = tl.load(slopes + t * (N * S * R * C) + tile).to(tl.float32)
            g += added
            tl.store(grads + t * (N * S * R * C) + tile, g.to(grads.dtype.element_ty))
            g = _through(g * (i_t * slope), w_t, f_t * g, HALF, BF16)


@triton.jit(do_not_specialize=("tokens",))  # type: ignore[untyped-decorator]
def m2rnn_gradients(
    k: tl.tensor,
    v: tl.tensor,
    f: tl.tensor,
    i: tl.tensor,
    w: tl.tensor,
    carries: tl.tensor,
    states: tl.tensor,
    grads: tl.tensor,
    dy: tl.tensor,
    tokens: tl.tensor,
    dq: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
    dlog_f: tl.tensor,
    dw: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """dv; dlog_f [T, N] fp32; fp32 parts of dq, dk [N, T, K] and dw [programs of axis 0, N, V, V].

    k, v and dy are fp32. Grid (⌈T / TOKENS⌉, N), one warp.
    """
    head, row, col = tl.program_id(1), tl.arange(0, S * R)[:, None], tl.arange(0, C)[None, :]
    w_head = _weight(w, head, V, C)
    dw_head = tl.zeros([C, C], dtype=tl.float32)
    first = tl.program_id(0).to(tl.int64) * TOKENS
    for t in tl.range(first, tl.minimum(first + TOKENS, tokens), num_stages=STAGES):
        h, c, k_t, v_t = _before(k, v, carries, states, w_head, t, row, col, head, N, K, V, S, R, C, HALF)
        shared, own = t * N + head, (head.to(tl.int64) * tokens + t) * K + row
        g = tl.load(grads + (shared * (S * R) + row) * C + col).to(tl.float32)
        dy_t = tl.load(dy + shared * V + col, mask=col < V, other=0.0)
        f_t, i_t = tl.load(f + shared + row * 0), tl.load(i + shared + row * 0)
        dz = g * (i_t * (1 - c * c))
        tl.store(dq + own, tl.sum((f_t * h + i_t * c) * dy_t, axis=1, keep_dims=True), mask=row < K)
        tl.store(dk + own, tl.sum(dz * v_t, axis=1, keep_dims=True), mask=row < K)
        d_v = tl.sum(dz * k_t, axis=0, keep_dims=True)
        tl.store(dv + shared * V + col, d_v.to(dv.dtype.element_ty), mask=col < V)
        tl.store(dlog_f + shared, tl.sum(tl.sum(g * (h - c), axis=1, keep_dims=True) * f_t))
        if HALF:  # exact of what is kept in fp16
            dw_head = tl.dot(tl.trans(h), dz, dw_head, input_precision="tf32")
        else:
            dw_head = tl.dot(tl.trans(h), dz, dw_head, input_precision="ieee")
    a, b = tl.arange(0, C)[:, None], col
    tl.store(dw + ((tl.program_id(0) * N + head) * V + a) * V + b, dw_head, mask=(a < V) & (b < V))
