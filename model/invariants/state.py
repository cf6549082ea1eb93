"""Of what a step leaves: weights, their fp32 masters, moments, and what is fp32 in a model of bf16."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from model.invariants.invariant import Invariant, Step, some
from model.invariants.view import View, digests, largest
from model.layers.common import fp32

COUNTS = ("router.expert_bias", "router.local_tokens_per_expert")  # buffers that Megatron adds to in every step


class Weights(Invariant):
    """A parameter, and a router's bias, is the same on every rank that holds it: data-parallel ranks, and the
    embedding's copy on the last of several stages, whose gradients are then equal too."""

    name, of_update = "weights", False
    remedy = "train without --set overlap_weights and overlap_grads, or with other hardware: a rank's memory may be bad"

    def unable(self, view: View) -> str:
        return "" if torch.distributed.get_world_size() > 1 else "one rank holds each weight"

    def after(self, view: View, step: Step | None) -> dict[str, int]:
        biases = {name: one for name, one in view.buffers().items() if name.endswith(COUNTS[0])}
        return digests([*view.parameters.items(), *biases.items()])

    def broken(self, ranks: Sequence[dict[str, int]]) -> str:
        held: dict[str, dict[int, int]] = defaultdict(dict)
        for rank, named in enumerate(ranks):
            for name, value in named.items():
                held[name][rank] = value
        odd = [name for name, by_rank in held.items() if len({*by_rank.values()}) > 1]
        if not odd:
            return ""
        first = held[odd[0]]
        reference = first[min(first)]
        others = [str(rank) for rank, value in first.items() if value != reference]
        return f"{some(odd)} of rank {min(first)} is not that of rank {some(others)}"


class Masters(Invariant):
    """Each fp32 master is finite, fp32, and rounds to the weight that the model computes with."""

    name, of_update = "masters", False
    remedy = "resume from the last checkpoint; if it comes at a resume, --set optimizer_format=stretches"

    def after(self, view: View, step: Step | None) -> tuple[list[str], list[str]]:
        """Names of those that are not finite fp32, and of those that round to another weight."""
        masters = [share.master.detach() for share in view.shares]
        bad = [
            share.name
            for share, top in zip(view.shares, largest(masters), strict=True)
            if not math.isfinite(top) or share.master.dtype != torch.float32
        ]
        pairs = []
        for share, master in zip(view.shares, masters, strict=True):
            weight = share.parameter.detach().view(-1)[share.start : share.end]
            pairs.append((weight != master.view(-1).to(weight.dtype)).any())
        other = torch.stack(pairs).tolist() if pairs else []
        return bad, [share.name for share, off in zip(view.shares, other, strict=True) if off and share.name not in bad]

    def broken(self, ranks: Sequence[tuple[list[str], list[str]]]) -> str:
        for rank, (bad, other) in enumerate(ranks):
            if bad:
                return f"the master of {some(bad)} on rank {rank} is not finite fp32"
            if other:
                return f"the master of {some(other)} on rank {rank} does not round to the model's weight"
        return ""


class Moments(Invariant):
    """The optimizer's moments are finite."""

    name, of_update = "moments", False
    remedy = "resume from the last checkpoint with a lower --set learning_rate=RATE"

    def after(self, view: View, step: Step | None) -> list[str]:
        named = [(f"{name} of {share.name}", m) for share in view.shares for name, m in share.moments.items()]
        tops = largest([moment for _, moment in named])
        return [name for (name, _), top in zip(named, tops, strict=True) if not math.isfinite(top)]

    def broken(self, ranks: Sequence[list[str]]) -> str:
        return next((f"{some(bad)} on rank {rank} is not finite" for rank, bad in enumerate(ranks) if bad), "")


class Precision(Invariant):
    """What is marked to stay fp32, and what routers count in, is fp32 in a model of bf16 (packs 16 and 38)."""

    name, of_update = "precision", False
    remedy = "train with --patches all: packs 16 and 38 keep it"

    def unable(self, view: View) -> str:
        return "" if view.engine.run.bf16 else "all is fp32"

    def after(self, view: View, step: Step | None) -> list[str]:
        marked = [(name, p) for name, p in view.parameters.items() if fp32.kept(p)]
        counted: list[Any] = [(name, one) for name, one in view.buffers().items() if name.endswith(COUNTS)]
        return [f"{name} ({one.dtype})" for name, one in marked + counted if one.dtype != torch.float32]

    def broken(self, ranks: Sequence[list[str]]) -> str:
        return next((f"{some(bad)} on rank {rank} is not fp32" for rank, bad in enumerate(ranks) if bad), "")
