"""What training adds to a size, as the command line gives it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """Parallelism, precision, determinism, and the paths asked for: {kind: name}, "auto" where there is none."""

    expert_parallel: int = 1
    pipeline_parallel: int = 1
    bf16: bool = False
    deterministic: bool = False
    recompute: bool = False  # keep each layer's input only and compute it again for its backward pass
    on_cpu: bool = True
    cuda_graphs: bool = False
    late_reads: bool = False  # losses, norm and checks are read once a step, when all of it is launched
    overlap_grads: bool = False  # gradients are reduced beside the backward pass
    overlap_weights: bool = False  # weights are gathered beside the forward pass
    bucket: int | None = None  # parameters that are reduced or gathered at a time, where that overlaps; Megatron's
    row: int | None = None  # tokens of a row where every micro-batch is whole rows and no document spans two
    paths: dict[str, str] = field(default_factory=dict)
