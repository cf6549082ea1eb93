"""The backward pass of Mamba-3's MIMO scan over rows of one length, by Triton kernels that take blocks side by side.

Takes the place of mamba-ssm's ``mamba_mimo_bwd_combined`` (ops/tilelang/mamba3/mamba3_mimo_bwd.py @
a14b1dff0454a3bc27d9eb31355dc01e4b2490ec), whose two kernels go through a row chunk by chunk. Memory while it runs, in
bf16 at three rows of 4,096 tokens and 128 heads of 128 by 64 of rank 4: rotated q and k and their gradients, 4 B S R
H N numbers, 6.4 GB; v, y and their gradients, 4 B S R H P, 3.2 GB; states and their gradients, B (S / T) H N P,
1.6 GB. A pair of blocks shares a state in memory, for states would be most of what is written and read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

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
    "mimo_backward": {"num_warps": 4},
    "mimo_gates": {"num_warps": 1, "HEADS": 2, "STAGES": 3},
    "mimo_fold": {"num_warps": 1, "STAGES": 3},
    "mimo_sums": {"num_warps": 4},
}
CARRIED, COLUMNS = 256, 16  # numbers of a state, and of a half of q or k, that a program takes at most
SUMMED = 2048  # numbers that a program sums, in chunks
ANGLES = 128  # tokens whose angles are summed at a time


class Launches(NamedTuple):
    """The three kernels that there are of two kinds: those of ``kernels`` and, for sm_90, of ``hopper``."""

    states: Callable[..., None]
    backward: Callable[..., None]
    fold: Callable[..., None]


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


def run_states(
    q: Tensor, k: Tensor, q_bias: Tensor, k_bias: Tensor, angles: Tensor, x: Tensor, z: Tensor, above: Tensor,
    up: Tensor, gate: Tensor, down: Tensor, a: Tensor, later: Tensor, wide: list[Tensor], narrow: list[Tensor],
    states: Tensor, slopes: Tensor, chunk: int,
) -> None:  # fmt: skip
    """Fills ``wide`` (q and k turned), ``narrow`` (v, dy), the states before each pair of blocks and the gradients of
    those after it."""
    rows, length, rank, groups, width = q.shape
    heads, channels = x.shape[2:]
    kernels.mimo_states[heads, length // (2 * chunk), 2 * rows](
        q, k, q_bias, k_bias, angles, x, z, above, up, gate, down, a, later, *wide, *narrow, states, slopes,
        S=length, H=heads, G=groups, R=rank, N=width, P=channels, A=angles.shape[-1], T=chunk, **OPTIONS["mimo_states"],
    )  # fmt: skip
    size, ahead = width * channels, next(n for n in (2, 1) if length // (2 * chunk) % n == 0)
    block = min(CARRIED, size)
    kernels.mimo_carry[size // block, heads, 2 * rows](
        states, slopes, a, S=length, H=heads, SIZE=size, T=chunk, BLOCK=block, AHEAD=ahead, **OPTIONS["mimo_carry"]
    )


def run_backward(
    wide: list[Tensor], narrow: list[Tensor], a: Tensor, own: Tensor, later: Tensor, states: Tensor, slopes: Tensor,
    y: Tensor, dv: Tensor, d_wide: list[Tensor], d_a: Tensor, d_own: Tensor, d_later: Tensor, chunk: int,
) -> None:  # fmt: skip
    """Fills y, dv, the gradients of ``wide`` and those of each token's decay and weights."""
    rows, length, rank, heads, width = wide[0].shape
    kernels.mimo_backward[heads, length // chunk, rows](
        *wide, *narrow, a, own, later, states, slopes, y, dv, *d_wide, d_a, d_own, d_later,
        S=length, H=heads, R=rank, N=width, P=y.shape[-1], T=chunk, **OPTIONS["mimo_backward"],
    )  # fmt: skip


def run_fold(
    given: Tensor, bias: Tensor, angles: Tensor, grad: Tensor, d_given: Tensor, d_bias: Tensor, d_angles: Tensor,
    tokens: int,
) -> None:  # fmt: skip
    """From ``grad``, of q or k turned: its own gradient, its angles' and, a part for ``tokens`` tokens, its bias's."""
    rank, groups, width = given.shape[2:]
    heads, turning = angles.shape[2:]
    columns = min(COLUMNS, turning)
    kernels.mimo_fold[groups * (width // 2 // columns), len(d_bias)](
        given, bias, angles, grad, d_given, d_bias, d_angles, H=heads, G=groups, R=rank, N=width, A=turning,
        TOKENS=tokens, COLUMNS=columns, HEADS=triton.next_power_of_2(heads // groups), **OPTIONS["mimo_fold"],
    )  # fmt: skip


TRITON = Launches(run_states, run_backward, run_fold)


def mimo_backward(
    above: Tensor, q: Tensor, k: Tensor, x: Tensor, q_bias: Tensor, k_bias: Tensor, up: Tensor, down: Tensor, z: Tensor,
    gate: Tensor, angles: Tensor, a: Tensor, a_left: None, dt: Tensor, trap: Tensor, skip: Tensor, segments: None,
    chunk: int, divisor: int, dtype: torch.dtype, *, by: Launches = TRITON,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Arguments, all contiguous, and results of ``mamba_mimo_bwd_combined``; ``by``: which kernels run.

    above, x, z [B, S, H, P]; q, k [B, S, R, G, N]; q_bias, k_bias [H, R, N]; up, down, gate [H, R, P]; skip [H];
    angles, summed, [B, S, H, N / divisor]; a, dt, trap [B, H, S], ``a`` summed in each chunk. S holds an even number of
    chunks.

    Returns gradients of q, k, x, the log decay, dt, trap, q_bias, k_bias, up, gate, down, angles, skip, z.
    """
    rows, length, rank, _, width = q.shape
    heads, channels = x.shape[2:]
    pairs = length // (2 * chunk)
    parts = rows * pairs
    with torch.enable_grad():
        leaves = dt.detach().float().requires_grad_(), trap.detach().float().requires_grad_()
        own, later = _weights(*leaves)
    tables = up, gate, down
    wide = [q.new_empty(rows, length, rank, heads, width) for _ in range(2)]
    narrow = [q.new_empty(rows, length, rank, heads, channels) for _ in range(2)]
    states, slopes = (q.new_empty(rows, pairs, heads, width, channels) for _ in range(2))
    by.states(
        q, k, q_bias, k_bias, angles, x, z, above, *tables, a, later, wide, narrow, states, slopes, chunk
    )  # fmt: skip
    d_wide, (y, dv) = [torch.empty_like(t) for t in wide], (torch.empty_like(t) for t in narrow)
    d_a, d_own, d_later = (torch.empty_like(a) for _ in range(3))
    by.backward(
        wide, narrow, a, own.detach(), later.detach(), states, slopes, y, dv, d_wide, d_a, d_own, d_later, chunk
    )  # fmt: skip
    d_x, d_z = torch.empty_like(x), torch.empty_like(z)
    sums = [a.new_empty(parts, *t.shape) for t in (*tables, skip)]
    gates = OPTIONS["mimo_gates"]
    kernels.mimo_gates[heads // gates["HEADS"], parts](
        x, z, above, *tables, skip, y, dv, d_x, d_z, *sums, H=heads, R=rank, P=channels, TOKENS=2 * chunk, **gates
    )  # fmt: skip
    d_angles = angles.new_empty(2, *angles.shape)
    folded = []
    for one, (given, bias, grad) in enumerate(((q, q_bias, d_wide[0]), (k, k_bias, d_wide[1]))):
        d_given, d_bias = torch.empty_like(given), a.new_empty(parts, *bias.shape)
        by.fold(given, bias, angles, grad, d_given, d_bias, d_angles[one], 2 * chunk)
        folded.append((d_given, d_bias.sum(0)))
    (d_q, d_q_bias), (d_k, d_k_bias) = folded
    d_up, d_gate, d_down, d_skip = (each.sum(0) for each in sums)
    d_dt, d_trap = torch.autograd.grad((own, later), leaves, (d_own, d_later))
    d_log = _summed(d_a, chunk, reverse=True)
    return (
        d_q, d_k, d_x, d_log, d_dt, d_trap.to(trap.dtype), d_q_bias, d_k_bias, d_up, d_gate, d_down, d_angles.sum(0),
        d_skip, d_z,
    )  # fmt: skip


def _by_longer_chunks(sum_angles: Callable[..., Any]) -> Callable[..., Any]:
    """mamba-ssm's sum of angles, or its gradient, ANGLES tokens at a time: chunks wait for each other, results do not
    depend on their length."""

    def run(*arguments: Any, **options: Any) -> Any:
        return sum_angles(*arguments, **{**options, "chunk_size": ANGLES})

    return run


@functools.cache
def by_blocks(kernel: Callable[..., Any], by: Launches = TRITON) -> Callable[..., Any]:
    """``kernel``, mamba-ssm's ``mamba3_mimo``, with this backward pass; upstream's own is as it was."""
    names = kernel.__globals__
    function, bound = names["_Mamba3Function"], seams.MAMBA3_BLOCKS
    forward = {"angle_dt_fwd": _by_longer_chunks(names["angle_dt_fwd"])}
    backward = {
        "mamba_mimo_bwd_combined": functools.partial(mimo_backward, by=by),
        "compute_dacs_segsum_triton": decay_sums,
        "angle_dt_bwd": _by_longer_chunks(names["angle_dt_bwd"]),
    }
    ways = {
        "forward": staticmethod(bound(function.forward, forward)),
        "backward": staticmethod(bound(function.backward, backward)),
    }
    ours: Callable[..., Any] = bound(kernel, {"_Mamba3Function": type("Mamba3ByBlocks", (function,), ways)})
    return ours
