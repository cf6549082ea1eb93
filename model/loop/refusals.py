"""Refusals of runs and of steps, each with its reason and its remedy."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import psutil

from model.data.rows.blend import Blend
from model.definition import memory
from model.definition.memory import Layout
from model.definition.recipes import Recipe
from model.families import nam56r, pattern
from model.families.family import Family
from model.families.sizes import SIZES, named
from model.kinds.run import Run
from model.loop import run_record
from model.patched.stacks import Stack
from model.records import sinks
from model.saved import reading
from patchlane.base.errors import CannotTestHere, PatchlaneError

# Shared memory of Mamba-3's MIMO backward (bwd_bwd, packed), bytes a block, at state 128, head 64, rank 4, chunk 16,
# bf16: the launch argument that tilelang 0.1.8 gives for sm_90a
MIMO_SHARED = 223_904
logger = logging.getLogger("model.loop.refusals")
LOWER = "the same command with a lower --set learning_rate=RATE resumes from the last checkpoint"


def loss(value: float, step: int) -> None:
    """Raise PatchlaneError for a loss that is not finite."""
    if not math.isfinite(value):
        raise PatchlaneError(f"step {step}: the loss is {value}", LOWER)


def norm(value: float, step: int) -> None:
    """Raise PatchlaneError for gradients whose norm is not finite, if nothing of them was read before it."""
    if not math.isfinite(value):
        raise PatchlaneError(f"step {step}: the norm of the gradients is {value}", LOWER)


@contextlib.contextmanager
def within(step: int) -> Iterator[None]:
    """Turn the RuntimeError of Megatron's check of gradients before their reduction into a PatchlaneError."""
    try:
        yield
    except RuntimeError as error:
        if "in local grad norm" not in str(error):
            raise
        # around the message stands an iteration number that only Megatron's own loop counts
        cause = re.search(r"message='(.+?)'", str(error))
        raise PatchlaneError(f"step {step}: {cause[1] if cause else error}", LOWER) from error


def stages(size: Family, pipeline: int) -> None:
    """Raise PatchlaneError for more pipeline stages than the stack can be cut into."""
    try:
        pattern.even_cuts(size.layers, pipeline)
    except ValueError as error:
        most = len(pattern.possible_cuts(size.layers)) + 1
        raise PatchlaneError(str(error), f"--set pipeline_parallel={most} or fewer") from error


def watched(steps: int, profile: tuple[int, int] | None, waits: int | None) -> None:
    """Raise PatchlaneError for --profile or --waits of steps that a run of ``steps`` does not take."""
    first, last = profile or (1, 1)
    for asked, nearest, at in (
        (f"--profile {first}:{last}", f"--profile {min(first, steps)}:{steps}", last),
        (f"--waits {waits}", f"--waits {steps}", waits or 1),
    ):
        if at > steps:
            raise PatchlaneError(f"{asked}: step {steps} is the last one", f"{nearest}, or a higher --steps")


def vocabulary(size: Family, ids: int) -> None:
    """Raise PatchlaneError for a dataset of ``ids`` token ids of which the model has no row for the last ones."""
    if ids > size.vocab:
        same = {name: one for name, one in SIZES.items() if type(one) is type(size)}  # of its architecture
        larger = ", ".join(name for name, one in same.items() if one.vocab >= ids)
        raise PatchlaneError(
            f"the dataset's tokenizer has {ids} ids, {size.name} has a vocabulary of {size.vocab}",
            (f"train {larger}, or " if larger else "") + f"python -m model.data build by a tokenizer of {size.vocab}",
        )


def rows(data: Blend, recipe: Recipe, ranks: int, row: int | None) -> None:
    """Raise PatchlaneError for a step of more rows than all datasets have, before any of them is gathered, and for a
    dataset without a training split.

    ``ranks``: data-parallel ones. ``row``: tokens of a row, by which the stream is cut (``data.rows.packing``).
    """
    length = row or named(recipe.size).sequence
    for part in data.parts:
        if not part.dataset.record.splits["train"].tokens:
            raise PatchlaneError(
                f"{part.dataset.folder} has nothing to train on: all of it is held out",
                f"--held-out {part.name}={part.dataset.folder} evaluates on it; build --data with --valid-percent 2",
            )
    held = sum(part.rows("train", length) for part in data.parts)
    step = recipe.micro_batch * recipe.accumulate * ranks
    if held < step:
        raise PatchlaneError(
            f"a step of {step} rows ({recipe.micro_batch} x {recipe.accumulate} micro-batches x {ranks} ranks), "
            f"the dataset has {held} of {length} tokens",
            "--set micro_batch=, accumulate= or sequence= of less, fewer ranks, or a larger dataset",
        )
    for part in data.parts:
        if not part.rows("train", length):
            raise PatchlaneError(
                f"{part.dataset.folder} has {part.dataset.record.splits['train'].tokens} tokens to train on, which do "
                f"not fill a row of {length} + 1",
                "a smaller --set sequence=TOKENS, more text in it, or the run without it",
            )


def held_out(data: Blend, row: int) -> None:
    """Say which datasets are trained on and not evaluated on, as their held-out splits do not fill a row of ``row``
    tokens. Raises PatchlaneError for a set that is there to be evaluated on alone."""
    for part in data.held_out:
        if not part.held_out_rows(row):
            raise PatchlaneError(
                f"--held-out {part.name}: {part.dataset.record.splits['valid'].tokens} held-out tokens do not fill a "
                f"row of {row} + 1",
                f"python -m model.data build it with --valid-percent 100, or train without --held-out {part.name}",
            )
    for part in data.unevaluated(row):
        logger.info(
            "%s holds out %d tokens, less than a row of %d + 1: it is trained on and not evaluated on",
            part.name,
            part.dataset.record.splits["valid"].tokens,
            row,
        )
    if not data.evaluated(row):
        logger.info("nothing is held out: the run has no held-out loss")


def folder(out: Path, size: Family, resume: bool) -> None:
    """Raise PatchlaneError where the run to resume in ``out`` is of another model by its run.json, before anything is
    built. Its checkpoint is asked once its digests have been compared."""
    held = reading.complete(out / "checkpoints") if resume else []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        of = json.loads((out / run_record.FILE).read_bytes())["size"]
        if held and isinstance(of, dict) and not size.same_model(of):
            another_model(held[-1].name)


def another_model(name: str) -> NoReturn:
    """Raise PatchlaneError: the checkpoint ``name`` is of another model than the run's."""
    raise PatchlaneError(f"{name} is of another model", "choose another --out, or the model's size")


def watchers(wandb: bool | None) -> None:
    """Raise CannotTestHere where W&B is wanted and not installed; say that there will be no pictures without
    matplotlib."""
    sinks.wants_wandb(wandb)
    if importlib.util.find_spec("matplotlib") is None:
        logger.info("no pictures: pip install matplotlib")


def gpu(size: Family) -> None:
    """Raise CannotTestHere on a GPU whose blocks have less shared memory than the size's kernels need."""
    import torch

    if not torch.cuda.is_available() or not size.count("mamba3"):
        return
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    limit = getattr(device, "shared_memory_per_block_optin", 0)
    if limit and limit < MIMO_SHARED and isinstance(size, nam56r.Size) and size.mamba.state >= 128:
        raise CannotTestHere(
            f"{device.name} has {limit} bytes of shared memory a block, Mamba-3's MIMO backward needs {MIMO_SHARED}",
            "train on a GPU of compute capability 9.0, or with --path mamba3=torch",
        )


def free_gib(on_cpu: bool) -> float:
    """GiB free on this rank's GPU, or on a CPU this rank's part of its host's."""
    if on_cpu:
        return psutil.virtual_memory().available / memory.GIB / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    import torch

    free, _ = torch.cuda.mem_get_info()
    return float(free) / memory.GIB


def upstream(size: Family, of: Stack) -> None:
    """Raise PatchlaneError for a stack of upstream code that the architecture is not built on."""
    if size.stacks and of.name not in size.stacks:
        raise PatchlaneError(f"{size.name} is not built on stack {of.name}", f"--stack {' or '.join(size.stacks)}")


def graphs(size: Family, run: Run) -> None:
    """Raise CannotTestHere or PatchlaneError if CUDA graphs are wanted and cannot be captured."""
    if not run.cuda_graphs:
        return
    if size.uncaptured:
        raise PatchlaneError(size.uncaptured, "train without --cuda-graphs")
    if run.on_cpu:
        raise CannotTestHere("--cuda-graphs needs a GPU", "train without --cuda-graphs")
    if run.pipeline_parallel > 1:  # each micro-batch in flight would need a graph with activations of its own
        raise PatchlaneError(
            "--cuda-graphs are for one pipeline stage", "--set pipeline_parallel=1, or without --cuda-graphs"
        )
    if run.paths.get("moe") == "grouped_mm":
        raise PatchlaneError("--cuda-graphs capture routers of another dispatcher", "choose one of the two")
    if run.recompute:
        raise PatchlaneError("--cuda-graphs keep what recompute=true computes again", "choose one of the two")


def saved_format(recipe: Recipe, run: Run) -> None:
    """Raise PatchlaneError if the optimizer's state cannot be written as ``run`` asks."""
    if run.optimizer_format == "fully_reshardable" and recipe.optimizer != "adamw":
        raise PatchlaneError(
            f"fully_reshardable has moments for every parameter, and {recipe.optimizer} has none for matrices",
            "--set optimizer=adamw, or --set optimizer_format=stretches",
        )


def links(run: Run) -> None:
    """Raise CannotTestHere if NCCL's collectives are sized where there are none; PatchlaneError if gradients or weights
    cannot travel beside computation, or would be wrong."""
    if run.nccl_ctas and run.on_cpu:
        raise CannotTestHere("nccl_ctas needs a GPU: ranks on CPUs talk by gloo", "train without --set nccl_ctas")
    if not (run.overlap_grads or run.overlap_weights):
        if run.bucket is not None:
            raise PatchlaneError("bucket sizes what overlaps, and nothing does", "add --set overlap_grads=true")
        return
    if not run.overlap_grads:
        raise PatchlaneError("overlap_weights without overlap_grads has one bucket", "add --set overlap_grads=true")
    if run.pipeline_parallel > 1:  # stages send in an order of their own, which is untested here
        raise PatchlaneError("overlap_grads is for one pipeline stage", "--set pipeline_parallel=1")
    if run.cuda_graphs:  # a replayed layer calls no hooks
        raise PatchlaneError("overlap_grads waits in layers that --cuda-graphs replays", "choose one of the two")


def fields(size: Family, run: Run, given: Collection[str]) -> None:
    """Raise PatchlaneError for overlap_grads without structure: its gradients would never be reduced. Without the
    option say that the structure's embedding stays as it is."""
    missing = sorted({*size.fields} - set(given))
    if missing and not run.overlap_grads:
        logger.info("the dataset has no field %s: the structure embedding adds nothing", ", ".join(missing))
    if run.overlap_grads and missing:
        raise PatchlaneError(
            f"the dataset has no field {', '.join(missing)}, so overlap_grads waits for its gradient",
            "train without --set overlap_grads=true, or python -m model.data build a dataset of sources",
        )


def fits(
    size: Family, layout: Layout, free_gib: float, sequence: int, graphs: bool = False, optimizer: str = "adamw"
) -> None:
    """Raise PatchlaneError if a rank keeps more through a step than its free memory.

    It keeps weights, gradients and optimizer; with ``graphs`` activations too, because their pool never frees them.
    """
    for stage in range(layout.pipeline):
        parts = memory.estimate(size, layout, stage, sequence, optimizer)
        fixed = sum(value for name, value in parts.items() if graphs or name != "activations")
        if fixed > free_gib:
            kept = "with the activations that CUDA graphs hold" if graphs else "before any activation"
            instead = "without --cuda-graphs, or " if graphs else ""
            raise PatchlaneError(
                f"stage {stage} needs {fixed:.1f} GiB {kept}, {free_gib:.1f} GiB are free",
                f"{instead}python -m model.describe {size.name} --gpus {layout.data * layout.pipeline} "
                f"--gib {max(free_gib, 1):.0f} --sequence {sequence} --optimizer {optimizer} "
                "proposes another layout or says that none fits",
            )
