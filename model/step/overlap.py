"""Gradients reduced beside the backward pass, weights gathered beside the forward pass: Megatron's own, made right.

Megatron waits for a bucket of weights in the forward hook of a module that owns some of it, and only when that module
is called (megatron/core/distributed/distributed_data_parallel.py @ core_v0.19.0). Modules of ``READS`` read weights of
modules inside them that they do not call: they wait for all of theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.experimental_attention_variant.absorbed_mla import AbsorbedMLASelfAttention
from torch import nn

from model.definition.run import Run
from model.layers.experts.grouped import GroupedExperts
from model.layers.mamba3.mixer import Mamba3Mixer

READS = (AbsorbedMLASelfAttention, GroupedExperts, Mamba3Mixer)


def config(run: Run) -> DistributedDataParallelConfig:
    """fp32 gradients, averaged and sharded over data parallel ranks; NaN checked before they are, or with the norm."""
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=True, check_for_nan_in_grad=not run.late_reads,
        overlap_grad_reduce=run.overlap_grads, overlap_param_gather=run.overlap_weights, bucket_size=run.bucket,
        average_in_collective=torch.cuda.is_available(),  # NCCL does, gloo does not: there Megatron divides before
    )  # fmt: skip


def wait_for_all(ddp: DistributedDataParallel) -> None:
    """Have each module of ``READS`` wait for every weight inside it, where weights are gathered beside the forward."""
    if not ddp.ddp_config.overlap_param_gather:
        return
    for module in ddp.module.modules():
        if isinstance(module, READS):
            module.register_forward_pre_hook(lambda module, *_: _finish(ddp, module))


def _finish(ddp: DistributedDataParallel, module: nn.Module) -> None:
    for weight in module.parameters():
        group: Any = ddp.param_to_bucket_group.get(weight)
        if group is not None:
            group.finish_param_sync()


def gather(ddp: DistributedDataParallel) -> None:
    """Have every weight as the last step left it, now; all ranks call it. Nothing to do where each step gathers."""
    if ddp.ddp_config.overlap_param_gather:
        with torch.no_grad():
            ddp.start_param_sync(force_sync=True)
