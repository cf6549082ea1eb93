"""Mixture of experts: sigmoid router with its selection-only bias, routed and shared experts. It has no state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.families.nam56r import Size
from model.families.pattern import Layer
from model.layers.common.decoding import Linear, Step


class Router(nn.Module):  # type: ignore[misc]
    """Scores in fp32 or more; the bias takes part in the choice alone (arXiv 2408.15664)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.topk = size.experts.topk
        self.weight = nn.Parameter(torch.empty(size.experts.count, size.hidden))
        self.register_buffer("expert_bias", torch.empty(size.experts.count, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [S, h] -> (experts [S, k] int64, their weights [S, k], at least fp32)."""
        work = torch.promote_types(x.dtype, torch.float32)
        scores = F.linear(x.to(work), self.weight.to(work)).sigmoid()
        chosen = (scores + self.expert_bias).topk(self.topk, dim=-1).indices
        taken = scores.gather(-1, chosen)
        return chosen, taken / (taken.sum(-1, keepdim=True) + 1e-20) if self.topk > 1 else taken


class Feed(nn.Module):  # type: ignore[misc]
    """gelu between two projections; ``experts`` of them in one tensor each, or one without that dimension."""

    def __init__(self, hidden: int, ffn: int, experts: int | None = None) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Linear(hidden, ffn), Linear(ffn, hidden)
        if experts is not None:
            for linear in (self.linear_fc1, self.linear_fc2):
                linear.weight = nn.Parameter(torch.empty(experts, *linear.weight.shape))

    def expert(self, number: int, x: Tensor, weights: Tensor) -> Tensor:
        """One expert's output [T, h] of its tokens x [T, h] with their router's weights [T], as upstream applies them:
        to the activations."""
        inner = F.gelu(F.linear(x, self.linear_fc1.weight[number])) * weights.unsqueeze(-1)
        return F.linear(inner.to(x.dtype), self.linear_fc2.weight[number])

    def forward(self, x: Tensor) -> Tensor:
        """x [S, h] -> [S, h], of a single one."""
        out: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x)))
        return out


class Experts(nn.Module):  # type: ignore[misc]
    """Routed experts plus the shared one."""

    def __init__(self, size: Size, layer: Layer) -> None:
        super().__init__()
        e = size.experts
        self.router, self.experts = Router(size), Feed(size.hidden, e.ffn, e.count)
        self.shared_experts = Feed(size.hidden, e.shared_ffn)

    def begin(self, capacity: int) -> None:
        """No state."""

    def forward(self, x: Tensor, state: None, step: Step) -> Tensor:
        """x [S, h] -> [S, h]. The host reads how many tokens each expert has, once."""
        chosen, weights = self.router(x)
        order = chosen.flatten().argsort(stable=True)  # [S k], by expert
        counts = chosen.flatten().bincount(minlength=len(self.router.weight)).tolist()
        tokens = x[order // self.router.topk].split(counts)
        parts = zip(range(len(counts)), tokens, weights.flatten()[order].split(counts), strict=True)
        out = torch.cat([self.experts.expert(*part) for part in parts if len(part[1])])  # [S k, h]
        mixed = out[order.argsort()].unflatten(0, chosen.shape).sum(1)
        return mixed + self.shared_experts(x)
