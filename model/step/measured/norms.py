"""The gradients' norm by kind of parameter, of what the distributed optimizer holds of them on each rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from model.families.family import Family


def group_of(name: str, numbers: list[int], size: Family) -> str:
    """The kind, one of ``size.norm_groups``, of the parameter ``name`` of a stage whose layers have ``numbers``."""
    first, _, rest = name.partition(".")
    if name.startswith("decoder.layers."):
        return size.layers[numbers[int(rest.split(".")[1])] - 1].of.group(name)
    return next(end.group(name) for end in size.ends if first in end.modules)


class Norms:
    """Of one rank; ``squares`` sums the same numbers to Megatron's own norm."""

    def __init__(self, model: nn.Module, optimizer: Any, size: Family) -> None:
        numbers = [layer.layer_number for layer in model.decoder.layers]
        names = {id(parameter): group_of(name, numbers, size) for name, parameter in model.named_parameters()}
        self._held: list[tuple[Any, int, int]] = []  # (an optimizer, group, place in it) of what this rank updates
        self._groups, kinds = size.norm_groups, []
        for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
            for parameter, (group, place) in getattr(chained, "model_param_group_index_map", {}).items():
                if not getattr(parameter, "shared", False):  # the last stage's copy of the embedding
                    self._held.append((chained.optimizer, group, place))
                    kinds.append(self._groups.index(names[id(parameter)]))
        self._kinds = torch.tensor(kinds, dtype=torch.int64, device=torch.cuda.current_device())

    def squares(self) -> Tensor:
        """[kinds] fp32, on the device: sums of squares of the gradients as the last update took them, clipped."""
        held = [inner.param_groups[group]["params"][place].grad for inner, group, place in self._held]
        total = torch.zeros(len(self._groups), device=self._kinds.device)
        if not held:
            return total
        norms = torch.stack([norm.float() for norm in torch._foreach_norm(held)])
        return total.index_add_(0, self._kinds, norms.square())


def unclipped(norms: list[float], total: float, clip: float) -> list[float]:
    """Norms before clipping by the norm ``total``, as Megatron clips (clip_grads.py @ core_v0.19.0)."""
    factor = clip / (total + 1e-6) if math.isfinite(total) else math.nan
    return [norm / min(factor, 1.0) for norm in norms]
