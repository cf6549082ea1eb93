"""What Triton kernels do beside those of ``hopper`` for Mamba-3's MIMO scan over rows; ``scan`` launches them.

The scan is linear attention with a decay. With q, k [N] rotated and v, y [P] of each token and rank, in blocks of T:

    y_i = sum_{j < i} exp(a_i - a_j) later_j (q_i k_j) v_j + own_i (q_i k_i) v_i + exp(a_i) q_i S,
    S'  = exp(a_last) S + sum_j exp(a_last - a_j) later_j k_j v_jᵀ,

a the running sum of log decays in the block, i and j tokens, S [N, P] the state before it. Component n of q and k turns
with n + N / 2 by angle n < A. Here are the weights own and later with their gradients, sums in blocks, and the gate.

Arguments: x, z, above [B, S, H, P]; y, dv [B, S, R, H, P]; up, gate, down [H, R, P], skip [H] fp32; dt, trap, own and
later [B, H, S], fp32 but for trap.
"""

from __future__ import annotations

import triton
import triton.language as tl

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has no inline assembly
# instructions of PTX; those but SIGMOID are for ``hopper`` alone
EXP = tl.constexpr("{ .reg .f32 e; mul.f32 e, $1, 0f3FB8AA3B; ex2.approx.ftz.f32 $0, e; }")
SIGMOID = tl.constexpr(
    "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000;"
    " rcp.approx.ftz.f32 $0, e; }"
)
TURNS = tl.constexpr("cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;")
WIDENED = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")  # two of bf16, as fp32


@triton.jit  # type: ignore[untyped-decorator]
def _sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-x)) of fp32 by the GPU's own approximations, good to a bit or two."""
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
