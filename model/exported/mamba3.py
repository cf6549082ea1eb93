"""Mamba-3, MIMO and SISO, as the recurrence that it is.

A token's update needs the state h, the running angle, and key and value of the token before (the trapezoidal rule). All
but the update itself is computed for all tokens of a pass at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.exported.dims import Dims, Layer
from model.exported.step import Linear, Step


@dataclass
class Mamba3State:
    """After a token; zero ahead of a document. ``h`` [H, N, P], ``angle`` fp64 [H, A] in [0, 2π), the token's rotated
    ``key`` [H, R, N] and ``value`` [H, R, P]."""

    h: Tensor
    angle: Tensor
    key: Tensor
    value: Tensor


def _kept(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32))


class Mamba3(nn.Module):  # type: ignore[misc]
    """mamba_ssm/modules/mamba3.py @ a14b1dff0454a3bc27d9eb31355dc01e4b2490ec, by its parameters' names.

    H heads in G groups, N channels of the state, P of a head, R the rank, A rotary angles.
    """

    def __init__(self, dims: Dims, layer: Layer) -> None:
        super().__init__()
        m, heads = dims.mamba, dims.mamba.heads
        inner, self.angles, self.mimo = heads * m.head_dim, m.angles, m.rank > 1
        self.rank, self.groups, self.heads, self.A_floor = m.rank, m.groups, heads, m.A_floor
        self.parts = [inner, inner, *[m.state * m.groups * m.rank] * 2, heads, heads, heads, self.angles]
        self.in_proj = Linear(dims.hidden, sum(self.parts))
        self.dt_bias, self.D = _kept(heads), _kept(heads)
        self.B_bias, self.C_bias = _kept(heads, m.rank, m.state), _kept(heads, m.rank, m.state)
        self.B_norm, self.C_norm = (nn.RMSNorm(m.state, eps=1e-5) for _ in range(2))
        if self.mimo:
            self.mimo_x, self.mimo_z, self.mimo_o = (_kept(heads, m.rank, m.head_dim) for _ in range(3))
        self.out_proj = Linear(inner, dims.hidden)

    def begin(self, capacity: int) -> Mamba3State:
        """The state ahead of a document."""
        work = torch.promote_types(self.in_proj.weight.dtype, torch.float32)
        device, (H, R, N), P = self.in_proj.weight.device, self.B_bias.shape, self.parts[0] // self.heads
        shapes = ((H, N, P), (H, self.angles), (H, R, N), (H, R, P))
        dtypes = (work, torch.float64, work, work)
        return Mamba3State(*(torch.zeros(s, dtype=d, device=device) for s, d in zip(shapes, dtypes, strict=True)))

    def forward(self, x: Tensor, state: Mamba3State, step: Step) -> Tensor:
        """x [S, h] -> [S, h]."""
        work = torch.promote_types(x.dtype, torch.float32)
        z, v, B, C, dt, A, trap, angles = self.in_proj(x).split(self.parts, dim=-1)
        dt = F.softplus(dt + self.dt_bias)  # [S, H], as all three below
        decay = (dt * (-F.softplus(A.to(work))).clamp(max=-self.A_floor)).exp()
        share = trap.to(work).sigmoid()
        theta = self._angles(angles.to(work), dt, state)
        k = self._turned(self.B_norm(B.unflatten(-1, (self.rank, self.groups, -1))), self.B_bias, theta)  # [S, H, R, N]
        q = self._turned(self.C_norm(C.unflatten(-1, (self.rank, self.groups, -1))), self.C_bias, theta)
        v, z = (t.to(work).unflatten(-1, (self.heads, 1, -1)) for t in (v, z))  # [S, H, 1, P]
        if self.mimo:
            v, z = v * self.mimo_x, z * self.mimo_z  # [S, H, R, P]
        y = self._scan(q, k, v, decay, share * dt, (1 - share) * dt, state)  # [S, H, R, P]
        y = (y + self.D[:, None, None] * v) * F.silu(z)
        y = (y * self.mimo_o).sum(2) if self.mimo else y.squeeze(2)
        return self.out_proj(y.flatten(1).to(x.dtype))

    def _angles(self, angles: Tensor, dt: Tensor, state: Mamba3State) -> Tensor:
        """The document's running sum of π tanh(angles) dt, modulo 2π: angles [S, A], dt [S, H] -> [S, H, A]."""
        turns = math.pi * angles.tanh().unsqueeze(1) * dt.unsqueeze(-1)
        total = (state.angle + turns.cumsum(0, dtype=torch.float64)).remainder(2 * math.pi)
        state.angle = total[-1]
        return total.to(turns.dtype)

    def _turned(self, x: Tensor, bias: Tensor, theta: Tensor) -> Tensor:
        """x [S, R, G, N] for each group's heads, plus ``bias`` [H, R, N], rotated by theta [S, H, A] -> [S, H, R, N].

        MIMO's kernels rotate channel n with n + N/2, SISO's 2n with 2n + 1: these are put in MIMO's order, in queries
        and keys alike.
        """
        x = x.repeat_interleave(self.heads // self.groups, dim=2).transpose(1, 2) + bias
        if not self.mimo:
            x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        half, wide = x.shape[-1] // 2, theta.shape[-1]
        a, b, c, d = x.split([wide, half - wide, wide, half - wide], dim=-1)
        cos, sin = theta.cos().unsqueeze(2), theta.sin().unsqueeze(2)
        return torch.cat((cos * a - sin * c, b, sin * a + cos * c, d), dim=-1)

    @staticmethod
    def _scan(
        q: Tensor, k: Tensor, v: Tensor, decay: Tensor, own: Tensor, before: Tensor, state: Mamba3State
    ) -> Tensor:
        """q, k [S, H, R, N], v [S, H, R, P], and by [S, H] the decay, a token's weight and that of the token before.

        A token adds its own keys and values and those of the token before, as one product of rank 2 R.
        """
        keys, values = torch.cat((state.key[None], k)), torch.cat((state.value[None], v))
        weights = (own[..., None, None], (decay * before)[..., None, None])
        added = torch.cat((weights[0] * keys[1:], weights[1] * keys[:-1]), dim=2).mT  # [S, H, N, 2 R]
        of = torch.cat((values[1:], values[:-1]), dim=2)  # [S, H, 2 R, P]
        h, states = state.h, []
        for decay_t, added_t, of_t, q_t in zip(decay[..., None, None], added, of, q, strict=True):
            h = torch.baddbmm(decay_t * h, added_t, of_t)
            states.append(q_t @ h)
        state.h, state.key, state.value = h, keys[-1], values[-1]
        return torch.stack(states)
