"""Megatron's overlap, made right: reduce gradients beside the backward pass, gather weights beside the forward pass.

Megatron waits for a bucket of weights in the forward hook of a module that owns some of it, and only when that module
is called (megatron/core/distributed/distributed_data_parallel.py @ core_v0.19.0). Modules of ``READS`` read weights of
inner modules without calling them, so they wait for all weights inside them.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.experimental_attention_variant.absorbed_mla import AbsorbedMLASelfAttention
from torch import nn

from model.kinds.run import Run
from model.layers.deepseek_v4.attention import Attention
from model.layers.deepseek_v4.hyper import HyperConnection, HyperHead
from model.layers.experts.grouped import GroupedExperts
from model.layers.mamba3.mixer import Mamba3Mixer

READS = (AbsorbedMLASelfAttention, Attention, GroupedExperts, HyperConnection, HyperHead, Mamba3Mixer)


def config(run: Run, check: bool = True) -> DistributedDataParallelConfig:
    """fp32 gradients, averaged and sharded over data-parallel ranks; checked for NaN before that, or with the norm.

    The check before it ends the rank that finds NaN; without ``check`` there is only the norm, which all ranks have.
    """
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        check_for_nan_in_grad=check and not run.late_reads,
        overlap_grad_reduce=run.overlap_grads,
        overlap_param_gather=run.overlap_weights,
        bucket_size=run.bucket,
        average_in_collective=torch.cuda.is_available(),  # NCCL averages; for gloo Megatron divides before
    )


def wait_for_all(ddp: DistributedDataParallel) -> None:
    """Have each module of ``READS`` wait for every weight inside it if weights are gathered beside the forward."""
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
    """Gather every weight as the last step left it; all ranks call it. Does nothing if each step gathers its own."""
    if ddp.ddp_config.overlap_param_gather:
        with torch.no_grad():
            ddp.start_param_sync(force_sync=True)
