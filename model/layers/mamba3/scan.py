"""The backward pass of Mamba-3's MIMO scan over rows of one length, by Triton kernels that take blocks side by side.

Takes the place of mamba-ssm's ``mamba_mimo_bwd_combined`` (ops/tilelang/mamba3/mamba3_mimo_bwd.py @
a14b1dff0454a3bc27d9eb31355dc01e4b2490ec), whose two kernels go through a row chunk by chunk. Memory while it runs, in
bf16 at three rows of 4,096 tokens and 128 heads of 128 by 64 of rank 4: rotated q and k and their gradients, 4 B S R
H N numbers, 6.4 GB; v, y and their gradients, 4 B S R H P, 3.2 GB; states and their gradients, B (S / T) H N P, 1.6 GB;
parts of the angles' gradients, 2 R B S H A in fp32, 1.6 GB. A pair of blocks shares a state in memory, for states would
be most of what is written and read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from model.layers.mamba3 import kernels
from model.patched import seams

TOKENS = 16  # that a program rotates


def mimo_backward(
    above: Tensor, q: Tensor, k: Tensor, x: Tensor, q_bias: Tensor, k_bias: Tensor, up: Tensor, down: Tensor, z: Tensor,
    gate: Tensor, angles: Tensor, a: Tensor, a_left: Tensor, dt: Tensor, trap: Tensor, skip: Tensor, segments: Tensor,
    chunk: int, divisor: int, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Arguments and results of ``mamba_mimo_bwd_combined``.

    above, x, z [B, S, H, P]; q, k [B, S, R, G, N]; q_bias, k_bias [H, R, N]; up, down, gate [H, R, P]; skip [H];
    angles, summed, [B, S, H, N / divisor]; a, dt, trap [B, H, S], ``a`` summed in each chunk. S holds an even number of
    chunks.

    Returns gradients of q, k, x, the log decay, dt, trap, q_bias, k_bias, up, gate, down, angles, skip, z.
    """
    rows, length, rank, groups, width = q.shape
    heads, channels = x.shape[2:]
    sizes = {"S": length, "H": heads, "R": rank, "N": width, "T": chunk}
    columns = min(width // divisor, 32)
    spread = {
        "H": heads, "G": groups, "R": rank, "N": width, "A": width // divisor, "TOKENS": TOKENS, "COLUMNS": columns,
        "HEADS": triton.next_power_of_2(heads // groups),
    }  # fmt: skip
    blocks, pairs = length // chunk, length // (2 * chunk)
    with torch.enable_grad():
        leaves = dt.detach().float().requires_grad_(), trap.detach().float().requires_grad_()
        own = leaves[0] * leaves[1].sigmoid()
        later = own + F.pad((leaves[0] * (-leaves[1]).sigmoid())[..., 1:], (0, 1))
    cos, sin = angles.cos(), angles.sin()
    turned = [q.new_empty(rows, length, rank, heads, width) for _ in range(2)]
    grid = (groups * (width // 2 // columns), rank, rows * length // TOKENS)
    for given, bias, to in ((q, q_bias, turned[0]), (k, k_bias, turned[1])):
        kernels.mimo_rotate[grid](given, bias, cos, sin, to, num_warps=1, **spread)
    narrow = {"H": heads, "R": rank, "P": channels, "TOKENS": TOKENS}
    tables = (up, gate, down)
    v, dy = (q.new_empty(rows, length, rank, heads, channels) for _ in range(2))
    kernels.mimo_expand[heads // 4, grid[2]](x, z, above, *tables, v, dy, HEADS=4, num_warps=1, **narrow)
    states, slopes = (q.new_empty(rows, pairs, heads, width, channels) for _ in range(2))
    kernels.mimo_states[heads, pairs, 2 * rows](
        *turned, v, dy, a, later, states, slopes, P=channels, num_warps=8, **sizes
    )
    block, ahead = min(256, width * channels), next(n for n in (2, 1) if pairs % n == 0)
    kernels.mimo_carry[width * channels // block, heads, 2 * rows](
        states, slopes, a, S=length, H=heads, SIZE=width * channels, T=chunk, BLOCK=block, AHEAD=ahead, num_warps=1
    )
    d_turned, y, dv = [torch.empty_like(t) for t in turned], torch.empty_like(v), torch.empty_like(v)
    d_a, d_own, d_later = (torch.empty_like(a) for _ in range(3))
    kernels.mimo_backward[heads, blocks, rows](
        *turned, v, dy, a, own.detach(), later.detach(), states, slopes, y, dv, *d_turned, d_a, d_own, d_later,
        P=channels, **sizes,
    )  # fmt: skip
    d_x, d_z = torch.empty_like(x), torch.empty_like(z)
    parts = [a.new_empty(grid[2], *t.shape) for t in (*tables, skip)]
    kernels.mimo_gates[heads // 2, grid[2]](
        x, z, above, *tables, skip, y, dv, d_x, d_z, *parts, HEADS=2, num_warps=1, **narrow
    )
    d_angles = angles.new_empty(2, rank, *angles.shape)
    folded = []
    for one, (given, bias, grad) in enumerate(((q, q_bias, d_turned[0]), (k, k_bias, d_turned[1]))):
        d_given, part = torch.empty_like(given), a.new_empty(grid[2], *bias.shape)
        kernels.mimo_fold[grid](given, bias, cos, sin, grad, d_given, part, d_angles[one], num_warps=1, **spread)
        folded.append((d_given, part.sum(0)))
    (d_q, d_q_bias), (d_k, d_k_bias) = folded
    d_up, d_gate, d_down, d_skip = (part.sum(0) for part in parts)
    d_dt, d_trap = torch.autograd.grad((own, later), leaves, (d_own, d_later))
    d_log = d_a.unflatten(2, (blocks, chunk)).flip(-1).cumsum(-1).flip(-1).flatten(2)
    return (
        d_q, d_k, d_x, d_log, d_dt, d_trap.to(trap.dtype), d_q_bias, d_k_bias, d_up, d_gate, d_down,
        d_angles.sum((0, 1)), d_skip, d_z,
    )  # fmt: skip


@functools.cache
def by_blocks(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, mamba-ssm's ``mamba3_mimo``, with this backward pass; upstream's own is as it was."""
    names = kernel.__globals__
    function = names["_Mamba3Function"]
    backward = seams.MAMBA3_BLOCKS(function.backward, {"mamba_mimo_bwd_combined": mimo_backward})
    ours = type("Mamba3ByBlocks", (function,), {"backward": staticmethod(backward)})
    bound: Callable[..., Any] = seams.MAMBA3_BLOCKS(kernel, {"_Mamba3Function": ours})
    return bound
