"""The parts of a step's loss: the main one from the schedule, the others from Megatron's process-global trackers."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossLoggingHelper
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch import Tensor

NAMES = ("mtp_loss", "aux_loss", "indexer_loss")  # the values of ``auxiliary``, in order


def mean(micro_batches: list[dict[str, Tensor]]) -> Tensor:
    """[1] fp32, on the device: the mean over micro-batches and data-parallel ranks, known to every stage."""
    device = torch.cuda.current_device()
    losses = [micro_batch["loss"] for micro_batch in micro_batches]
    value = torch.stack(losses).mean() if losses else torch.zeros((), device=device)
    value = value.float().reshape(1).to(device)
    dist.all_reduce(value, group=parallel_state.get_pipeline_model_parallel_group())  # other stages hold zero
    dist.all_reduce(value, group=parallel_state.get_data_parallel_group())
    return value / parallel_state.get_data_parallel_world_size()


def auxiliary(config: Any, micro_batches: int) -> Tensor:
    """The step's ``NAMES`` [3] fp32, on the device: summed over layers, means over micro-batches and ranks."""
    depths, layers = config.mtp_num_layers, config.num_layers
    values = torch.zeros(3, device=torch.cuda.current_device())
    mtp = MTPLossLoggingHelper.tracker.get("loss_values")
    if mtp is not None:
        values[0] = mtp.sum() / depths
    for entry in get_moe_metrics_tracker().metrics.values():
        values[1] += entry.values.sum()  # recorded without its coefficient
    indexer = DSAIndexerLossLoggingHelper.tracker.get("values")
    if indexer is not None:
        values[2] = indexer[:layers].sum() / config.dsa_indexer_loss_coeff
    values /= micro_batches
    dist.all_reduce(values, group=parallel_state.get_pipeline_model_parallel_group())
    dist.all_reduce(values, group=parallel_state.get_data_parallel_group())
    values /= parallel_state.get_data_parallel_world_size()
    clear()
    return values


def clear() -> None:
    """Empty Megatron's trackers."""
    MTPLossLoggingHelper.clean_metrics_in_tracker()
    DSAIndexerLossLoggingHelper.clean_loss_in_tracker()
    get_moe_metrics_tracker().clear()
