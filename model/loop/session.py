"""One rank of a training run, from refusals to the last step."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model.data.rows import blend
from model.data.rows.blend import Blend, Part
from model.data.stored.dataset import Dataset
from model.definition.memory import Layout
from model.definition.recipes import Recipe
from model.families import nam56r
from model.families.family import Family
from model.families.sizes import expert_parallel
from model.kinds import catalogue
from model.kinds.run import Run
from model.layers.captured import graphs
from model.loop import compile_mamba3, launch, refusals, run_record
from model.loop.launch import World
from model.loop.ranks import apart, meeting
from model.patched import left, lock, overlay, seams
from model.patched.overlay import Overlay
from model.patched.proof import watching
from model.patched.proof.watching import Coverage
from model.patched.stacks import Stack
from model.records import metrics
from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from reproducers.upstream.store import Store

logger = logging.getLogger("model.train")
BUILDERS = 8  # processes that build the default dataset: one core takes some 20 s, and each process costs its start


def steps_window(text: str | None) -> tuple[int, int] | None:
    """ "11:13" as (11, 13). Raises PatchlaneError for other text."""
    if text is None:
        return None
    numbers = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)
    first, last = map(int, numbers.groups()) if numbers else (0, 0)
    if not 0 < first <= last:
        raise PatchlaneError(f"--profile {text}", "--profile FIRST:LAST, two step numbers from 1 on")
    return first, last


def default_dataset() -> Dataset:
    """The default corpus's dataset, built or reused from the cache."""
    from model.data import build, encode, show
    from model.data.source import corpus

    options = encode.EncoderOptions("byte", eod_token=None, valid_percent=2.0, structure=True)
    text, workers = corpus.StandardLibrary(), min(os.cpu_count() or 1, BUILDERS)
    with show.Bar(text) as bar:
        made = build.build(text, options, workers=workers, progress=bar.advance)
    logger.info("dataset %s: %s", "found" if made.reused else "built", made.folder)
    return Dataset(made.folder)


def _default(place: World, barrier: Callable[[], None], held_out: list[Part]) -> Blend:
    """The default dataset, to train on alone: rank 0 builds it, then the first rank of each host with its own store."""
    found: Dataset | None = None
    for turn in (place.first, place.local_rank == 0):
        if turn and found is None:
            found = default_dataset()
        barrier()
    found = found or default_dataset()
    return blend.of([Part(found.folder.name, found)], held_out)


def quiet(place: World) -> None:
    """Log this project's messages on rank 0 only, and upstream's errors only."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    for upstream in ("megatron", "tilelang"):
        logging.getLogger(upstream).setLevel(logging.ERROR)
    for upstream in (r"megatron\.", r"torch\.distributed"):
        warnings.filterwarnings("ignore", module=upstream)
    logging.getLogger("model").setLevel(logging.INFO if place.first else logging.WARNING)


def train(
    recipe: Recipe,
    run: Run,
    patches: str,
    data: list[str],
    of: Stack,
    clone: Path | None = None,
    *,
    held_out: list[str],
    **plan: Any,
) -> bool:
    """Run one rank on the stack ``of``, whose commit may come from ``clone``; ``plan``: further fields of
    ``TrainingPlan``. ``data`` and ``held_out`` name datasets as ``blend.part`` reads them; no data: the default one.
    Whether it was stopped with steps left. Raises PatchlaneError for refused settings."""
    place = launch.world()
    quiet(place)
    size, sets = recipe.sized(), [blend.part(one) for one in held_out]
    given = blend.of([blend.part(one) for one in data], sets) if data else None
    ranks = launch.data_parallel(place, run)
    refusals.upstream(size, of)
    refusals.watched(recipe.steps, plan.get("profile"), plan.get("waits"))
    refusals.stages(size, run.pipeline_parallel)
    expert_parallel(size, run.expert_parallel)
    refusals.graphs(size, run)
    catalogue.choose(size, run)  # what cannot run here is refused before upstream's code is fetched
    refusals.links(run)
    refusals.saved_format(recipe, run)
    if given is not None:  # the default one has bytes and structure, which every size takes
        refusals.vocabulary(size, given.record.tokenizer.vocab_size)
        refusals.fields(size, run, given.record.fields)
        refusals.rows(given, recipe, ranks, run.row)
        refusals.held_out(given, run.row or size.sequence)
    refusals.watchers(plan.get("wandb"))
    disk.usable_folder(plan["folder"], "--out DIR, with a directory that can be written")
    refusals.folder(plan["folder"], size, plan.get("resume", True))
    if place.first and (place.size == 1 or apart.under_torchrun()):  # other ranks would wait for one that is refused
        metrics.claim(plan["folder"]).release()
    checkpoints = recipe.save_every > 0 or (plan["folder"] / "checkpoints").is_dir()
    stack = overlay.build(
        Store(), overlay.chosen(patches, checkpoints, of, run.cuda_graphs), launch.device(), of, clone
    )
    lock.verify(stack)
    if place.first:
        logger.info(left.told(left.left(stack)))
    roots = [stack.root(name) for name in stack.trees]
    chosen = catalogue.choose(size, run, seams.lacking(roots))
    seams.check(catalogue.seams(run_record.choices(chosen, run)), roots)
    if stack.device == "cuda" and isinstance(size, nam56r.Size):
        _compile(size, chosen["mamba3"].name, (recipe.micro_batch, run.row), patches, stack, place)
    steps = graphs.WATCHED if run.cuda_graphs else watching.STEPS
    # the kept runs, which say what of the patches a run executes, are NAM56R's by its stacks' paths
    other = run.paths != of.paths or not isinstance(size, nam56r.Size)
    watch = Coverage(stack, steps, overlay.wanted(stack, asked=other))
    # where NCCL waits too long torch's flight recorder writes each rank's collectives; torchfrtrace compares them
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(plan["folder"].resolve() / "nccl_trace_rank_"))
    with meeting.kept(run.wait_limit):
        with watch.building():
            taken = {kind: path.name for kind, path in chosen.items()}  # of GPUs of several kinds, by their own
            options = run.model_copy(update={"hopper": False})
            own = {"recipe": recipe, "option": options, "path": taken, "patch": lock.as_record(stack)}
            launch.start(place, stack, run, seed=recipe.init_seed, own=own)
            from model.loop.ranks import hosts  # torch, which what is refused until here need not wait for

            hosts.shared(plan["folder"])
            engine, trainer = _modules(size, recipe, run, ranks)
            training = engine.Engine(size, run, recipe, chosen)
        text = given or _default(place, engine.barrier, sets)
        hosts.alike({"dataset": text.digest})
        if given is None:
            refusals.rows(text, recipe, ranks, run.row)
            refusals.held_out(text, run.row or size.sequence)
    loop = trainer.Trainer(trainer.TrainingPlan(recipe, **plan), training, text, stack, place, watch)
    with meeting.kept(run.wait_limit, lambda: loop.step + 1):
        loop.run()
    launch.stop()
    return bool(loop.stopped)


def _compile(
    size: nam56r.Size, path: str, rows: tuple[int, int | None], patches: str, stack: Overlay, place: World
) -> None:
    """Compile Mamba-3's kernels before a rank needs them, for rows of one shape if ``path`` takes the stream as rows.

    ``rows``: the rows of a micro-batch and their tokens.
    """
    kernels = compile_mamba3.wanted(path, size, *rows, {applied.pack.number for applied in stack.packs})
    if not kernels.names or not size.count("mamba3"):
        return
    if kernels.fixed:
        os.environ.setdefault(compile_mamba3.SPECIALIZE, "1")
    if place.local_rank == 0:
        compile_mamba3.compile_once(size, patches, kernels, stack)


def _modules(size: Family, recipe: Recipe, run: Run, data_parallel: int) -> tuple[Any, Any]:
    """First refuse a size that this GPU cannot run, or this rank hold, then import the modules that import Megatron."""
    if not run.on_cpu:
        refusals.gpu(size)
    layout = Layout(data_parallel, recipe.expert_parallel, recipe.pipeline_parallel, recipe.micro_batch)
    row = recipe.sequence or size.sequence
    refusals.fits(size, layout, refusals.free_gib(run.on_cpu), row, run.cuda_graphs, recipe.optimizer)
    from model.loop import trainer
    from model.step import engine

    return engine, trainer
