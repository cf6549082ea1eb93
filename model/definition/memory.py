"""Memory of one rank for a layout: weights, gradients and optimizer exactly, activations as autograd must keep them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from model.definition import parameters, pattern
from model.definition.sizes import Size
from reproducers.base.errors import PatchlaneError

GIB = 2**30
BF16, FP32 = 2, 4
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


def stages(size: Size, layout: Layout) -> list[tuple[pattern.Layer, ...]]:
    """The layers of each pipeline stage."""
    edges = [0, *pattern.even_cuts(size.layers, layout.pipeline), size.layer_count]
    return [size.layers[a:b] for a, b in itertools.pairwise(edges)]


def stage_parameters(size: Size, layout: Layout, stage: int) -> tuple[int, int]:
    """(dense, routed-expert) parameters held by a rank of ``stage``; experts are spread over expert parallel ranks."""
    experts_of_layer = size.experts.count * 2 * size.hidden * size.experts.ffn
    each = {kind: parameters.number(shapes(size)) for kind, shapes in parameters.OF_KIND.items()}
    each["moe"] -= experts_of_layer
    layers = stages(size, layout)[stage]
    dense = sum(each[layer.kind] for layer in layers)
    indexer = parameters.number(parameters.indexer_shapes(size))
    dense += indexer * sum(layer.indices_from == layer.number for layer in layers)
    dense += _ends(size, layout, stage) + parameters.by_part(size)["MTP"] * (stage == layout.pipeline - 1)
    return dense, sum(layer.kind == "moe" for layer in layers) * experts_of_layer // layout.expert


def _ends(size: Size, layout: Layout, stage: int) -> int:
    """Parameters of embeddings and head that a rank of ``stage`` holds."""
    part, count = parameters.by_part(size), 0
    first, last = stage == 0, stage == layout.pipeline - 1
    if first or (last and size.mtp_depths):  # MTP embeds its tokens itself
        count += part["embedding"]
    if first:
        count += part["n-gram hash embedding"] + part["structure embedding"]
    if last:
        count += part["head"] + part["final norm"]
    return count


def activation_bytes(size: Size, kind: str) -> float:
    """Bytes a token that a layer keeps for its backward pass, most of them in bf16."""
    h, e, m, a, r = size.hidden, size.experts, size.mamba, size.attention, size.m2rnn
    if kind in ("mla", "dsa"):
        heads = size.heads * (2 * a.qk_dim + 2 * a.v_dim + 1)
        indices = FP32 * size.indexer.topk / BF16 if kind == "dsa" else 0
        return BF16 * (2 * h + a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim + heads + indices)
    if kind == "moe":
        return BF16 * (2 * h + e.topk * (2 * h + 2 * e.ffn) + 2 * e.shared_ffn) + FP32 * 2 * e.count
    if kind == "mamba3":
        inner = h * m.expand
        bc = 2 * m.state * m.groups * m.rank
        angles = size.mamba_heads * int(m.state * m.rope_fraction) // 2
        return BF16 * (2 * h + 3 * inner + 2 * bc) + FP32 * (3 * size.mamba_heads + angles)
    inner = r.heads * r.v_dim
    return BF16 * (2 * h + 4 * inner + 4 * r.k_dim) + FP32 * r.heads * 2


# What one host's local disk took from two ranks, digests with it: nam56r on two H200s, 23 November 2026.
WRITTEN_GIB_PER_S = 0.70
# Of a GPU's memory that an estimate may reach: the peaks of runs are 0.94 to 0.98 of it.
FILLED = 0.95


def checkpoint_gib(size: Size, optimizer: str = "adamw") -> float:
    """GiB of a checkpoint of bf16 training in any layout: weights, fp32 masters and the optimizer's moments."""
    return (BF16 * parameters.total(size) + _optimizer_bytes(size, Layout(), 0, optimizer)) / GIB


def _optimizer_bytes(size: Size, layout: Layout, stage: int, optimizer: str) -> float:
    """fp32 masters and moments, shared over the ranks that hold the same parameters: two moments, and one of a matrix
    for Muon. For it layers count as matrices, with the less than 1% of their parameters that are none."""
    dense, experts = stage_parameters(size, layout, stage)
    replicas = layout.data // layout.expert
    once = (dense - _ends(size, layout, stage)) / layout.data + experts / replicas if optimizer == "muon" else 0
    return FP32 * (3 * (dense / layout.data + experts / replicas) - once)


def workspace_bytes(size: Size) -> float:
    """Bytes a token that one layer's backward pass takes and gives back: Mamba-3's.

    The state before every chunk, and of MIMO its gradient at every other one and, of each head and rank, q, k, v, y and
    their gradients (``model.layers.mamba3.scan``).
    """
    m = size.mamba
    states = m.head_dim * m.state / m.chunk
    ranks = 4 * m.rank * (m.state + m.head_dim) if m.mimo else 0
    return BF16 * size.mamba_heads * (states + ranks) if size.count("mamba3") else 0.0


def estimate(
    size: Size, layout: Layout, stage: int = 0, sequence: int | None = None, optimizer: str = "adamw"
) -> dict[str, float]:
    """GiB of one rank of ``stage`` by part: bf16 weights, fp32 gradients, fp32 masters and the optimizer's moments.

    The distributed optimizer shares masters and moments over the ranks that hold the same parameters. Activations
    count as many micro-batches in flight as the stage has under 1F1B, and one layer's workspace; logits are never held
    whole (fused loss).
    """
    tokens = layout.micro_batch * (sequence or size.sequence)
    dense, experts = stage_parameters(size, layout, stage)
    flight = layout.pipeline - stage
    kept = sum(activation_bytes(size, layer.kind) for layer in stages(size, layout)[stage])
    if stage == layout.pipeline - 1:
        kept += size.mtp_depths * (activation_bytes(size, "mla") + BF16 * (6 * size.hidden + 2 * size.ffn))
    parts = {
        "weights": BF16 * (dense + experts),
        "gradients": FP32 * (dense + experts),
        "optimizer": _optimizer_bytes(size, layout, stage, optimizer),
        "activations": tokens * (kept * flight + workspace_bytes(size)),
    }
    return {name: value / GIB for name, value in parts.items()}


def fullest(size: Size, layout: Layout, sequence: int | None = None, optimizer: str = "adamw") -> float:
    """GiB of the rank that holds most, all parts together."""
    stages = range(layout.pipeline)
    return max(sum(estimate(size, layout, stage, sequence, optimizer).values()) for stage in stages)


def _layouts(size: Size, gpus: int) -> Iterator[Layout]:
    """Each way to divide ``gpus``, at one row of a micro-batch."""
    for pipeline in (n for n in range(1, len(pattern.possible_cuts(size.layers)) + 2) if gpus % n == 0):
        data = gpus // pipeline
        for expert in (n for n in range(1, data + 1) if data % n == 0 and size.experts.count % n == 0):
            yield Layout(data, expert, pipeline)


def none_fits(size: Size, gpus: int, gib: float, sequence: int | None, optimizer: str) -> NoReturn:
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
    size: Size, gpus: int, gib: float, sequence: int | None = None, optimizer: str = "adamw"
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
