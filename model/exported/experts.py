"""Mixture of experts: sigmoid router with its selection-only bias, routed and shared experts. It has no state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.exported.dims import Dims, Layer
from model.exported.step import Linear, Step


class Router(nn.Module):  # type: ignore[misc]
    """Scores in fp32 or more; the bias takes part in the choice alone (arXiv 2408.15664)."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.topk = dims.experts.topk
        self.weight = nn.Parameter(torch.empty(dims.experts.count, dims.hidden))
        self.register_buffer("e_score_correction_bias", torch.empty(dims.experts.count, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [S, h] -> (experts [S, k] int64, their weights [S, k], at least fp32)."""
        work = torch.promote_types(x.dtype, torch.float32)
        scores = F.linear(x.to(work), self.weight.to(work)).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.topk, dim=-1).indices
        taken = scores.gather(-1, chosen)
        return chosen, taken / (taken.sum(-1, keepdim=True) + 1e-20) if self.topk > 1 else taken


class Feed(nn.Module):  # type: ignore[misc]
    """gelu between two projections."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up_proj, self.down_proj = Linear(hidden, ffn), Linear(ffn, hidden)

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """x [T, h] -> [T, h]; its activations times the router's ``weights`` [T], at least fp32, where they are given,
        as Megatron-Core applies them."""
        inner = F.gelu(self.up_proj(x))
        if weights is not None:
            inner = (inner * weights.unsqueeze(-1)).to(x.dtype)
        out: Tensor = self.down_proj(inner)
        return out


class Experts(nn.Module):  # type: ignore[misc]
    """Routed experts plus the shared one."""

    def __init__(self, dims: Dims, layer: Layer) -> None:
        super().__init__()
        e = dims.experts
        self.gate = Router(dims)
        self.experts = nn.ModuleList(Feed(dims.hidden, e.ffn) for _ in range(e.count))
        self.shared_experts = Feed(dims.hidden, e.shared_ffn)

    def begin(self, capacity: int) -> None:
        """No state."""

    def forward(self, x: Tensor, state: None, step: Step) -> Tensor:
        """x [S, h] -> [S, h]. The host reads how many tokens each expert has, once."""
        chosen, weights = self.gate(x)
        order = chosen.flatten().argsort(stable=True)  # [S k], by expert
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        tokens = x[order // self.gate.topk].split(counts)
        parts = zip(self.experts, tokens, weights.flatten()[order].split(counts), strict=True)
        out = torch.cat([expert(rows, by) for expert, rows, by in parts if len(rows)])  # [S k, h]
        mixed = out[order.argsort()].unflatten(0, chosen.shape).sum(1)
        return mixed + self.shared_experts(x)
