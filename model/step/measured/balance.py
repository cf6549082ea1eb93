"""The balance of tokens over experts and over the ranks that hold them: the fullest one's tokens over the mean.

In each layer every rank waits for the rank that gets the most tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn


@dataclass(frozen=True)
class Load:
    """The fullest expert's and rank's tokens over the mean, averaged over MoE layers; 1.0 is even."""

    expert: float
    rank: float


def biases(model: nn.Module) -> list[Tensor]:
    """The routers' selection biases, which Megatron changes with the gradients' reduction, before the update."""
    return [bias for name, bias in model.named_buffers() if name.endswith("router.expert_bias")]


def routed(model: nn.Module) -> Tensor:
    """Tokens that this rank sent to each expert since Megatron reset its counts, [layers of this stage, experts]."""
    counts = [m.local_tokens_per_expert for m in model.modules() if hasattr(m, "local_tokens_per_expert")]
    return torch.stack(counts) if counts else torch.zeros(0, 1, device=torch.cuda.current_device())


def sums(counts: Tensor, expert_parallel: int) -> Tensor:
    """[3] on the device, for ``load``, from ``routed``'s counts on all ranks and stages; every rank calls it.

    Each rank holds neighbouring experts.
    """
    dist.all_reduce(counts, group=parallel_state.get_data_parallel_group())
    layers = counts.new_full((), len(counts))
    totals = torch.stack([over_mean(counts).sum(), over_mean(by_rank(counts, expert_parallel)).sum(), layers])
    dist.all_reduce(totals, group=parallel_state.get_pipeline_model_parallel_group())
    return totals


def load(sums: list[float]) -> Load:
    """The load that ``sums`` [3] give."""
    expert, rank, layers = sums
    return Load(expert / max(layers, 1), rank / max(layers, 1))


def by_rank(counts: Tensor, expert_parallel: int) -> Tensor:
    """Tokens by rank: [layers, experts] -> [layers, ranks]."""
    return counts.unflatten(1, (expert_parallel, -1)).sum(2) if len(counts) else counts


def over_mean(counts: Tensor) -> Tensor:
    """[layers, n] -> [layers], the largest over the mean; 1.0 for a layer without tokens."""
    mean = counts.mean(1)
    return torch.where(mean > 0, counts.amax(1) / mean.clamp(min=1e-9), 1.0)
