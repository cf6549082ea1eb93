"""Muon for the matrices of hidden layers, AdamW for all else, where Megatron's distributed optimizer has its AdamW.

Megatron takes no optimizer from its registry without the package emerging-optimizers, which Python 3.11 cannot import
(megatron/core/optimizer/__init__.py @ core_v0.19.0), its predicate takes lookup tables for matrices, and its sharded
optimizer writes checkpoints for one layout. torch's Muon inside the distributed optimizer needs none of it: shards,
norm, clipping, overlap and checkpoints stay what they are for AdamW.

The update is scaled to the size of AdamW's, so that AdamW's rate and decay are kept (arXiv 2502.16982, section 2.2).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model.definition.recipes import Recipe

MARK = "takes_muon"  # the attribute of a parameter, and the entry of its group in Megatron
MOMENTUM = "momentum_buffer"  # as torch calls it


def mark(model: nn.Module, matrices: Set[str]) -> None:
    """Set ``MARK`` on the two-dimensional weights of the modules ``matrices``, a family's: those that Muon takes.

    All projections are, and routers; embeddings and head are AdamW's in arXiv 2502.16982 as well. One weight that holds
    several projections, like Mamba-3's in_proj, is one matrix, as in Megatron all but attention's QKV. Transformer
    Engine names experts' matrices weight0 and on.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and f".{name}".split(".")[-2] in matrices:
            setattr(parameter, MARK, True)


def beside_adamw(optimizer: Any, recipe: Recipe) -> None:
    """Have Megatron's chain of distributed optimizers step Muon for the groups of marked parameters."""
    for distributed in optimizer.chained_optimizers:
        distributed.optimizer = Muon(distributed, recipe)


@dataclass(frozen=True)
class _Matrix:
    """A matrix of which this rank updates a stretch, maybe all of it: ``flat`` [n] fp32, from ``first`` on."""

    shape: torch.Size
    flat: Tensor
    first: int

    @property
    def cut(self) -> bool:
        """Whether other ranks update the rest."""
        return bool(self.flat.numel() < self.shape.numel())


class Muon(torch.optim.Optimizer):  # type: ignore[misc]
    """Of one distributed optimizer: its groups and state, in which matrices have one moment, ``MOMENTUM`` [n] fp32.

    ``step`` counts there as in torch's AdamW, whose states Megatron expects to agree on it.
    """

    def __init__(self, distributed: Any, recipe: Recipe) -> None:
        super().__init__([torch.empty(0)], {})
        self.adamw = distributed.optimizer
        self.param_groups = self.adamw.param_groups
        [self._at] = [at for at, group in enumerate(self.param_groups) if group.get(MARK)]
        self._settings = {"momentum": recipe.muon_momentum, "ns_steps": recipe.muon_steps}
        self._ranks = distributed.data_parallel_group
        self._held: dict[nn.Parameter, _Matrix] = {}
        for parameter, (group, place) in distributed.model_param_group_index_map.items():
            if group == self._at:
                flat = self.param_groups[group]["params"][place]
                first = distributed._get_model_param_range_map(parameter)["param"].start
                self._held[parameter] = _Matrix(parameter.shape, flat, first)
        self._cut = _cut(distributed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update this rank's stretches by their gradients; all data-parallel ranks call it."""
        assert closure is None
        self.adamw.state = self.state
        self.adamw.param_groups = [group for at, group in enumerate(self.param_groups) if at != self._at]
        self.adamw.step()
        for matrix in self._held.values():
            state = self.state[matrix.flat]
            if not state:
                state |= {"step": torch.tensor(0.0), MOMENTUM: torch.zeros_like(matrix.flat)}
            state["step"] += 1
        whole = [matrix for matrix in self._held.values() if not matrix.cut]
        self._update([tuple(x.view(matrix.shape) for x in self._parts(matrix)) for matrix in whole])
        for parameter in self._cut:
            self._update_cut(parameter)

    def _parts(self, matrix: _Matrix) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's stretch of weight, momentum and gradient."""
        return matrix.flat.detach(), self.state[matrix.flat][MOMENTUM], matrix.flat.grad

    def _update(self, matrices: list[tuple[Tensor, ...]]) -> None:
        """Update whole (weight, momentum, gradient) [out, in] fp32 in place by torch's Muon."""
        if not matrices:
            return
        group = self.param_groups[self._at]
        for weight, _, gradient in matrices:
            weight.grad = gradient
        muon = torch.optim.Muon(
            [weight for weight, *_ in matrices],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            adjust_lr_fn="match_rms_adamw",
            **self._settings,
        )
        for weight, momentum, _ in matrices:
            muon.state[weight][MOMENTUM] = momentum
        muon.step()

    def _update_cut(self, parameter: nn.Parameter) -> None:
        """The ranks put a matrix together, each with a part of it updates the whole, and keeps its stretch.

        arXiv 2502.16982 gathers the gradient alone and the moments' stretches stay (algorithm 1); few matrices are cut.
        """
        whole, matrix = torch.zeros(3, parameter.numel(), device=parameter.device), self._held.get(parameter)
        if matrix is not None:
            ours, parts = slice(matrix.first, matrix.first + matrix.flat.numel()), self._parts(matrix)
            whole[:, ours] = torch.stack(parts)
        dist.all_reduce(whole, group=self._ranks)  # of numbers and zeros: exact
        if matrix is not None:
            self._update([whole.view(3, *parameter.shape).unbind()])
            for part, updated in zip(parts[:2], whole[:2, ours], strict=True):
                part.copy_(updated)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Megatron's, which makes AdamW's moments for all that has none yet, to be loaded into."""
        super().load_state_dict(state_dict)
        count = float(self.param_groups[self._at].pop("step", 0))  # Transformer Engine's AdamW has it in its groups
        for matrix in self._held.values():
            made = self.state[matrix.flat]
            momentum = made.get(MOMENTUM, made.get("exp_avg"))
            self.state[matrix.flat] = {"step": torch.tensor(count), MOMENTUM: momentum}


def _cut(distributed: Any) -> list[nn.Parameter]:
    """The matrices that bounds between ranks' stretches cut, in the same order on every rank."""
    found = []
    for buffer in distributed.buffers:
        for parameter, (start, end, number) in buffer.param_index_map.items():
            bucket = buffer.buckets[number]
            share = bucket.grad_data.numel() // buffer.data_parallel_group.size()
            ranks = {(place - bucket.offset) // share for place in (start, end - 1)}
            if getattr(parameter, MARK, False) and len(ranks) > 1:
                found.append(parameter)
    return found
