"""The options that the command line adds to a size, and what kernel paths of several kinds need of them and the host.

A need says what is missing, or None.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

OptimizerFormat = Literal["stretches", "fully_reshardable"]  # model/loop/saving/sharded.py says what each is


class Options(BaseModel):
    """How a run computes, beside its recipe: what ``--set`` of model.train takes beside the recipe's fields.

    ``late_reads``: losses, norm and checks are read once a step, after the next one's launches; None: where that was
    measured to pay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    deterministic: bool = False
    recompute: bool = False  # keep each layer's input only and compute the layer again for its backward pass
    late_reads: bool | None = None
    overlap_grads: bool = False  # gradients are reduced beside the backward pass
    overlap_weights: bool = False  # weights are gathered beside the forward pass
    bucket: Annotated[int, Field(ge=1)] | None = None  # parameters that travel at a time; None: Megatron's default
    nccl_ctas: Annotated[int, Field(ge=1, le=64)] | None = None  # thread blocks of a collective; None: NCCL's choice
    # seconds that a collective waits for a rank: the first step compiles, saving takes minutes
    wait_limit: Annotated[float, Field(ge=1, le=1e9)] = 1200.0
    optimizer_format: OptimizerFormat = "stretches"  # of checkpoints that are written; either is read


class Run(Options):
    """Parallelism, precision, this host, and the requested paths: {kind: name}, "auto" for a kind not in it."""

    late_reads: bool = False
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    bf16: bool = False
    on_cpu: bool = True
    hopper: bool = False  # GPUs are of compute capability 9.0
    cuda_graphs: bool = False
    launch_queues: str | None = None  # CUDA_SCALE_LAUNCH_QUEUES of a run by GPUs: how far the host may launch ahead
    row: int | None = None  # tokens of a row if every micro-batch is whole rows and no document spans two
    paths: dict[str, str] = {}


def gpu(size: Any, run: Run) -> str | None:
    return "there is no GPU" if run.on_cpu else None


def bf16(size: Any, run: Run) -> str | None:
    return None if run.bf16 else "weights are fp32"


def gpu_bf16(size: Any, run: Run) -> str | None:
    """bf16 where there is a GPU; on a CPU either."""
    return None if run.on_cpu else bf16(size, run)


def rows(size: Any, run: Run) -> str | None:
    return "the stream is not rows of one length" if run.row is None else None


def triton(size: Any, run: Run) -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed (pip install triton)"


def gpu_or_interpreter(size: Any, run: Run) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return "there is no GPU, and no TRITON_INTERPRET=1" if run.on_cpu and not interpreted else None
