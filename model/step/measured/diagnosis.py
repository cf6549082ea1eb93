"""What a diagnosed step measures beside its losses: by layer, by kind of parameter, by rank.

All of it stays on the device, in one vector that is read with the losses: no further wait of the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from model.families.family import Family
from model.step.measured import balance, norms
from model.step.measured.norms import Norms
from model.step.measured.pace import Pace


@dataclass(frozen=True)
class Diagnosis:
    """The same on every rank. Layers are named by their number, depths of MTP as "MTP-1".

    ``router_load``: tokens of the fullest expert over the mean. ``attention_logits``: the largest one, scaled, over all
    keys that a query may see; DSA's choice among these keys may leave it out. ``gradient_norms``: before clipping.
    ``rank_seconds``: own seconds a step since the diagnosis before; empty in a run's first one.
    """

    router_load: dict[str, float]
    attention_logits: dict[str, float]
    gradient_norms: dict[str, float]
    rank_seconds: list[float]


class Diagnoses:
    """Of one rank's stage. ``every``: 0 for never. Logits are left out of layers that CUDA graphs may replay."""

    def __init__(self, size: Family, model: Any, optimizer: Any, clip: float, every: int, logits: bool) -> None:
        self.every, self.clip, self.logits, self.config, self.model = every, clip, logits, model.config, model
        depths = [f"MTP-{depth}" for depth in range(1, size.mtp_depths + 1)]
        self._moe = [str(layer.number) for layer in size.layers if layer.of.experts()]
        self._moe += depths if size.mtp.experts() else []
        self._attention = [str(layer.number) for layer in size.layers if layer.of.has_logits]
        self._attention += depths if size.mtp.has_logits else []
        self._groups = size.norm_groups
        self._norms = Norms(model, optimizer, size) if every else None
        self.pace = Pace()
        self.due = False

    def begin(self, step: int, profiled: bool = False) -> None:
        """Before ``step``: whether it is diagnosed.

        A profiled step is not, on any rank: its trace is to show what most steps do, and logits take kernels.
        """
        self.due = self.every > 0 and step % self.every == 0 and not profiled
        self.config.model_diagnosed = self.due and self.logits

    @property
    def lacks_seconds(self) -> bool:
        """Whether the step that begins is diagnosed and none was read since the diagnosis before."""
        return self.due and not self.pace.steps

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """(name, layer) of this stage."""
        yield from ((str(layer.layer_number), layer) for layer in self.model.decoder.layers)
        if getattr(self.model, "mtp_process", False):
            yield from ((f"MTP-{depth}", layer) for depth, layer in enumerate(self.model.mtp.layers, 1))

    def measured(self, counts: Tensor) -> Tensor:
        """The vector on the device, equal on every rank; all call it after the update.

        counts [MoE layers of this stage, experts] fp32: tokens of all data-parallel ranks.
        """
        self.config.model_diagnosed = False
        assert self._norms is not None
        device = torch.cuda.current_device()
        zero, none = torch.zeros((), device=device), torch.full((), -torch.inf, device=device)
        layers = dict(self._modules())
        ours = [name for name in self._moe if name in layers]
        loads = dict(zip(ours, balance.over_mean(counts), strict=True))
        load = torch.stack([loads.get(name, zero) for name in self._moe])
        dist.all_reduce(load, group=parallel_state.get_pipeline_model_parallel_group())
        logits = torch.stack([_logit(layers[name]) if name in layers else none for name in self._attention])
        dist.all_reduce(logits, op=dist.ReduceOp.MAX)
        squares = self._norms.squares()
        dist.all_reduce(squares)
        return torch.cat([load, logits, squares.sqrt(), self.pace.gathered()])

    def read(self, values: list[float], norm: float, updated: bool) -> Diagnosis:
        """What ``measured`` gave, read; ``norm``: the whole gradient's, by which it was clipped if ``updated``."""
        at, sizes = 0, (len(self._moe), len(self._attention), len(self._groups), len(values))
        parts = []
        for size in sizes:
            parts.append(values[at : at + size])
            at += size
        load, logits, by_kind, seconds = parts
        whole = norms.unclipped(by_kind, norm, self.clip) if updated else by_kind
        return Diagnosis(
            dict(zip(self._moe, load, strict=True)),
            {name: value for name, value in zip(self._attention, logits, strict=True) if value > -math.inf},
            dict(zip(self._groups, whole, strict=True)),
            seconds if all(seconds) else [],
        )


def _logit(layer: nn.Module) -> Tensor:
    """The largest logit that a layer kept, which it forgets; -inf without one."""
    for module in layer.modules():
        found: Tensor | None = module.__dict__.pop("largest_logit", None)
        if found is not None:
            return found
    return torch.full((), -torch.inf, device=torch.cuda.current_device())
