"""The backward pass of Mamba-3's MIMO scan over rows of one length, by Triton kernels that take blocks side by side.

Takes the place of mamba-ssm's ``mamba_mimo_bwd_combined`` (ops/tilelang/mamba3/mamba3_mimo_bwd.py @
a14b1dff0454a3bc27d9eb31355dc01e4b2490ec), whose two kernels go through a row chunk by chunk. Memory while it runs, in
bf16 at three rows of 4,096 tokens and 128 heads of 128 by 64 of rank 4: rotated q and k and their gradients, 4 B S R
H N numbers, 6.4 GB; v, y and their gradients, 4 B S R H P, 3.2 GB; states and their gradients, B (S / T) H N P,
1.6 GB. A pair of blocks shares a state in memory, for states would be most of what is written and read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from model.layers.mamba3 import kernels
from model.patched import seams

# How each kernel is launched: the fastest on an H200 of those in docs/log.md
OPTIONS = {
    "mimo_states": {"num_warps": 8, "maxnreg": 128},
    "mimo_carry": {"num_warps": 1},
    "mimo_backward": {"num_warps": 4, "maxnreg": 168},
    "mimo_gates": {"num_warps": 1, "HEADS": 2, "STAGES": 3},
    "mimo_fold": {"num_warps": 1, "RANKS": 2, "STAGES": 3},
    "mimo_sums": {"num_warps": 4},
}
CARRIED, COLUMNS = 256, 16  # numbers of a state, and of a half of q or k, that a program takes at most
SUMMED = 2048  # numbers that a program sums, in chunks
ANGLES = 128  # tokens whose angles are summed at a time


def decay_sums(a: Tensor, chunk: int) -> tuple[Tensor, None, None]:
    """In place of ``compute_dacs_segsum_triton`` (ops/triton/mamba3/mamba3_mimo_utils.py @ the same): log decays
    [B, H, S] summed in each chunk. Of its other results, a matrix for each chunk among them, nothing here is made.
    """
    return _summed(a, chunk), None, None


def _summed(a: Tensor, chunk: int, reverse: bool = False) -> Tensor:
    """[B, H, S], as ``a``: sums in each chunk from its first token on, or to its last."""
    out, block = torch.empty_like(a), SUMMED // chunk
    kernels.mimo_sums[triton.cdiv(a.numel(), SUMMED),](
        a, out, a.numel(), REVERSE=reverse, T=chunk, BLOCK=block, **OPTIONS["mimo_sums"]
    )
    return out


def _weights(dt: Tensor, trap: Tensor) -> tuple[Tensor, Tensor]:
    """[B, H, S] fp32 each: the weight of a token in its own output and, before decay, in every later one's."""
    own = dt * trap.sigmoid()
    return own, own + F.pad((dt * (-trap).sigmoid())[..., 1:], (0, 1))


def mimo_backward(
    above: Tensor, q: Tensor, k: Tensor, x: Tensor, q_bias: Tensor, k_bias: Tensor, up: Tensor, down: Tensor, z: Tensor,
    gate: Tensor, angles: Tensor, a: Tensor, a_left: None, dt: Tensor, trap: Tensor, skip: Tensor, segments: None,
    chunk: int, divisor: int, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Arguments, all contiguous, and results of ``mamba_mimo_bwd_combined``.

    above, x, z [B, S, H, P]; q, k [B, S, R, G, N]; q_bias, k_bias [H, R, N]; up, down, gate [H, R, P]; skip [H];
    angles, summed, [B, S, H, N / divisor]; a, dt, trap [B, H, S], ``a`` summed in each chunk. S holds an even number of
    chunks.

    Returns gradients of q, k, x, the log decay, dt, trap, q_bias, k_bias, up, gate, down, angles, skip, z.
    """
    rows, length, rank, groups, width = q.shape
    heads, channels = x.shape[2:]
    blocks, pairs = length // chunk, length // (2 * chunk)
    parts = rows * pairs
    turning = {"H": heads, "G": groups, "R": rank, "N": width, "A": width // divisor}
    sizes = {"S": length, "H": heads, "R": rank, "N": width, "P": channels, "T": chunk}
    with torch.enable_grad():
        leaves = dt.detach().float().requires_grad_(), trap.detach().float().requires_grad_()
        own, later = _weights(*leaves)
    tables = up, gate, down
    wide = [q.new_empty(rows, length, rank, heads, width) for _ in range(2)]
    narrow = [q.new_empty(rows, length, rank, heads, channels) for _ in range(2)]
    states, slopes = (q.new_empty(rows, pairs, heads, width, channels) for _ in range(2))
    kernels.mimo_states[heads, pairs, 2 * rows](
        q, k, q_bias, k_bias, angles, x, z, above, *tables, a, later, *wide, *narrow, states, slopes,
        **OPTIONS["mimo_states"], **sizes | turning,
    )  # fmt: skip
    size, ahead = width * channels, next(n for n in (2, 1) if pairs % n == 0)
    block = min(CARRIED, size)
    kernels.mimo_carry[size // block, heads, 2 * rows](
        states, slopes, a, S=length, H=heads, SIZE=size, T=chunk, BLOCK=block, AHEAD=ahead, **OPTIONS["mimo_carry"]
    )
    d_wide, (y, dv) = [torch.empty_like(t) for t in wide], (torch.empty_like(t) for t in narrow)
    d_own, d_later, sides = torch.empty_like(a), torch.empty_like(a), a.new_empty(2, *a.shape)
    kernels.mimo_backward[2 * heads, blocks, rows](
        *wide, *narrow, a, own.detach(), later.detach(), states, slopes, y, dv, *d_wide, sides, d_own, d_later,
        **OPTIONS["mimo_backward"], **sizes,
    )  # fmt: skip
    d_x, d_z = torch.empty_like(x), torch.empty_like(z)
    sums = [a.new_empty(parts, *t.shape) for t in (*tables, skip)]
    gates = OPTIONS["mimo_gates"]
    kernels.mimo_gates[heads // gates["HEADS"], parts](
        x, z, above, *tables, skip, y, dv, d_x, d_z, *sums, H=heads, R=rank, P=channels, TOKENS=2 * chunk, **gates
    )  # fmt: skip
    columns = min(COLUMNS, width // divisor)
    folding = {**OPTIONS["mimo_fold"], "RANKS": math.gcd(rank, OPTIONS["mimo_fold"]["RANKS"])}
    d_angles = angles.new_empty(2, rank // folding["RANKS"], *angles.shape)
    folded = []
    for one, (given, bias, grad) in enumerate(((q, q_bias, d_wide[0]), (k, k_bias, d_wide[1]))):
        d_given, d_bias = torch.empty_like(given), a.new_empty(parts, *bias.shape)
        kernels.mimo_fold[groups * (width // 2 // columns), parts, len(d_angles[one])](
            given, bias, angles, grad, d_given, d_bias, d_angles[one], TOKENS=2 * chunk, COLUMNS=columns,
            HEADS=triton.next_power_of_2(heads // groups), **folding, **turning,
        )  # fmt: skip
        folded.append((d_given, d_bias.sum(0)))
    (d_q, d_q_bias), (d_k, d_k_bias) = folded
    d_up, d_gate, d_down, d_skip = (each.sum(0) for each in sums)
    d_dt, d_trap = torch.autograd.grad((own, later), leaves, (d_own, d_later))
    d_log = _summed(sides.sum(0), chunk, reverse=True)
    return (
        d_q, d_k, d_x, d_log, d_dt, d_trap.to(trap.dtype), d_q_bias, d_k_bias, d_up, d_gate, d_down,
        d_angles.sum((0, 1)), d_skip, d_z,
    )  # fmt: skip


def _by_longer_chunks(sum_angles: Callable[..., Any]) -> Callable[..., Any]:
    """mamba-ssm's sum of angles, or its gradient, ANGLES tokens at a time: chunks wait for each other, results do not
    depend on their length."""

    def run(*arguments: Any, **options: Any) -> Any:
        return sum_angles(*arguments, **{**options, "chunk_size": ANGLES})

    return run


@functools.cache
def by_blocks(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel``, mamba-ssm's ``mamba3_mimo``, with this backward pass; upstream's own is as it was."""
    names = kernel.__globals__
    function, bound = names["_Mamba3Function"], seams.MAMBA3_BLOCKS
    forward = {"angle_dt_fwd": _by_longer_chunks(names["angle_dt_fwd"])}
    backward = {
        "mamba_mimo_bwd_combined": mimo_backward,
        "compute_dacs_segsum_triton": decay_sums,
        "angle_dt_bwd": _by_longer_chunks(names["angle_dt_bwd"]),
    }
    ways = {
        "forward": staticmethod(bound(function.forward, forward)),
        "backward": staticmethod(bound(function.backward, backward)),
    }
    ours: Callable[..., Any] = bound(kernel, {"_Mamba3Function": type("Mamba3ByBlocks", (function,), ways)})
    return ours
