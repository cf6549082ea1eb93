"""k turned, block by block, where the forward pass has kept the states that are made of it."""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from model.layers.mamba3.hopper import parts
from model.layers.mamba3.scan import Given


@gluon.jit  # type: ignore[untyped-decorator]
def mimo_turned(
    k: gl.tensor, angles: gl.tensor, bias: gl.tensor, turned_to: gl.tensor,
    S: gl.constexpr, H: gl.constexpr, G: gl.constexpr, R: gl.constexpr, N: gl.constexpr, A: gl.constexpr,
    T: gl.constexpr,
) -> None:  # fmt: skip
    """One block of one head: k [B, S, R, G, N] with its bias, turned, its channels in this room's order."""
    M: gl.constexpr = T * R
    L: gl.constexpr = N // 2
    dtype: gl.constexpr = turned_to.dtype
    wide: gl.constexpr = gl.BlockedLayout([1, R, 2], [64 // A, 1, A // 2], [4, 1, 1], [2, 1, 0])
    of_tokens: gl.constexpr = gl.SliceLayout(1, wide)
    turned_s = gl.allocate_shared_memory(dtype, [2, M, L], turned_to.layout)
    head, token = gl.program_id(0), gl.program_id(2) * S + gl.program_id(1) * T
    step = gl.arange(0, T, gl.SliceLayout(1, of_tokens))[:, None]
    turning = angles + (token * H + head) * A + step * (H * A) + gl.arange(0, A, gl.SliceLayout(0, of_tokens))[None, :]
    t = gl.arange(0, T, gl.SliceLayout(1, gl.SliceLayout(2, wide)))[:, None, None]
    r = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, wide)))[None, :, None]
    c = gl.arange(0, A, gl.SliceLayout(0, gl.SliceLayout(1, wide)))[None, None, :]
    k_p = k + (token * R * G + head // (H // G)) * N + (t * R + r) * (G * N) + c
    bias_p = bias + head * (R * N) + r * N + c
    low, low_still, high, high_still = gl.load(k_p), gl.load(k_p + A), gl.load(k_p + L), gl.load(k_p + L + A)
    low_bias, high_bias = gl.load(bias_p), gl.load(bias_p + L)
    low_still_bias, high_still_bias = gl.load(bias_p + A), gl.load(bias_p + L + A)
    cos, sin = parts.turns(gl.load(turning))
    low, high = low.to(gl.float32) + low_bias, high.to(gl.float32) + high_bias
    low_still, high_still = low_still.to(gl.float32) + low_still_bias, high_still.to(gl.float32) + high_still_bias
    turned_s.index(0).store(parts.turned_half(low, high, cos[:, None, :], sin[:, None, :], dtype, M, L))
    turned_s.index(1).store(parts.half(low_still.to(dtype), high_still.to(dtype), M, L))
    fence_async_shared()
    gl.thread_barrier()
    tma.async_copy_shared_to_global(turned_to, [token * R, head * N], turned_s.index(0))
    tma.async_copy_shared_to_global(turned_to, [token * R, head * N + L], turned_s.index(1))
    tma.store_wait(0)


def run_turned(of: Given, to: Tensor) -> None:
    """Turns k into ``to`` [B, S, R, H, N]."""
    sizes = of.sizes()
    block, half = sizes["T"] * sizes["R"], sizes["N"] // 2
    mimo_turned[sizes["H"], sizes["S"] // sizes["T"], len(of.k)](
        of.k, of.angles, of.k_bias, parts.tiles(to, block, half), **{name: sizes[name] for name in "SHGRNAT"},
        num_warps=4,
    )  # fmt: skip
