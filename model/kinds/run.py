"""The options that the command line adds to a size."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """Parallelism, precision, determinism, and the requested paths: {kind: name}, "auto" for a kind not in it."""

    expert_parallel: int = 1
    pipeline_parallel: int = 1
    bf16: bool = False
    deterministic: bool = False
    recompute: bool = False  # keep each layer's input only and compute the layer again for its backward pass
    on_cpu: bool = True
    hopper: bool = False  # GPUs are of compute capability 9.0
    cuda_graphs: bool = False
    late_reads: bool = False  # losses, norm and checks are read once a step, after the next one's launches
    overlap_grads: bool = False  # gradients are reduced beside the backward pass
    overlap_weights: bool = False  # weights are gathered beside the forward pass
    bucket: int | None = None  # parameters reduced or gathered at a time under overlap; None: Megatron's default
    nccl_ctas: int | None = None  # thread blocks of each collective of NCCL's; None: as many as NCCL takes
    launch_queues: str | None = None  # CUDA_SCALE_LAUNCH_QUEUES of a run by GPUs: how far the host may launch ahead
    wait_limit: float = (
        1200.0  # seconds that a collective waits for a rank: the first step compiles, saving takes minutes
    )
    row: int | None = None  # tokens of a row if every micro-batch is whole rows and no document spans two
    paths: dict[str, str] = field(default_factory=dict)
