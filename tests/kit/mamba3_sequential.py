"""Mamba-3's MIMO recurrence one step at a time in fp64: the arbiter for the chunked form and for the kernels.

Written from the recurrence (see ``mamba3_reference``), not from the sum over past steps that the other two compute, and
rotating by complex multiplication. Slow on purpose: nothing here is shared with what it judges.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor


def mamba3_mimo_sequential(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    ADT: Tensor,
    DT: Tensor,
    Trap: Tensor,
    Q_bias: Tensor,
    K_bias: Tensor,
    MIMO_V: Tensor,
    MIMO_Z: Tensor,
    MIMO_Out: Tensor,
    Angles: Tensor,
    D: Tensor,
    Z: Tensor,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(output fp64 [B, S, H, P], state after each document's last step fp64 [documents or B, H, P, N]).

    Arguments as in ``mamba3_reference.mamba3_mimo_reference``, all given; differentiable. Reads ``cu_seqlens`` on the
    host.
    """
    batch, length, _, groups, _ = Q.shape
    heads, outputs, states = V.shape[2], [], []
    Q, K = (t.double().repeat_interleave(heads // groups, 3) for t in (Q, K))  # [B, S, R, H, N]
    q = Q + Q_bias.double().transpose(0, 1)
    k = K + K_bias.double().transpose(0, 1)
    v = V.double()[:, :, None] * MIMO_V.double().transpose(0, 1)  # [B, S, R, H, P]
    gate = torch.nn.functional.silu(Z.double()[:, :, None] * MIMO_Z.double().transpose(0, 1))  # [B, S, R, H, P]
    steps = [t.double().transpose(1, 2) for t in (ADT, DT, Trap)]  # [B, S, H]
    cuts = [0, length] if cu_seqlens is None else cu_seqlens.tolist()
    for row, (low, high) in itertools.product(range(batch), itertools.pairwise(cuts)):
        own = (t[row, low:high] for t in (q, k, v, *steps, Angles.double()))
        y, state = _document(*own)
        states.append(state)
        outputs.append((y + D.double()[:, None] * v[row, low:high]) * gate[row, low:high])
    y = torch.cat(outputs).unflatten(0, (batch, length))  # [B, S, R, H, P]
    return (y * MIMO_Out.double().transpose(0, 1)).sum(2), torch.stack(states).mT


def _document(
    q: Tensor, k: Tensor, v: Tensor, adt: Tensor, dt: Tensor, trap: Tensor, angles: Tensor
) -> tuple[Tensor, Tensor]:
    """(y [S, R, H, P], last state [H, N, P]) of one document from rest; q, k [S, R, H, N], v [S, R, H, P]."""
    state = q.new_zeros(*q.shape[2:], v.shape[-1])  # [H, N, P]
    before, theta, outputs = torch.zeros_like(state), torch.zeros_like(angles[:1].sum(0)), []
    for t in range(len(q)):
        theta = theta + math.pi * angles[t].tanh() * dt[t][:, None]  # [H, N / divisor]
        added = torch.einsum("rhn,rhp->hnp", _turn(k[t], theta), v[t])
        share = trap[t].sigmoid()[:, None, None]
        step, decay = dt[t][:, None, None], adt[t].exp()[:, None, None]
        state = decay * (state + (1 - share) * step * before) + share * step * added
        outputs.append(torch.einsum("rhn,hnp->rhp", _turn(q[t], theta), state))
        before = added
    return torch.stack(outputs) if outputs else torch.zeros_like(v), state


def _turn(x: Tensor, theta: Tensor) -> Tensor:
    """x [R, H, N] with (x_n, x_{n + N/2}) turned by theta_n, theta [H, N / divisor]; the other pairs stay."""
    real, imaginary = x.chunk(2, dim=-1)
    still = theta.new_zeros(*theta.shape[:-1], real.shape[-1] - theta.shape[-1])
    angle = torch.cat((theta, still), dim=-1)  # [H, N / 2]
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)
