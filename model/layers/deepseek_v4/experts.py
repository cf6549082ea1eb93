"""DeepSeek-V4's mixture of experts: gated by SiLU, clamped before the product, with a shared expert."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.common import fp32


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) clamp(up, -limit, limit), [..., F] of [gate | up] [..., 2 F]; at least fp32.

    The gate has no bound from below: SiLU has its own there.
    """
    gate, up = fp32.wide(gate_up).chunk(2, dim=-1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class SharedExpert(nn.Module):  # type: ignore[misc]
    """The expert of every token, with weight 1. ``linear_fc1`` [2 F, d] has the gate first."""

    def __init__(self, hidden: int, ffn: int, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.linear_fc1, self.linear_fc2 = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both matrices anew, as ``to_empty`` requires."""
        for linear in (self.linear_fc1, self.linear_fc2):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        out: Tensor = self.linear_fc2(clamped_swiglu(self.linear_fc1(x), self.limit).to(x.dtype))
        return out


class Experts(nn.Module):  # type: ignore[misc]
    """The routed experts: ``linear_fc1`` [E, 2 F, d], the gate first, and ``linear_fc2`` [E, d, F]."""

    def __init__(self, hidden: int, ffn: int, experts: int, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.linear_fc1 = nn.Parameter(torch.empty(experts, 2 * ffn, hidden))
        self.linear_fc2 = nn.Parameter(torch.empty(experts, hidden, ffn))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise both tensors anew, as ``to_empty`` requires."""
        for weight in (self.linear_fc1, self.linear_fc2):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x [T, d], experts [T, k] int64 and their weights [T, k] -> their sum [T, d], at least fp32.

        A weight multiplies the activation, before the second product. The host reads how many tokens each expert has.
        """
        order = chosen.flatten().argsort(stable=True)  # [T k], by expert
        tokens = order // chosen.shape[1]
        counts = chosen.flatten().bincount(minlength=len(self.linear_fc1)).tolist()
        parts = []
        shares = weights.flatten()[order].split(counts)
        for first, second, inputs, share in zip(
            self.linear_fc1, self.linear_fc2, x[tokens].split(counts), shares, strict=True
        ):
            inner = clamped_swiglu(F.linear(inputs, first), self.limit) * share.unsqueeze(-1)
            parts.append(F.linear(inner.to(x.dtype), second))
        out = fp32.wide(torch.cat(parts))
        return out.new_zeros(len(x), out.shape[1]).index_add(0, tokens, out)


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """Experts by a router of ``model.layers.deepseek_v4.router``, and the shared one."""

    def __init__(self, router: nn.Module, experts: Experts, shared: SharedExpert) -> None:
        super().__init__()
        self.router, self.experts, self.shared_experts = router, experts, shared

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """x [s, b, d], token ids [s, b] -> [s, b, d], rounded once."""
        chosen, weights = self.router(x, tokens)
        flat = x.flatten(0, -2)
        routed = self.experts(flat, chosen.flatten(0, -2), weights.flatten(0, -2)).view(x.shape)
        return (routed + self.shared_experts(x)).to(x.dtype)
