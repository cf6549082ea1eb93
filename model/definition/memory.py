"""Memory of one rank for a layout: weights, gradients and optimizer exactly, activations as autograd must keep them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from model.definition import parameters
from model.families import pattern
from model.families.family import Family
from model.kinds.ends import WORDS
from model.kinds.kind import BF16, FP32, Kind
from patchlane.base.errors import PatchlaneError

GIB = 2**30
MOST = 512  # GPUs among which a remedy is looked for


@dataclass(frozen=True)
class Layout:
    """Degrees of parallelism, and tokens of a micro-batch. World: ``data * pipeline``; ``expert`` divides data."""

    data: int = 1
    expert: int = 1
    pipeline: int = 1
    micro_batch: int = 1

    def __post_init__(self) -> None:
        if self.data % self.expert:
            raise ValueError(f"expert parallel {self.expert} does not divide data parallel {self.data}")


def stages(size: Family, layout: Layout) -> list[tuple[pattern.Layer, ...]]:
    """The layers of each pipeline stage."""
    layers = size.layers
    edges = [0, *pattern.even_cuts(layers, layout.pipeline), len(layers)]
    return [layers[a:b] for a, b in itertools.pairwise(edges)]


def stage_parameters(size: Family, layout: Layout, stage: int) -> tuple[int, int]:
    """(dense, routed-expert) parameters held by a rank of ``stage``; experts are spread over expert parallel ranks."""
    held = stacked(size, layout, stage)
    spread = sum(kind.spread() for kind in held)
    return sum(kind.number() for kind in held) - spread + _ends(size, layout, stage), spread // layout.expert


def stacked(size: Family, layout: Layout, stage: int) -> list[Kind]:
    """The layers of a pipeline stage, and the depths of MTP of the last one."""
    depths = size.mtp_depths if stage == layout.pipeline - 1 else 0
    return [*(layer.of for layer in stages(size, layout)[stage]), *[size.mtp] * depths]


def _ends(size: Family, layout: Layout, stage: int) -> int:
    """Parameters of embeddings and head that a rank of ``stage`` holds."""
    first, last = stage == 0, stage == layout.pipeline - 1
    count = size.entrance.number() if first else 0
    if last and not first and size.mtp_depths:  # MTP embeds its tokens itself
        count += size.entrance.counts()[WORDS]
    return count + (size.head.number() if last else 0)


# What one host's local disk took from two ranks, digests with it: nam56r on two H200s, 23 November 2026.
WRITTEN_GIB_PER_S = 0.70
# Of a GPU's memory that an estimate may reach: the peaks of runs are 0.94 to 0.98 of it.
FILLED = 0.95


def checkpoint_gib(size: Family, optimizer: str = "adamw") -> float:
    """GiB of a checkpoint of bf16 training in any layout: weights, fp32 masters and the optimizer's moments."""
    return (BF16 * parameters.total(size) + _optimizer_bytes(size, Layout(), 0, optimizer)) / GIB


def _optimizer_bytes(size: Family, layout: Layout, stage: int, optimizer: str) -> float:
    """fp32 masters and moments, shared over the ranks that hold the same parameters: two moments, and one of a matrix
    for Muon. For it layers count as matrices, with the less than 1% of their parameters that are none."""
    dense, experts = stage_parameters(size, layout, stage)
    replicas = layout.data // layout.expert
    once = (dense - _ends(size, layout, stage)) / layout.data + experts / replicas if optimizer == "muon" else 0
    return FP32 * (3 * (dense / layout.data + experts / replicas) - once)


def workspace_bytes(size: Family) -> float:
    """Bytes a token that one layer's backward pass takes and gives back: the layer's that takes most."""
    return max((layer.of.workspace() for layer in size.layers), default=0)


def estimate(
    size: Family, layout: Layout, stage: int = 0, sequence: int | None = None, optimizer: str = "adamw"
) -> dict[str, float]:
    """GiB of one rank of ``stage`` by part: bf16 weights, fp32 gradients, fp32 masters and the optimizer's moments.

    The distributed optimizer shares masters and moments over the ranks that hold the same parameters. Activations
    count as many micro-batches in flight as the stage has under 1F1B, and one layer's workspace; logits are never held
    whole (fused loss).
    """
    tokens = layout.micro_batch * (sequence or size.sequence)
    dense, experts = stage_parameters(size, layout, stage)
    flight = layout.pipeline - stage
    kept = sum(kind.kept() for kind in stacked(size, layout, stage))
    parts = {
        "weights": BF16 * (dense + experts),
        "gradients": FP32 * (dense + experts),
        "optimizer": _optimizer_bytes(size, layout, stage, optimizer),
        "activations": tokens * (kept * flight + workspace_bytes(size)),
    }
    return {name: value / GIB for name, value in parts.items()}


def fullest(size: Family, layout: Layout, sequence: int | None = None, optimizer: str = "adamw") -> float:
    """GiB of the rank that holds most, all parts together."""
    stages = range(layout.pipeline)
    return max(sum(estimate(size, layout, stage, sequence, optimizer).values()) for stage in stages)


def _layouts(size: Family, gpus: int) -> Iterator[Layout]:
    """Each way to divide ``gpus``, at one row of a micro-batch."""
    experts = size.experts_of_layer
    for pipeline in (n for n in range(1, len(pattern.possible_cuts(size.layers)) + 2) if gpus % n == 0):
        data = gpus // pipeline
        for expert in (n for n in range(1, data + 1) if data % n == 0 and experts % n == 0):
            yield Layout(data, expert, pipeline)


def none_fits(size: Family, gpus: int, gib: float, sequence: int | None, optimizer: str) -> NoReturn:
    """Raise PatchlaneError: no layout of ``gpus`` of ``gib`` holds the size. It names the least doubling of them that
    does; where none does, for what a rank holds at least stays, the memory that ``gpus`` want."""

    def wanted(number: int) -> float:
        return min(fullest(size, layout, sequence, optimizer) for layout in _layouts(size, number)) / FILLED

    more = (gpus * 2**n for n in range(1, MOST.bit_length()) if gpus * 2**n <= MOST)
    count = next((number for number in more if wanted(number) <= gib), None)
    want = gib if count else math.ceil(wanted(gpus))
    command = f"python -m model.describe {size.name} --gpus {count or gpus} --gib {want:g}"
    command += f" --sequence {sequence}" if sequence else ""
    command += f" --optimizer {optimizer}" if optimizer != "adamw" else ""
    raise PatchlaneError(
        f"no layout of {gpus} GPUs of {gib:g} GiB holds {size.name}",
        command + (", or shorter rows" if sequence else ""),
    )


def largest(
    size: Family, gpus: int, gib: float, sequence: int | None = None, optimizer: str = "adamw"
) -> list[tuple[Layout, float]]:
    """Each way to divide ``gpus`` of ``gib``, with the most rows of a micro-batch that fit, and its fullest rank's GiB.

    Data parallelism alone comes first, which was the faster where both fitted (nam56r_wide on two
    H200s of one host, 22 November 2026), then more expert-parallel ranks, then more stages. Empty where none fits.
    """
    found = list[tuple[Layout, float]]()
    for one in _layouts(size, gpus):
        stages = [estimate(size, one, stage, sequence, optimizer) for stage in range(one.pipeline)]
        rows = min(1 + (FILLED * gib - sum(parts.values())) // parts["activations"] for parts in stages)
        if rows >= 1:
            layout = replace(one, micro_batch=int(rows))
            found.append((layout, fullest(size, layout, sequence, optimizer)))
    return found
