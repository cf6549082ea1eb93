"""The parts of a step's loss: the main one from the schedule, the others from Megatron's process-global trackers.

Main and MTP losses are means over the tokens that count in all micro-batches of all ranks. Megatron means over a
micro-batch's tokens, then over micro-batches and ranks, so each micro-batch's losses are multiplied by its ``shares``.
Its ``calculate_per_token_loss`` weights a micro-batch's MTP loss by the tokens of the main loss, cannot average in
NCCL's collectives, and takes the routers' and the indexer's losses, which are of all tokens, by those that count.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossLoggingHelper
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch import Tensor

from model.data.rows.loader import Batch
from model.patched import dialect

NAMES = ("mtp_loss", "aux_loss", "indexer_loss")  # the values of ``auxiliary``, in order


def counts(batches: list[Batch], depths: int) -> Tensor:
    """[micro-batches, 1 + depths] fp64: tokens that count in the main loss and at each MTP depth, of this rank.

    At depth d a token's label is the next token's d further on, if that is in its document.
    """
    return torch.stack(
        [
            torch.stack([(batch.loss_mask * (batch.positions >= depth)).sum() for depth in range(1 + depths)])
            for batch in batches
        ]
    ).double()


def shares(counts: Tensor) -> tuple[Tensor, Tensor]:
    """``counts`` on the device -> each over its mean over micro-batches and data-parallel ranks, and the sums [1 + d].

    The shares are fp32. All ranks call it with as many micro-batches.
    """
    total = counts.sum(0)
    group = parallel_state.get_data_parallel_group()
    dist.all_reduce(total, group=group)
    mean = total.clamp(min=1) / (len(counts) * group.size())
    return (counts / mean).float(), total


def mean(micro_batches: list[dict[str, Tensor]]) -> Tensor:
    """[1] fp32, on the device: the mean over micro-batches and data-parallel ranks, known to every stage.

    Of losses multiplied by ``shares`` it is the mean over all tokens that count.
    """
    device = torch.cuda.current_device()
    losses = [micro_batch["loss"] for micro_batch in micro_batches]
    value = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
    value = value.float().reshape(1).to(device)
    dist.all_reduce(value, group=parallel_state.get_pipeline_model_parallel_group())  # other stages hold zero
    dist.all_reduce(value, group=parallel_state.get_data_parallel_group())
    return value / parallel_state.get_data_parallel_world_size()


def auxiliary(config: Any, micro_batches: int) -> Tensor:
    """The step's ``NAMES`` [3] fp32, on the device: summed over layers, means over micro-batches and ranks.

    MTP's is the mean over depths, each over its tokens that count: ``shares`` are in what Megatron tracked.
    """
    depths, layers = config.mtp_num_layers, config.num_layers
    values = torch.zeros(3, device=torch.cuda.current_device())
    mtp = MTPLossLoggingHelper.tracker.get(dialect.MTP_LOSSES)
    if mtp is not None:
        values[0] = mtp.sum() / depths
    values[1] += balance()
    indexer = DSAIndexerLossLoggingHelper.tracker.get("values")
    if indexer is not None:
        values[2] = indexer[:layers].sum() / config.dsa_indexer_loss_coeff
    values /= micro_batches
    dist.all_reduce(values, group=parallel_state.get_pipeline_model_parallel_group())
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group())
    values /= parallel_state.get_data_parallel_world_size()
    clear()
    return values


def balance() -> Tensor | float:
    """The routers' losses as Megatron tracked them, without their coefficient, summed over layers and micro-batches."""
    return sum((entry.values.sum() for entry in get_moe_metrics_tracker().metrics.values()), 0.0)


def by_depth() -> list[float]:
    """MTP's losses at each depth as Megatron tracked them, sums over micro-batches; empty where it tracked none."""
    tracked = MTPLossLoggingHelper.tracker.get(dialect.MTP_LOSSES)
    return [] if tracked is None else [float(value) for value in tracked]


def clear() -> None:
    """Empty Megatron's trackers."""
    dialect.clear_mtp_losses()
    DSAIndexerLossLoggingHelper.clean_loss_in_tracker()
    get_moe_metrics_tracker().clear()
