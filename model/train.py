"""``python -m model.train nam56r_tiny``, or under torchrun: train a size of NAM56R through the packs' patches."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from model import coverage, graphs, launch, lock, overlay, recipes, refusals
from model.coverage import Coverage
from model.data.dataset import Dataset
from model.describe import named
from model.launch import World
from model.layers import mamba3_kernels
from model.memory import Layout
from model.overlay import Overlay
from model.recipes import Recipe
from model.settings import PATHS, Run
from model.sizes import Size
from reproducers.cli import guarded
from reproducers.errors import PatchlaneError
from reproducers.store import Store

app = typer.Typer(add_completion=False)
logger = logging.getLogger("model.train")
BUILDERS = 8  # processes that build the default dataset: each must start, and it takes one core some 20 s


def paths_asked(pairs: list[str]) -> dict[str, str]:
    """``["mamba3=torch"]`` as a dict. PatchlaneError for a kind that has no paths."""
    asked = dict(pair.partition("=")[::2] for pair in pairs)
    for kind, path in asked.items():
        if kind not in PATHS or not path:
            raise PatchlaneError(f"--path {kind}={path}", f"--path KIND=PATH, KIND one of {', '.join(PATHS)}")
    return asked


def steps_window(text: str | None) -> tuple[int, int] | None:
    """ "11:13" as (11, 13)."""
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
        raise PatchlaneError(f"--profile {text}", "--profile FIRST:LAST, two step numbers from 1 on")
    return int(first), int(last)


def default_dataset() -> Dataset:
    """The default corpus, built or found in the cache."""
    from model.data import build, corpus, encode, show

    options = encode.EncoderOptions("byte", eod_token=None, valid_percent=2.0, structure=True)
    text, workers = corpus.StandardLibrary(), min(os.cpu_count() or 1, BUILDERS)
    with show.Bar(text) as bar:
        made = build.build(text, options, workers=workers, progress=bar.advance)
    logger.info("dataset %s: %s", "found" if made.reused else "built", made.folder)
    return Dataset(made.folder)


def _quiet(place: World) -> None:
    """Paths and our own words on rank 0; upstream's warnings only."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
    for upstream in ("megatron", "tilelang"):
        logging.getLogger(upstream).setLevel(logging.ERROR)
    for upstream in (r"megatron\.", r"torch\.distributed"):
        warnings.filterwarnings("ignore", module=upstream)
    logging.getLogger("model").setLevel(logging.INFO if place.first else logging.WARNING)


def train(recipe: Recipe, run: Run, patches: str, data: Path | None, **plan: Any) -> None:
    """Everything that one rank does. PatchlaneError for whatever is refused."""
    place = launch.world()
    _quiet(place)
    size, given = named(recipe.size), Dataset(data) if data else None
    launch.data_parallel(place, run)
    refusals.stages(size, run.pipeline_parallel)
    refusals.graphs(run)
    _make(plan["folder"])
    found = overlay.build(Store(), overlay.chosen(patches), launch.device())
    lock.verify(found)
    if found.device == "cuda":
        _compile(size, run, recipe.micro_batch, patches, found, place)
    watch = Coverage(found, graphs.WATCHED if run.cuda_graphs else coverage.STEPS)
    with watch.building():
        launch.start(place, found, run, seed=1234)
        engine, trainer = _modules(size, recipe, run, launch.data_parallel(place, run))
        training = engine.Engine(size, run, recipe)
    text = given or (default_dataset() if place.first else None)
    engine.barrier()  # the first rank may have built it
    text = text or default_dataset()
    trainer.Trainer(trainer.Plan(recipe, **plan), training, text, found, place, watch).run()
    launch.stop()


def _compile(size: Size, run: Run, rows: int, patches: str, stack: Overlay, place: World) -> None:
    """Mamba-3's kernels, before any rank needs them: for rows of one shape where the stream is taken so."""
    if run.paths.get("mamba3", "auto").startswith("torch") or not size.count("mamba3"):
        return
    shape = mamba3_kernels.one_shape(size, run, rows, {one.pack.number for one in stack.packs})
    if shape:
        os.environ.setdefault(mamba3_kernels.SPECIALIZE, "1")
    if place.local_rank == 0:
        mamba3_kernels.compile_once(size, patches, shape, stack)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PatchlaneError(
            f"--out {folder}: {error.strerror}", "--out with a directory that can be written"
        ) from error


def _modules(size: Size, recipe: Recipe, run: Run, data_parallel: int) -> tuple[Any, Any]:
    """Ours that import Megatron, and so only now; what this GPU cannot run or hold is refused first."""
    from model import engine, trainer

    if launch.device() == "cuda":
        refusals.gpu(size)
        layout = Layout(data_parallel, recipe.expert_parallel, recipe.pipeline_parallel, recipe.micro_batch)
        refusals.fits(size, layout, refusals.free_gib(), recipe.sequence or size.sequence, run.cuda_graphs)
    return engine, trainer


@app.command()
def main(
    size: Annotated[str, typer.Argument(help="a size, or a recipe's name")],
    out: Annotated[Path, typer.Option(help="run directory; a run in it is resumed")] = Path("build/train"),
    data: Annotated[Path | None, typer.Option(help="dataset folder; default: the standard library's sources")] = None,
    patches: Annotated[str, typer.Option(help="none, all, or packs: 12,16,17")] = "all",
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="rows of a micro-batch")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="micro-batches of a rank in a step")] = None,
    sequence: Annotated[int | None, typer.Option(min=16, help="tokens of a row")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0)] = None,
    warmup: Annotated[int | None, typer.Option(min=0)] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1)] = None,
    save_every: Annotated[int | None, typer.Option(min=0, help="steps; 0: never")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="expert-parallel ranks")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="pipeline stages")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--fp32")] = None,
    path: Annotated[list[str] | None, typer.Option(help="KIND=PATH, e.g. mamba3=torch")] = None,
    deterministic: Annotated[bool, typer.Option()] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="layers' activations again in backward")] = False,
    resume: Annotated[bool, typer.Option("--resume/--fresh")] = True,
    patches_changed_ok: Annotated[bool, typer.Option(help="resume although the checkpoint had other patches")] = False,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="replay layers")] = False,
    profile: Annotated[str | None, typer.Option(help="FIRST:LAST, steps under torch.profiler")] = None,
    wandb: Annotated[bool | None, typer.Option("--wandb/--no-wandb")] = None,
    seed: Annotated[int, typer.Option(help="of the rows' order")] = 0,
) -> None:
    """Train SIZE by the recipe named so, or the one made for it; options change the recipe."""
    recipe = recipes.RECIPES.get(size) or recipes.for_size(named(size).name)
    recipe = recipe.changed(
        steps=steps, micro_batch=micro_batch, accumulate=accumulate, sequence=sequence, learning_rate=learning_rate,
        warmup=warmup, evaluate_every=evaluate_every, save_every=save_every, expert_parallel=ep, pipeline_parallel=pp,
        bf16=bf16,
    )  # fmt: skip
    run = Run(
        expert_parallel=recipe.expert_parallel, pipeline_parallel=recipe.pipeline_parallel, bf16=recipe.bf16,
        deterministic=deterministic, recompute=recompute, cuda_graphs=cuda_graphs, on_cpu=launch.device() == "cpu",
        row=recipe.sequence or named(recipe.size).sequence, paths=paths_asked(path or []),
    )  # fmt: skip
    train(
        recipe, run, patches, data, folder=out, seed=seed, resume=resume, patches_changed_ok=patches_changed_ok,
        profile=steps_window(profile), wandb=wandb,
    )  # fmt: skip
    if launch.world().first:
        from model import history, pictures

        for picture in pictures.draw(out) if history.train(history.read(out)) else []:  # none if ended before any step
            print(picture)


if __name__ == "__main__":
    guarded(app)
