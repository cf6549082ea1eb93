"""Mamba-3's main backward kernel for sm_90 in Gluon: operands come by TMA and stay in shared memory; no GPU has run it.

The arithmetic is that of ``model.layers.mamba3.kernels.mimo_backward``; gradients of q and k are scaled by row in fp32
after their product, not in bf16 before.
"""
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def _exp(x):
    return gl.inline_asm_elementwise(
        "{ .reg .f32 e; mul.f32 e, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, e; }", "=r,r", [x], dtype=gl.float32,
        is_pure=True, pack=1,
    )


@gluon.jit
def _mma(a, b, acc, use):
    made = warpgroup_mma(a, b, acc, use_acc=use, is_async=True)
    return warpgroup_mma_wait(0, deps=(made,))


@gluon.jit
def _sum_ranks(x, T: gl.constexpr, R: gl.constexpr, flat: gl.constexpr):
    return gl.convert_layout(gl.sum(gl.reshape(x, [T, R]), axis=1), flat)


@gluon.jit
def hopper_backward(
    q_desc, k_desc, v_desc, dy_desc, s_desc, e_desc, y_desc, dv_desc, dq_desc, dk_desc,
    a, own, later, d_a, d_own, d_later,
    S: gl.constexpr, H: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr, T: gl.constexpr,
):
    M: gl.constexpr = T * R
    low: gl.constexpr = q_desc.dtype
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, M, 16])  # [M, M] and [M, P], [N, P]
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, P, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    left_of: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=narrow, k_width=2)
    left_wide: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wide, k_width=2)
    rows: gl.constexpr = gl.SliceLayout(1, narrow)
    wide_rows: gl.constexpr = gl.SliceLayout(1, wide)
    cols: gl.constexpr = gl.SliceLayout(0, square)
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.static_assert(M == P)

    head, block, line = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    odd = block % 2 == 1
    first = (line * S + block * T) * R  # row of q
    heads = (line * H + head) * S + block * T
    beside, beside_heads = first + gl.where(odd, -M, M), heads + gl.where(odd, -T, T)
    place = ((line * (S // (2 * T)) + block // 2) * H + head) * N

    ws = gl.allocate_shared_memory(low, [M, N], q_desc.layout)
    ns = gl.allocate_shared_memory(low, [M, P], v_desc.layout)
    ss = gl.allocate_shared_memory(low, [N, P], s_desc.layout)
    es = gl.allocate_shared_memory(low, [N, P], e_desc.layout)
    qs = gl.allocate_shared_memory(low, [M, N], q_desc.layout)
    ks = gl.allocate_shared_memory(low, [M, N], k_desc.layout)
    vs = gl.allocate_shared_memory(low, [M, P], v_desc.layout)
    gs = gl.allocate_shared_memory(low, [M, P], dy_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    early, late = bars.index(0), bars.index(1)
    mbarrier.init(early, count=1)
    mbarrier.init(late, count=1)
    fence_async_shared()
    mbarrier.expect(early, 2 * (M * N + M * P + 2 * N * P))
    if odd:
        tma.async_copy_global_to_shared(k_desc, [beside, head * N], early, ws)
        tma.async_copy_global_to_shared(v_desc, [beside, head * P], early, ns)
    else:
        tma.async_copy_global_to_shared(q_desc, [beside, head * N], early, ws)
        tma.async_copy_global_to_shared(dy_desc, [beside, head * P], early, ns)
    tma.async_copy_global_to_shared(s_desc, [place, 0], early, ss)
    tma.async_copy_global_to_shared(e_desc, [place, 0], early, es)
    mbarrier.expect(late, 2 * (2 * M * N + 2 * M * P))
    tma.async_copy_global_to_shared(q_desc, [first, head * N], late, qs)
    tma.async_copy_global_to_shared(k_desc, [first, head * N], late, ks)
    tma.async_copy_global_to_shared(v_desc, [first, head * P], late, vs)
    tma.async_copy_global_to_shared(dy_desc, [first, head * P], late, gs)

    row, col, broad = gl.arange(0, M, rows), gl.arange(0, M, cols), gl.arange(0, M, wide_rows)
    a_m, own_m, later_m = gl.load(a + heads + row // R), gl.load(own + heads + row // R), gl.load(later + heads + row // R)
    a_n, later_n = gl.load(a + heads + col // R), gl.load(later + heads + col // R)
    a_w, later_w = gl.load(a + heads + broad // R), gl.load(later + heads + broad // R)
    other, beside_later = gl.load(a + beside_heads + row // R), gl.load(later + beside_heads + row // R)
    a_last, other_last = gl.load(a + heads + T - 1), gl.load(a + beside_heads + T - 1)

    # the state before, or the gradient of the state after, this block: from the pair's through the other block
    weight = _exp(gl.where(odd, other_last - other, other)) * gl.where(odd, beside_later, 1.0)
    mbarrier.wait(early, 0)
    ns.store((ns.load(narrow).to(gl.float32) * weight[:, None]).to(low))
    state, slope = ss.load(narrow), es.load(narrow)
    kept = gl.where(odd, state, slope).to(gl.float32) * _exp(other_last)
    fence_async_shared()
    carried = _mma(ws.permute((1, 0)), ns, kept, True).to(low)
    if odd:
        ss.store(carried)
    else:
        es.store(carried)
    fence_async_shared()  # each thread's own writes, before the barriers of the sum
    unchanged = gl.where(odd, slope, state).to(gl.float32)
    across = gl.sum(gl.sum(carried.to(gl.float32) * unchanged, axis=1), axis=0)
    gl.thread_barrier()
    mbarrier.wait(late, 0)
    zero = gl.full([M, M], 0.0, gl.float32, square)
    scores_made = warpgroup_mma(qs, ks.permute((1, 0)), zero, use_acc=False, is_async=True)
    pairs_made = warpgroup_mma(gs, vs.permute((1, 0)), zero, use_acc=False, is_async=True)
    scores, pairs = warpgroup_mma_wait(0, deps=(scores_made, pairs_made))
    # both products with states run beside what follows
    y_made = warpgroup_mma(qs, ss, gl.full([M, P], 0.0, gl.float32, narrow), use_acc=False, is_async=True)
    dv_made = warpgroup_mma(ks, es, gl.full([M, P], 0.0, gl.float32, narrow), use_acc=False, is_async=True)

    past, same = row[:, None] // R > col[None, :] // R, row[:, None] // R == col[None, :] // R
    both = scores * pairs
    step = gl.arange(0, T, flat)
    gl.store(d_own + heads + step, _sum_ranks(gl.sum(gl.where(same, both, 0.0), axis=1), T, R, flat))
    decay = gl.where(past, _exp(gl.where(past, a_m[:, None] - a_n[None, :], 0.0)), 0.0)
    both *= decay
    d_a_m = gl.sum(both * later_n[None, :], axis=1)
    d_later_n = gl.sum(both, axis=0)
    weight = decay * later_n[None, :] + gl.where(same, own_m[:, None], 0.0)
    scores, pairs = (scores * weight).to(low), (pairs * weight).to(low)
    y, dv = warpgroup_mma_wait(0, deps=(y_made, dv_made))

    halves = ws._reinterpret(low, [2, M, P], v_desc.layout)
    scores_s, pairs_s = ns, halves.index(0)
    scores_s.store(scores)
    pairs_s.store(pairs)
    fence_async_shared()
    y *= _exp(a_m)[:, None]
    d_a_m += gl.sum(y * gs.load(narrow).to(gl.float32), axis=1)
    left = _exp(a_last - a_m)
    dv *= left[:, None]
    out_m = gl.sum(dv * vs.load(narrow).to(gl.float32), axis=1)
    dv *= later_m[:, None]
    scores = gl.convert_layout(scores, left_of)
    y_made = warpgroup_mma(scores, vs, y, is_async=True)
    dv_made = warpgroup_mma(scores_s.permute((1, 0)), gs, dv, is_async=True)
    d_later_m = gl.convert_layout(d_later_n, rows) + out_m
    d_a_m -= d_later_m * later_m
    d_last = across * _exp(a_last) + gl.sum(out_m * later_m, axis=0)
    gl.store(d_a + heads + step, _sum_ranks(d_a_m, T, R, flat) + gl.where(step == T - 1, d_last, 0.0))
    gl.store(d_later + heads + step, _sum_ranks(d_later_m, T, R, flat))
    y, dv, scores = warpgroup_mma_wait(0, deps=(y_made, dv_made, scores))  # scores: read from registers until then

    grad = _mma(gs, ss.permute((1, 0)), gl.full([M, N], 0.0, gl.float32, wide), False)
    y_s = halves.index(1)
    gl.thread_barrier()  # every warp has waited: nothing reads what is overwritten from here on
    y_s.store(y.to(low))
    ns.store(dv.to(low))  # its product with what lay here is done
    fence_async_shared()
    tma.async_copy_shared_to_global(y_desc, [first, head * P], y_s)
    tma.async_copy_shared_to_global(dv_desc, [first, head * P], ns)
    grad *= _exp(a_w)[:, None]
    grad = _mma(gl.convert_layout(pairs, left_wide), ks, grad, True)
    gl.thread_barrier()
    ks.store(grad.to(low))
    fence_async_shared()
    tma.async_copy_shared_to_global(dq_desc, [first, head * N], ks)
    grad = _mma(vs, es.permute((1, 0)), gl.full([M, N], 0.0, gl.float32, wide), False)
    grad *= (_exp(a_last - a_w) * later_w)[:, None]
    grad = _mma(pairs_s.permute((1, 0)), qs, grad, True)
    gl.thread_barrier()
    qs.store(grad.to(low))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk_desc, [first, head * N], qs)
    tma.store_wait(0)
    mbarrier.invalidate(early)
    mbarrier.invalidate(late)


@gluon.jit
def _sigmoid(x):
    return gl.inline_asm_elementwise(
        "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
        " rcp.approx.ftz.f32 $0, e; }", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1,
    )


@gluon.jit
def _turns(x):
    times = gl.floor(x * 0.15915494309189535 + 0.5)
    x = x - times * 6.28125 - times * 0.0019353071795864769
    return gl.inline_asm_elementwise(
        "cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;", "=r,=r,r", [x], dtype=(gl.float32, gl.float32),
        is_pure=True, pack=1,
    )


@gluon.jit
def hopper_states(
    wide_in, bias, angles, x, z, table, gate, a, later, wide_desc, narrow_desc, state_desc,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, P: gl.constexpr,
    A: gl.constexpr, T: gl.constexpr, FORWARD: gl.constexpr, WARPS: gl.constexpr,
):
    """One side of mimo_states: (k, x, up) FORWARD, else (q, above, down) with z and gate. A thread has one token's ranks."""
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    gl.static_assert(L == P)
    low_type: gl.constexpr = wide_desc.dtype
    cube: gl.constexpr = gl.BlockedLayout([1, 4 * R // WARPS, 8], [256 // L, 1, L // 8], [4, WARPS // 4, 1], [2, 1, 0])
    by_token: gl.constexpr = gl.SliceLayout(1, cube)
    by_rank: gl.constexpr = gl.SliceLayout(0, cube)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, P, 16])
    head, pair, line = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    token, heads = line * S + pair * 2 * T, (line * H + head) * S + pair * 2 * T
    t = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, cube)))
    t_c = gl.arange(0, T, gl.SliceLayout(1, by_token))[:, None]
    c_t = gl.arange(0, L, gl.SliceLayout(0, by_token))[None, :]
    r_c = gl.arange(0, R, gl.SliceLayout(1, by_rank))[:, None]
    c_r = gl.arange(0, L, gl.SliceLayout(0, by_rank))[None, :]
    r = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None]
    c = gl.arange(0, L, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
    row = t[:, None, None] * R + r

    turned = gl.allocate_shared_memory(low_type, [2, M, N], wide_desc.layout)
    kept = gl.allocate_shared_memory(low_type, [2, M, P], narrow_desc.layout)
    weighted = gl.allocate_shared_memory(low_type, [2, M, P], narrow_desc.layout)
    first_last, last = gl.load(a + heads + T - 1), gl.load(a + heads + 2 * T - 1)
    acc = gl.full([N, P], 0.0, gl.float32, acc_layout)
    for one in range(2):
        at, here = token + one * T, heads + one * T
        place = wide_in + (at * R * G + head // (H // G)) * N + row * (G * N) + c
        low, high = gl.load(place), gl.load(place + L)
        angle = gl.load(angles + ((at + t_c) * H + head) * A + c_t, mask=c_t < A, other=0.0)
        narrow = ((at + t_c) * H + head) * P + c_t
        x_t = gl.load(x + narrow)
        if not FORWARD:
            z_t = gl.load(z + narrow)
        a_t, later_t = gl.load(a + here + t), gl.load(later + here + t)
        low = low.to(gl.float32) + gl.load(bias + (head * R + r_c) * N + c_r)[None, :, :]
        high = high.to(gl.float32) + gl.load(bias + (head * R + r_c) * N + L + c_r)[None, :, :]
        cos, sin = _turns(angle)
        cos, sin = cos[:, None, :], sin[:, None, :]
        turned_low, turned_high = (cos * low - sin * high).to(low_type), (sin * low + cos * high).to(low_type)
        both = turned.index(one)
        halves = both._reinterpret(low_type, [2, M, L], wide_desc.layout)  # panels of 128 bytes a row, one after the other
        halves.index(0).store(gl.reshape(turned_low, [M, L]))
        halves.index(1).store(gl.reshape(turned_high, [M, L]))
        given = x_t.to(gl.float32)[:, None, :] * gl.load(table + (head * R + r_c) * P + c_r)[None, :, :]
        if FORWARD:
            weight = _exp(last + gl.where(one == 0, first_last, 0.0) - a_t) * later_t
        else:
            g = z_t.to(gl.float32)[:, None, :] * gl.load(gate + (head * R + r_c) * P + c_r)[None, :, :]
            given = given * g * _sigmoid(g)
            weight = _exp(a_t + gl.where(one == 0, 0.0, first_last))
        given = given.to(low_type)
        kept.index(one).store(gl.reshape(given, [M, P]))
        weighted.index(one).store(gl.reshape((given.to(gl.float32) * weight[:, None, None]).to(low_type), [M, P]))
        fence_async_shared()
        line_of = at * R
        tma.async_copy_shared_to_global(wide_desc, [line_of, head * N], halves.index(0))
        tma.async_copy_shared_to_global(wide_desc, [line_of, head * N + L], halves.index(1))
        tma.async_copy_shared_to_global(narrow_desc, [line_of, head * P], kept.index(one))
        acc = _mma(both.permute((1, 0)), weighted.index(one), acc, True)
    summed = weighted._reinterpret(low_type, [N, P], state_desc.layout)
    gl.thread_barrier()  # both warpgroups have waited
    summed.store(acc.to(low_type))
    fence_async_shared()
    to = ((line * (S // (2 * T)) + pair) * H + head) * N
    tma.async_copy_shared_to_global(state_desc, [to, 0], summed)
    tma.store_wait(0)


@gluon.jit
def _tile(d_turned, token, at, R: gl.constexpr, H: gl.constexpr, N: gl.constexpr):
    place = d_turned + token * (R * H * N) + at
    return gl.load(place), gl.load(place + N // 2)


@gluon.jit
def hopper_fold(
    x, bias, angles, d_turned, d_x, d_bias, d_angle,
    H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr, TOKENS: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """mimo_fold: a thread has all ranks of two heads and four columns of each half, so that only heads are summed
    across threads; the next token's gradients are on their way meanwhile."""
    HEADS: gl.constexpr = H // G
    cube: gl.constexpr = gl.BlockedLayout([R, HEADS * COLUMNS // 128, 4], [1, 128 // COLUMNS, COLUMNS // 4], [1, 1, 1], [2, 1, 0])
    of_heads: gl.constexpr = gl.SliceLayout(0, cube)
    of_ranks: gl.constexpr = gl.SliceLayout(1, cube)
    group, first = gl.program_id(0) // (N // 2 // COLUMNS), gl.program_id(0) % (N // 2 // COLUMNS) * COLUMNS
    r = gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(2, cube)))[:, None, None]
    h = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, cube)))[None, :, None] + group * HEADS
    c = gl.arange(0, COLUMNS, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :] + first
    h_a = gl.arange(0, HEADS, gl.SliceLayout(1, of_heads))[:, None] + group * HEADS
    c_a = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_heads))[None, :] + first
    r_x = gl.arange(0, R, gl.SliceLayout(1, of_ranks))[:, None]
    c_x = gl.arange(0, COLUMNS, gl.SliceLayout(0, of_ranks))[None, :] + first
    at, of_bias, of_x, of_angle = (r * H + h) * N + c, (h * R + r) * N + c, (r_x * G + group) * N + c_x, h_a * A + c_a
    start = gl.program_id(1) * TOKENS
    low_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    high_sum = gl.full([R, HEADS, COLUMNS], 0.0, gl.float32, cube)
    low_next, high_next = _tile(d_turned, start, at, R, H, N)
    for step in range(TOKENS):
        token = start + step
        low, high = low_next.to(gl.float32), high_next.to(gl.float32)
        low_next, high_next = _tile(d_turned, start + gl.minimum(step + 1, TOKENS - 1), at, R, H, N)
        place = token * (R * G * N) + of_x
        if first < A:
            angle = token * (H * A) + of_angle
            cos, sin = _turns(gl.load(angles + angle))
            cos, sin = cos[None, :, :], sin[None, :, :]
            low, high = cos * low + sin * high, cos * high - sin * low
            x_low, x_high = gl.load(x + place).to(gl.float32)[:, None, :], gl.load(x + place + N // 2).to(gl.float32)[:, None, :]
            crossed = high * (x_low + gl.load(bias + of_bias)) - low * (x_high + gl.load(bias + of_bias + N // 2))
            gl.store(d_angle + angle, gl.sum(crossed, axis=0))
        low_sum += low
        high_sum += high
        gl.store(d_x + place, gl.sum(low, axis=1).to(d_x.dtype.element_ty))
        gl.store(d_x + place + N // 2, gl.sum(high, axis=1).to(d_x.dtype.element_ty))
    part = d_bias + gl.program_id(1) * (H * R * N) + of_bias
    gl.store(part, low_sum)
    gl.store(part + N // 2, high_sum)


def descriptors(q, k, v, dy, states, slopes, y, dv, dq, dk, rows):
    """Of what lies as [B, S, R, H, N or P] and [B, pairs, H, N, P], ``rows`` of a head at a time."""
    def flat(x, lines):
        x = x.view(-1, x.shape[-1]) if lines else x.view(-1, x.shape[-2] * x.shape[-1])
        return x
    made = []
    for t in (q, k, v, dy):
        made.append(_one(flat(t, False), [rows, t.shape[-1]]))
    for t in (states, slopes):
        made.append(_one(flat(t, True), [t.shape[-2], t.shape[-1]]))
    for t in (y, dv, dq, dk):
        made.append(_one(flat(t, False), [rows, t.shape[-1]]))
    return made


def state_descriptors(wide, narrow, states, rows):
    """For one side of the states: half a head's columns, a head's, and a state at a time."""
    half, channels = wide.shape[-1] // 2, narrow.shape[-1]
    return [
        _one(wide.view(-1, wide.shape[-2] * wide.shape[-1]), [rows, half]),
        _one(narrow.view(-1, narrow.shape[-2] * channels), [rows, channels]),
        _one(states.view(-1, channels), [2 * half, channels]),
    ]


def _one(x, block):
    return TensorDescriptor.from_tensor(x, block, gl.NVMMASharedLayout.get_default_for(block, gl.bfloat16))
