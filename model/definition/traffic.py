"""Bytes that a rank sends in a step, by collective; of Megatron-Core 0.19.0's distributed optimizer and all-to-all."""

from __future__ import annotations

from model.definition.memory import Layout, stacked, stage_parameters
from model.families.family import Family
from model.kinds.kind import BF16, FP32

GB = 1e9


def volumes(
    size: Family, layout: Layout, stage: int = 0, sequence: int | None = None, accumulate: int = 1
) -> dict[str, float]:
    """{collective: bytes that a rank of ``stage`` sends to others in a step}, of ``accumulate`` micro-batches.

    A ring of n ranks sends (n - 1) / n of what is reduced or gathered. Gradients travel in fp32 once a step, weights in
    bf16. A token goes to its top experts and back, in the forward and in the backward pass; experts are taken as evenly
    chosen. Counts, losses and norms are left out, as are the copies of tied embeddings' gradients between stages.
    """
    tokens = layout.micro_batch * accumulate * (sequence or size.sequence)
    parameters = sum(shared(size, layout, stage))
    channels = sum(kind.dispatched() for kind in stacked(size, layout, stage))
    each = tokens * channels * BF16 * _others(layout.expert)
    neighbours = (stage > 0) + (stage < layout.pipeline - 1)  # gradients to the one before, activations to the next
    return {
        "gradients, reduce-scatter": FP32 * parameters,
        "weights, all-gather": BF16 * parameters,
        "tokens to experts, all-to-all": 2 * each,
        "tokens from experts, all-to-all": 2 * each,
        "pipeline, send": BF16 * tokens * size.residual * neighbours,
    }


def shared(size: Family, layout: Layout, stage: int = 0) -> tuple[float, float]:
    """(dense, routed-expert) parameters whose gradients a rank sends: experts are shared by fewer ranks."""
    dense, experts = stage_parameters(size, layout, stage)
    return dense * _others(layout.data), experts * _others(layout.data // layout.expert)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks
