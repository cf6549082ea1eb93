"""Mamba-3's MIMO scan over rows of one length by the kernels of ``hopper``, in the places of mamba-ssm's own.

Takes the place of ``mamba_mimo_forward`` and ``mamba_mimo_bwd_combined`` (ops/tilelang/mamba3/mamba3_mimo_fwd.py and
mamba3_mimo_bwd.py @ a14b1dff0454a3bc27d9eb31355dc01e4b2490ec), and of pack 53's backward pass. Memory while a backward
pass runs, in bf16 at three rows of 4,096 tokens and 128 heads of 128 by 64 of rank 4: rotated q and k and their
gradients, 4 B S R H N numbers, 6.4 GB; y, its gradient and that of v, 3 B S R H P, 2.4 GB; states, B (S / T) H N P,
1.6 GB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from model.kinds.recurrent import mamba3 as kind
from model.layers.mamba3 import kernels
from model.patched import seams

# How each kernel is launched: the fastest on an H200 of those in docs/log.md
OPTIONS = {
    "mimo_gates": {"num_warps": 1, "HEADS": 2, "STAGES": 4},
    "mimo_sums": {"num_warps": 4},
    "mimo_weights": {"num_warps": 4},
    "mimo_weights_back": {"num_warps": 4},
}
SUMMED = 2048  # numbers that a program sums, in chunks
ANGLES = 128  # tokens whose angles are summed at a time


class Given(NamedTuple):
    """Inputs of the backward kernels, as in ``mimo_backward``; own, later [B, H, S] fp32: weights of the values."""

    q: Tensor
    k: Tensor
    q_bias: Tensor
    k_bias: Tensor
    angles: Tensor
    x: Tensor
    z: Tensor
    above: Tensor
    up: Tensor
    gate: Tensor
    down: Tensor
    a: Tensor
    own: Tensor
    later: Tensor
    chunk: int

    def sizes(self) -> dict[str, int]:
        """By their names in the kernels."""
        (_, length, rank, groups, width), (heads, channels) = self.q.shape, self.x.shape[2:]
        turning = self.angles.shape[-1]
        return {
            "S": length,
            "H": heads,
            "G": groups,
            "R": rank,
            "N": width,
            "P": channels,
            "A": turning,
            "T": self.chunk,
        }

    def wide(self) -> list[Tensor]:
        """Memory for two [B, S, R, H, N]."""
        size = (*self.q.shape[:3], self.x.shape[2], self.q.shape[-1])
        return [self.q.new_empty(size) for _ in range(2)]

    def narrow(self) -> list[Tensor]:
        """Memory for two [B, S, R, H, P]."""
        size = (*self.q.shape[:3], *self.x.shape[2:])
        return [self.q.new_empty(size) for _ in range(2)]


class Launches(NamedTuple):
    """Launchers of the kernels of both passes (``hopper.launches``).

    ``forward``: in place of ``mamba_mimo_forward``. ``states`` makes of a Given what ``backward`` reads with it: q and
    k turned, states before blocks, and dy. ``backward`` returns y and dv [B, S, R, H, P] without what skips, and the
    gradients of q and k turned, of a, own and later. ``fold`` makes of those of q and k turned the gradients of q and k
    and, a part for each ``tokens`` tokens, of their biases [2, parts, H, R, N], and returns that of angles.
    """

    forward: Callable[..., tuple[Tensor, None, None]]
    states: Callable[[Given], tuple[Tensor, ...]]
    backward: Callable[[Given, tuple[Tensor, ...]], tuple[Tensor, ...]]
    fold: Callable[[Given, tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, int], Tensor]


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


def weights(dt: Tensor, trap: Tensor) -> tuple[Tensor, Tensor]:
    """[B, H, S] fp32 each, as dt: the weight of a token in its own output and, before decay, in every later one's."""
    own, later = (torch.empty_like(dt, dtype=torch.float32) for _ in range(2))
    kernels.mimo_weights[triton.cdiv(dt.numel(), SUMMED),](
        dt, trap, own, later, dt.numel(), S=dt.shape[-1], BLOCK=SUMMED, **OPTIONS["mimo_weights"]
    )
    return own, later


def mimo_backward(
    above: Tensor,
    q: Tensor,
    k: Tensor,
    x: Tensor,
    q_bias: Tensor,
    k_bias: Tensor,
    up: Tensor,
    down: Tensor,
    z: Tensor,
    gate: Tensor,
    angles: Tensor,
    a: Tensor,
    a_left: None,
    dt: Tensor,
    trap: Tensor,
    skip: Tensor,
    segments: None,
    chunk: int,
    divisor: int,
    dtype: torch.dtype,
    *,
    by: Launches,
) -> tuple[Tensor, ...]:
    """Arguments, all contiguous, and results of ``mamba_mimo_bwd_combined``; ``by``: which kernels run.

    above, x, z [B, S, H, P]; q, k [B, S, R, G, N]; q_bias, k_bias [H, R, N]; up, down, gate [H, R, P]; skip [H];
    angles, summed, [B, S, H, N / divisor]; a, dt, trap [B, H, S], ``a`` summed in each chunk. S holds an even number of
    chunks.

    Returns gradients of q, k, x, the log decay, dt, trap, q_bias, k_bias, up, gate, down, angles, skip, z.
    """
    rows, length, rank = q.shape[:3]
    heads, channels = x.shape[2:]
    tokens = next(n for n in (4 * chunk, 2 * chunk) if length % n == 0)
    parts = rows * length // tokens
    own, later = weights(dt, trap)
    tables = up, gate, down
    given = Given(q, k, q_bias, k_bias, angles, x, z, above, *tables, a, own, later, chunk)
    y, dv, *d_wide, d_a, d_own, d_later = by.backward(given, by.states(given))
    d_x, d_z = torch.empty_like(x), torch.empty_like(z)
    of_tables, of_skip = a.new_empty(len(tables), parts, *up.shape), a.new_empty(parts, *skip.shape)
    gates = OPTIONS["mimo_gates"]
    kernels.mimo_gates[heads // gates["HEADS"], parts](
        x,
        z,
        above,
        *tables,
        skip,
        y,
        dv,
        d_x,
        d_z,
        *of_tables,
        of_skip,
        H=heads,
        R=rank,
        P=channels,
        TOKENS=tokens,
        **gates,
    )
    d_q, d_k, d_biases = torch.empty_like(q), torch.empty_like(k), a.new_empty(2, parts, *q_bias.shape)
    d_angles = by.fold(given, (d_wide[0], d_wide[1]), (d_q, d_k), d_biases, tokens)
    # one sum for all tables: to launch one takes the host longer than the GPU to run it
    (d_up, d_gate, d_down), (d_q_bias, d_k_bias) = of_tables.sum(1), d_biases.sum(1)
    d_dt, d_trap = torch.empty_like(dt), torch.empty_like(trap)
    kernels.mimo_weights_back[triton.cdiv(dt.numel(), SUMMED),](
        dt, trap, d_own, d_later, d_dt, d_trap, dt.numel(), S=length, BLOCK=SUMMED, **OPTIONS["mimo_weights_back"]
    )
    d_log = _summed(d_a, chunk, reverse=True)
    return (
        d_q,
        d_k,
        d_x,
        d_log,
        d_dt,
        d_trap,
        d_q_bias,
        d_k_bias,
        d_up,
        d_gate,
        d_down,
        d_angles,
        of_skip.sum(0),
        d_z,
    )


def _by_longer_chunks(sum_angles: Callable[..., Any]) -> Callable[..., Any]:
    """mamba-ssm's sum of angles, or its gradient, ANGLES tokens at a time: chunks wait for each other, results do not
    depend on their length."""

    def run(*arguments: Any, **options: Any) -> Any:
        return sum_angles(*arguments, **{**options, "chunk_size": ANGLES})

    return run


def _takes_none(*arguments: Any) -> bool:
    """In place of pack 53's ``can_run_parallel``: nothing goes to its kernels."""
    return False


@functools.cache
def by_blocks(kernel: Callable[..., Any], by: Launches) -> Callable[..., Any]:
    """``kernel``, mamba-ssm's ``mamba3_mimo``, with the passes of ``by``; upstream's own is as it was."""
    names = kernel.__globals__
    function, bound = names["_Mamba3Function"], seams.rebound
    seams.verify(kind.HOPPER)
    forward = {
        "mamba_mimo_forward": by.forward,
        "compute_dacs_segsum_triton": decay_sums,
        "angle_dt_fwd": _by_longer_chunks(names["angle_dt_fwd"]),
    }
    backward = {
        "mamba_mimo_bwd_combined": functools.partial(mimo_backward, by=by),
        "compute_dacs_segsum_triton": decay_sums,
        "angle_dt_bwd": _by_longer_chunks(names["angle_dt_bwd"]),
    }
    if "can_run_parallel" in function.backward.__code__.co_names:
        backward["can_run_parallel"] = _takes_none
    ways = {
        "forward": staticmethod(bound(function.forward, forward)),
        "backward": staticmethod(bound(function.backward, backward)),
    }
    ours: Callable[..., Any] = bound(kernel, {"_Mamba3Function": type("Mamba3ByBlocks", (function,), ways)})
    return ours
