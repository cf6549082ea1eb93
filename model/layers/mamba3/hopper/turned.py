"""q turned, and the gradient of y: what the main kernel of the backward pass reads, but for the states' part of it."""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from model.layers.mamba3.hopper import parts
from model.layers.mamba3.scan import Given


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_turned(
    q: gl.tensor,
    angles: gl.tensor,
    bias: gl.tensor,
    above: gl.tensor,
    z: gl.tensor,
    down: gl.tensor,
    gate: gl.tensor,
    turned_to: gl.tensor,
    dy_to: gl.tensor,
    S: gl.constexpr,
    H: gl.constexpr,
    G: gl.constexpr,
    R: gl.constexpr,
    N: gl.constexpr,
    P: gl.constexpr,
    A: gl.constexpr,
    T: gl.constexpr,
) -> None:
    """One block of one head: q [B, S, R, G, N] with its bias, turned, its channels in this room's order; and dy."""
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    gl.static_assert(N == 4 * A and L == P)
    dtype: gl.constexpr = turned_to.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 2], [64 // A, 1, A // 2], [4, 1, 1], [2, 1, 0])
    cube: gl.constexpr = gl.BlockedLayout([1, R, 2], [1, 1, 32], [4, 1, 1], [2, 1, 0])
    turned_s = gl.allocate_shared_memory(dtype, [2, M, L], turned_to.layout)
    dy_s = gl.allocate_shared_memory(dtype, [M, P], dy_to.layout)
    head, token = gl.program_id(0), gl.program_id(2) * S + gl.program_id(1) * T
    turning = angles + (token * H + head) * A + parts.places(T, A, H * A, gl.SliceLayout(1, wide))
    t = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, wide)))[:, None, None]
    r = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, wide)))[None, :, None]
    c = gl.arange(0, A, gl.SliceLayout(0, gl.SliceLayout(1, wide)))[None, None, :]
    q_p = q + (token * R * G + head // (H // G)) * N + (t * R + r) * (G * N) + c
    bias_p = bias + head * (R * N) + r * N + c
    low, low_still, high, high_still = gl.load(q_p), gl.load(q_p + A), gl.load(q_p + L), gl.load(q_p + L + A)
    given = (token * H + head) * P + parts.places(T, P, H * P, gl.SliceLayout(1, cube))
    above_t, z_t = gl.load(above + given), gl.load(z + given)
    table = head * (R * P) + parts.places(R, P, P, gl.SliceLayout(0, cube))
    down_h, gate_h = gl.load(down + table)[None, :, :], gl.load(gate + table)[None, :, :]
    low_bias, high_bias = gl.load(bias_p), gl.load(bias_p + L)
    low_still_bias, high_still_bias = gl.load(bias_p + A), gl.load(bias_p + L + A)
    cos, sin = parts.turns(gl.load(turning))
    low, high = parts.widened(low) + low_bias, parts.widened(high) + high_bias
    low_still, high_still = parts.widened(low_still) + low_still_bias, parts.widened(high_still) + high_still_bias
    turned_s.index(0).store(parts.turned_half(low, high, cos[:, None, :], sin[:, None, :], dtype, M, L))
    turned_s.index(1).store(parts.half(low_still.to(dtype), high_still.to(dtype), M, L))
    gated = parts.widened(z_t)[:, None, :] * gate_h
    dy = parts.widened(above_t)[:, None, :] * down_h * gated * parts.sigmoid(gated)
    dy_s.store(gl.reshape(dy.to(dtype), [M, P]))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(turned_to, [token * R, head * N], turned_s.index(0))
    tma.async_copy_shared_to_global(turned_to, [token * R, head * N + L], turned_s.index(1))
    tma.async_copy_shared_to_global(dy_to, [token * R, head * P], dy_s)
    tma.store_wait(0)


def run_turned(of: Given, to: Tensor) -> Tensor:
    """Turns q into ``to`` [B, S, R, H, N]; returns the gradient of y [B, S, R, H, P]."""
    sizes, dy = of.sizes(), of.x.new_empty(*of.q.shape[:3], *of.x.shape[2:])
    block = sizes["T"] * sizes["R"]
    mimo_turned[sizes["H"], sizes["S"] // sizes["T"], len(of.q)](
        of.q,
        of.angles,
        of.q_bias,
        of.above,
        of.z,
        of.down,
        of.gate,
        parts.tiles(to, block, sizes["N"] // 2),
        parts.tiles(dy, block, sizes["P"]),
        **sizes,
        num_warps=4,
    )
    return dy
