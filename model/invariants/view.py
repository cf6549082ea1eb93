"""A rank's parameters as the invariants see them: by names that are the same on every rank, with what it updates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor, nn

from model.step.engine import Engine
from model.step.measured.norms import Norms, group_of

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Share:
    """What this rank updates of a parameter, its elements from ``start`` to ``end``; ``kind`` is one of the size's
    ``norm_groups``. ``group`` and ``place`` say where ``optimizer`` has it."""

    name: str
    kind: str
    parameter: nn.Parameter
    start: int
    end: int
    optimizer: Any
    group: int
    place: int

    @property
    def master(self) -> Tensor:
        """[n] fp32."""
        held: Tensor = self.settings["params"][self.place]
        return held

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.param_groups[self.group]
        return found

    @property
    def moments(self) -> dict[str, Tensor]:
        """{name: [n]}; none before the first update."""
        state = self.optimizer.state.get(self.master, {})
        return {name: value for name, value in state.items() if name != "step" and isinstance(value, Tensor)}

    @property
    def updates(self) -> int:
        """How often the optimizer says to have updated it; torch's counts by parameter, Transformer Engine's by
        group."""
        count = self.optimizer.state.get(self.master, {}).get("step", self.settings.get("step", 0))
        return int(count)


class View:
    """Of one rank. Names are those of the whole model: layers by their place in it, experts with their rank's number
    where ranks hold different ones. A name on several ranks is one parameter."""

    def __init__(self, engine: Engine) -> None:
        self.engine, inner = engine, engine.inner
        self.rank = torch.distributed.get_rank()
        self.stages: int = parallel_state.get_pipeline_model_parallel_world_size()
        self.data_ranks: int = parallel_state.get_data_parallel_world_size()
        numbers = [layer.layer_number for layer in inner.decoder.layers]
        self._numbers = numbers
        self.parameters = {self._named(name, p): p for name, p in inner.named_parameters()}
        kinds = {id(p): group_of(name, numbers, engine.size) for name, p in inner.named_parameters()}
        names = {id(p): name for name, p in self.parameters.items()}
        self.shares = [
            Share(names[id(p)], kinds[id(p)], p, part.start, part.end, chained.optimizer, group, place)
            for chained in getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
            for p, (group, place) in getattr(chained, "model_param_group_index_map", {}).items()
            for part in [chained._get_model_param_range_map(p)["param"]]
        ]
        self.routers = {
            self._whole(name): module
            for name, module in inner.named_modules()
            if hasattr(module, "local_tokens_per_expert")
        }
        self.norms = Norms(inner, engine.optimizer, engine.size)

    def _named(self, name: str, parameter: nn.Parameter) -> str:
        ranks = parallel_state.get_expert_model_parallel_world_size()
        own = ranks > 1 and not getattr(parameter, "allreduce", True)
        at = f" of expert rank {parallel_state.get_expert_model_parallel_rank()}" if own else ""
        return self._whole(name) + at

    def _whole(self, name: str) -> str:
        """Of a stage's name the whole model's."""
        words = name.split(".")
        if words[:2] == ["decoder", "layers"]:
            words[2] = str(self._numbers[int(words[2])] - 1)
        return ".".join(words)

    def buffers(self) -> dict[str, Tensor]:
        """{name: buffer}."""
        return {self._whole(name): buffer for name, buffer in self.engine.inner.named_buffers()}


def digest(values: Tensor) -> Tensor:
    """int64 scalar on the device: the sum of the bit patterns, which any other number in ``values`` changes."""
    flat = values.detach().contiguous().view(-1)
    return flat.view(INTEGERS[flat.element_size()]).sum(dtype=torch.int64)


def digests(named: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    """{name: digest}, read at once."""
    names, values = [], []
    for name, tensor in named:
        names.append(name)
        values.append(digest(tensor))
    return dict(zip(names, torch.stack(values).tolist(), strict=True)) if values else {}


def largest(tensors: list[Tensor]) -> list[float]:
    """Of each its largest absolute number, NaN where one is, 0 where there is none; read at once."""
    if not tensors:
        return []
    norms = torch._foreach_norm([one if one.numel() else one.new_zeros(1) for one in tensors], float("inf"))
    found: list[float] = torch.stack([norm.float() for norm in norms]).tolist()
    return found


def without_expert(name: str) -> str:
    """A parameter's name, a layer's experts as one."""
    name = re.sub(r"local_experts\.\d+\.", "local_experts.*.", name)
    return re.sub(r"(experts\..*weight)\d+", r"\1*", name).partition(" of expert rank ")[0]
