"""Mamba-3 (mamba-ssm 2.3.2.post1) as a recurrence over states h [H, N, P], of rank R; of rank 1 it is SISO.

With k = turn(B + B_bias), q = turn(C + C_bias), v = mimo_x x, λ = sigmoid(trap) and a token's angle theta:

    h_t = exp(A_t dt_t) (h_{t-1} + (1 - λ_t) dt_t Σ_r k_{t-1,r} v_{t-1,r}ᵀ) + λ_t dt_t Σ_r k_{t,r} v_{t,r}ᵀ
    y_t = Σ_r mimo_o (q_{t,r}ᵀ h_t + D v_{t,r}) silu(mimo_z z_t)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.alignment.nam56r.formulas.parts import Said, Weights, rms, silu, softplus
from model.families.nam56r import Size


def turned(x: Tensor, theta: Tensor, neighbours: bool) -> Tensor:
    """x [H, R, N] with its first pairs of channels turned by theta [H, A]: n and n + N/2, or 2n and 2n + 1."""
    N, A = x.shape[-1], theta.shape[-1]
    first = torch.arange(A) * 2 if neighbours else torch.arange(A)
    second = first + 1 if neighbours else first + N // 2
    cos, sin, found = theta.cos()[:, None], theta.sin()[:, None], x.clone()
    found[..., first] = x[..., first] * cos - x[..., second] * sin
    found[..., second] = x[..., first] * sin + x[..., second] * cos
    return found


def mamba3(xs: Tensor, w: Weights, p: str, c: Size, floor: float) -> Said:
    """[S, h] -> ``B``, ``C`` behind their norms, ``scan``, gated, ``mixed`` [S, h]; ``near``: how near to ``floor`` a
    rate of each token is."""
    m, S, H = c.mamba, len(xs), len(w[p + "D"])
    R, G, N, P = m.rank, m.groups, m.state, m.head_dim
    channels = xs @ w[p + "in_proj.weight"].T
    parts = [H * P, H * P, R * G * N, R * G * N, H, H, H]
    z, x, B, C, dt, A, trap, angles = channels.split([*parts, channels.shape[1] - sum(parts)], 1)
    B = rms(B.reshape(S, R, G, N), w[p + "B_norm.weight"])
    C = rms(C.reshape(S, R, G, N), w[p + "C_norm.weight"])
    rates, steps, shares = softplus(A), softplus(dt + w[p + "dt_bias"]), torch.sigmoid(trap)  # [S, H]
    ones = torch.ones(H, R, P, dtype=xs.dtype)
    up, gate, down = (w.get(p + f"mimo_{name}", ones) for name in "xzo")
    group = [head * G // H for head in range(H)]
    h = before = torch.zeros(H, N, P, dtype=xs.dtype)
    theta, out = torch.zeros(H, angles.shape[1], dtype=xs.dtype), []
    for t in range(S):
        step, share = steps[t][:, None, None], shares[t][:, None, None]
        theta = theta + math.pi * torch.tanh(angles[t]) * steps[t][:, None]
        k = turned(B[t][:, group].transpose(0, 1) + w[p + "B_bias"], theta, R == 1)
        q = turned(C[t][:, group].transpose(0, 1) + w[p + "C_bias"], theta, R == 1)
        v = up * x[t].reshape(H, 1, P)
        own = torch.einsum("hrn,hrp->hnp", k, v)
        decay = torch.exp(-rates[t].clamp(min=floor) * steps[t])[:, None, None]
        h = decay * (h + (1 - share) * step * before) + share * step * own
        y = torch.einsum("hrn,hnp->hrp", q, h) + w[p + "D"][:, None, None] * v
        out.append((down * y * silu(gate * z[t].reshape(H, 1, P))).sum(1).flatten())
        before = own
    scan = torch.stack(out)
    return {
        "B": B.flatten(1),
        "C": C.flatten(1),
        "scan": scan,
        "mixed": scan @ w[p + "out_proj.weight"].T,
        "near": (rates.detach() - floor).abs().amin(1).tolist(),
    }
