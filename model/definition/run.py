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
    row: int | None = None  # tokens of a row where every micro-batch is whole rows and no document spans two
    paths: dict[str, str] = field(default_factory=dict)
