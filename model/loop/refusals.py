"""What is refused before a run begins, each with its reason and what to do."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator

from model.definition import memory, pattern
from model.definition.memory import Layout
from model.definition.run import Run
from model.definition.sizes import Size
from reproducers.base.errors import CannotTestHere, PatchlaneError

# Shared memory, bytes a block, that Mamba-3's MIMO backward (bwd_bwd, packed) asks for at state 128, head 64, rank 4,
# chunk 16, bf16: the launch argument of what tilelang 0.1.8 lowers for sm_90a
MIMO_SHARED = 223_904
RESUME = "the same command resumes from the last checkpoint"
LOWER = "the same command with a lower --learning-rate resumes from the last checkpoint"


def loss(value: float, step: int) -> None:
    """PatchlaneError for a loss that is not a number."""
    if not math.isfinite(value):
        raise PatchlaneError(f"step {step}: the loss is {value}", LOWER)


def norm(value: float, step: int) -> None:
    """PatchlaneError for gradients that are not finite, where their norm is the first that is read of them."""
    if not math.isfinite(value):
        raise PatchlaneError(f"step {step}: the norm of the gradients is {value}", LOWER)


@contextlib.contextmanager
def within(step: int) -> Iterator[None]:
    """Turn two RuntimeErrors of a step into PatchlaneErrors: Megatron's check of the gradients before they are reduced,
    and the loss of another rank that it stopped."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistBackendError) or "gloo" in str(error):
            raise PatchlaneError(f"step {step}: another rank ended", f"see what it said; {RESUME}") from error
        if "in local grad norm" not in str(error):
            raise
        said = re.search(r"message='(.+?)'", str(error))  # around it, an iteration that only Megatron's own loop counts
        raise PatchlaneError(f"step {step}: {said[1] if said else error}", LOWER) from error


def stages(size: Size, pipeline: int) -> None:
    """PatchlaneError for more pipeline stages than the stack can be cut into."""
    try:
        pattern.even_cuts(size.layers, pipeline)
    except ValueError as error:
        raise PatchlaneError(str(error), f"--pp {len(pattern.possible_cuts(size.layers)) + 1} or fewer") from error


def gpu(size: Size) -> None:
    """CannotTestHere on a GPU whose blocks have less shared memory than the size's kernels ask for."""
    import torch

    if not torch.cuda.is_available() or not size.count("mamba3"):
        return
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    limit = getattr(found, "shared_memory_per_block_optin", 0)
    if limit and limit < MIMO_SHARED and size.mamba.state >= 128:
        raise CannotTestHere(
            f"{found.name} has {limit} bytes of shared memory a block, Mamba-3's MIMO backward asks for {MIMO_SHARED}",
            "train on a GPU of compute capability 9.0, or with --path mamba3=torch",
        )


def free_gib() -> float:
    """GiB that are free on this rank's GPU."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return float(free) / memory.GIB


def graphs(run: Run) -> None:
    """CannotTestHere or PatchlaneError where CUDA graphs are asked for and cannot be."""
    if not run.cuda_graphs:
        return
    if run.on_cpu:
        raise CannotTestHere("--cuda-graphs was asked for and there is no GPU", "train without --cuda-graphs")
    if run.pipeline_parallel > 1:  # a graph for each micro-batch in flight, and each with activations of its own
        raise PatchlaneError("--cuda-graphs are for one pipeline stage", "train without --cuda-graphs, or with --pp 1")
    if run.paths.get("moe") == "grouped_mm":
        raise PatchlaneError("--cuda-graphs capture routers of another dispatcher", "choose one of the two")
    if run.recompute:
        raise PatchlaneError("--cuda-graphs keep what --recompute computes again", "choose one of the two")


def overlaps(run: Run) -> None:
    """PatchlaneError where what is asked to travel beside computation cannot, or would be wrong."""
    if not (run.overlap_grads or run.overlap_weights):
        if run.bucket is not None:
            raise PatchlaneError("--bucket is the size of what overlaps, and nothing does", "add --overlap-grads")
        return
    if not run.overlap_grads:
        raise PatchlaneError("--overlap-weights without --overlap-grads has one bucket", "add --overlap-grads")
    if run.pipeline_parallel > 1:  # stages send in an order of their own, which nothing here was tried with
        raise PatchlaneError("--overlap-grads is for one pipeline stage", "train without it, or with --pp 1")
    if run.cuda_graphs:  # a replayed layer calls no hooks
        raise PatchlaneError("--overlap-grads waits in layers that --cuda-graphs replays", "choose one of the two")


def fields(size: Size, run: Run, given: Collection[str]) -> None:
    """PatchlaneError for a dataset without structure where gradients are reduced as they come: some never would."""
    missing = sorted(size.structure.fields.keys() - set(given))
    if run.overlap_grads and missing:
        raise PatchlaneError(
            f"the dataset has no field {', '.join(missing)}: its embedding has no gradient for --overlap-grads",
            "train without --overlap-grads, or python -m model.data build a dataset of sources",
        )


def fits(size: Size, layout: Layout, free_gib: float, sequence: int, graphs: bool = False) -> None:
    """PatchlaneError when what a rank keeps through a step exceeds the memory that is free.

    That is weights, gradients and optimizer; with ``graphs`` activations too, since their pool never gives them back.
    """
    for stage in range(layout.pipeline):
        parts = memory.estimate(size, layout, stage, sequence)
        fixed = sum(value for name, value in parts.items() if graphs or name != "activations")
        if fixed > free_gib:
            kept = "with the activations that CUDA graphs hold" if graphs else "before any activation"
            instead = "without --cuda-graphs, or " if graphs else ""
            raise PatchlaneError(
                f"stage {stage} needs {fixed:.1f} GiB {kept}, {free_gib:.1f} GiB are free",
                f"{instead}python -m model.describe {size.name} --dp N --ep N shows what other layouts need",
            )
