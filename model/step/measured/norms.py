"""The gradients' norm by kind of parameter, of what the distributed optimizer holds of them on each rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("embeddings", "mamba3", "m2rnn", "mla", "dsa", "indexer", "router", "experts", "mtp", "head")
FIRST = {"embedding": "embeddings", "ngram": "embeddings", "structure": "embeddings", "mtp": "mtp"}


def kind(name: str, numbers: list[int], layers: dict[int, str]) -> str:
    """The kind of the parameter ``name`` of a stage whose layers have ``numbers``; ``layers``: {number: kind}.

    A layer's norm is of its kind, an MoE layer's of its experts; the last norm is of the head.
    """
    first, _, rest = name.partition(".")
    if not name.startswith("decoder.layers."):
        return FIRST.get(first, "head")
    of_layer = layers[numbers[int(rest.split(".")[1])]]
    if of_layer == "moe":
        return "router" if ".router." in name else "experts"
    return "indexer" if ".indexer." in name else of_layer


class Norms:
    """Of one rank; ``squares`` sums the same numbers to Megatron's own norm."""

    def __init__(self, model: nn.Module, optimizer: Any, layers: dict[int, str]) -> None:
        numbers = [layer.layer_number for layer in model.decoder.layers]
        names = {id(parameter): kind(name, numbers, layers) for name, parameter in model.named_parameters()}
        self._held: list[tuple[Any, int, int]] = []  # (an optimizer, group, place in it) of what this rank updates
        kinds = []
        for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
            for parameter, (group, place) in getattr(chained, "model_param_group_index_map", {}).items():
                if not getattr(parameter, "shared", False):  # the last stage's copy of the embedding
                    self._held.append((chained.optimizer, group, place))
                    kinds.append(KINDS.index(names[id(parameter)]))
        self._kinds = torch.tensor(kinds, dtype=torch.int64, device=torch.cuda.current_device())

    def squares(self) -> Tensor:
        """[kinds] fp32, on the device: sums of squares of the gradients as the last update took them, clipped."""
        held = [inner.param_groups[group]["params"][place].grad for inner, group, place in self._held]
        total = torch.zeros(len(KINDS), device=self._kinds.device)
        if not held:
            return total
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(held)])
        return total.index_add_(0, self._kinds, norms.square())


def unclipped(norms: list[float], total: float, clip: float) -> list[float]:
    """Norms before clipping by the norm ``total``, as Megatron clips (clip_grads.py @ core_v0.19.0)."""
    factor = clip / (total + 1e-6) if math.isfinite(total) else math.nan
    return [norm / min(factor, 1.0) for norm in norms]
