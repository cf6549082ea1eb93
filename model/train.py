"""``python -m model.train nam56r_tiny``, or under torchrun: train a size of NAM56R through the packs' patches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.definition import recipe_file, recipes
from model.definition.run import Run
from model.layers.common import paths
from model.loop import launch
from model.loop.ranks import apart
from model.loop.session import steps_window, train
from model.patched import stacks
from reproducers.base.cli import guarded
from reproducers.base.verdicts import Exit

app = typer.Typer(add_completion=False)


def _list(asked: bool) -> None:
    """Print each recipe and end: name, size, ranks, steps and the newest kept run of that size on as many GPUs."""
    if asked:
        from model.records.newest import newest

        for recipe in recipes.RECIPES.values():
            known = newest(recipe.size, recipe.ranks) or "no run is kept"
            print(f"{recipe.name:14}  {recipe.size:14}  {recipe.ranks}  {recipe.steps:4}  {known}")
        raise typer.Exit()


@app.command()
def main(
    size: Annotated[str | None, typer.Argument(help="a size, or a recipe's name")] = None,
    file: Annotated[Path | None, typer.Option("--recipe", help="YAML of a recipe's fields, over SIZE's")] = None,
    field: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the recipe, over the file's")] = None,
    show: Annotated[bool, typer.Option("--show-recipe", help="print the recipe as YAML for --recipe, and end")] = False,
    listing: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="list the recipes: name, size, ranks, steps")
    ] = False,
    out: Annotated[Path, typer.Option(help="run directory; a run in it is resumed")] = Path("build/train"),
    data: Annotated[
        list[str] | None,
        typer.Option(help="dataset folder, several as WEIGHT:[NAME=]FOLDER; default: the standard library's sources"),
    ] = None,
    held_out: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER, a set to evaluate on only")] = None,
    patches: Annotated[str, typer.Option(help="none, all, or packs: 12,16,17")] = "all",
    stack: Annotated[str, typer.Option(help="a stack of model/stacks.yaml: whose upstream code")] = stacks.DEFAULT,
    upstream: Annotated[Path | None, typer.Option(help="the clone to take a stack's commit from")] = None,
    steps: Annotated[int | None, typer.Option(min=1)] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="rows of a micro-batch")] = None,
    accumulate: Annotated[int | None, typer.Option(min=1, help="micro-batches of a rank in a step")] = None,
    sequence: Annotated[int | None, typer.Option(min=16, help="tokens of a row")] = None,
    learning_rate: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    warmup: Annotated[int | None, typer.Option(min=0)] = None,
    evaluate_every: Annotated[int | None, typer.Option(min=1)] = None,
    save_every: Annotated[int | None, typer.Option(min=0, help="steps; 0: never")] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="expert-parallel ranks")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="pipeline stages")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--fp32")] = None,
    path: Annotated[list[str] | None, typer.Option(help="KIND=PATH, e.g. mamba3=torch")] = None,
    deterministic: Annotated[bool, typer.Option()] = False,
    recompute: Annotated[bool, typer.Option("--recompute", help="activations again in backward, not kept")] = False,
    resume: Annotated[bool, typer.Option("--resume/--fresh")] = True,
    patches_changed_ok: Annotated[bool, typer.Option(help="resume a checkpoint of other patches")] = False,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="replay layers")] = False,
    late_reads: Annotated[
        bool | None, typer.Option("--late-reads/--early-reads", help="read a step in the next one; default on a GPU")
    ] = None,
    overlap_grads: Annotated[bool, typer.Option("--overlap-grads", help="reduce beside the backward pass")] = False,
    overlap_weights: Annotated[bool, typer.Option("--overlap-weights", help="gather beside the forward pass")] = False,
    bucket: Annotated[int | None, typer.Option(min=1, help="parameters reduced or gathered at a time")] = None,
    nccl_ctas: Annotated[
        int | None, typer.Option(min=1, max=64, help="thread blocks of NCCL's collectives; default: NCCL's choice")
    ] = None,
    on_spike: Annotated[str | None, typer.Option(help="stop, skip or rewind: at a loss that spikes or is NaN")] = None,
    wait_limit: Annotated[
        float, typer.Option(min=1, max=1e9, help="seconds to wait for a rank that is not there")
    ] = 1200,
    waits: Annotated[int | None, typer.Option(min=1, help="the step to count the host's waits for the GPU in")] = None,
    profile: Annotated[str | None, typer.Option(help="FIRST:LAST, steps under torch.profiler")] = None,
    wandb: Annotated[bool | None, typer.Option("--wandb/--no-wandb")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="seed of the rows' order")] = None,
) -> None:
    """Train SIZE by its recipe, or by the recipe of this name; --recipe changes it, --set that, other options that."""
    recipe = recipe_file.asked(
        size,
        file,
        field or [],
        {
            "steps": steps,
            "micro_batch": micro_batch,
            "accumulate": accumulate,
            "sequence": sequence,
            "learning_rate": learning_rate,
            "warmup": warmup,
            "evaluate_every": evaluate_every,
            "save_every": save_every,
            "expert_parallel": ep,
            "pipeline_parallel": pp,
            "bf16": bf16,
            "seed": seed,
            "on_spike": on_spike,
        },
    )
    if show:
        print(recipe_file.as_yaml(recipe), end="")
        raise typer.Exit()
    apart.live()
    queues = launch.queues()  # before anything starts CUDA
    # measured with one stage and without graphs only
    late_unasked = launch.device() == "cuda" and recipe.pipeline_parallel == 1 and not cuda_graphs
    run = Run(
        expert_parallel=recipe.expert_parallel,
        pipeline_parallel=recipe.pipeline_parallel,
        bf16=recipe.bf16,
        deterministic=deterministic,
        recompute=recompute,
        cuda_graphs=cuda_graphs,
        on_cpu=launch.device() == "cpu",
        hopper=launch.hopper(),
        row=recipe.sequence,
        paths=stacks.named(stack).paths | paths.asked(path or []),
        late_reads=late_unasked if late_reads is None else late_reads,
        overlap_grads=overlap_grads,
        overlap_weights=overlap_weights,
        bucket=bucket,
        wait_limit=wait_limit,
        nccl_ctas=nccl_ctas,
        launch_queues=queues if launch.device() == "cuda" else None,
    )
    stopped = train(
        recipe,
        run,
        patches,
        data or [],
        stacks.named(stack),
        upstream,
        held_out=held_out or [],
        folder=out,
        resume=resume,
        patches_changed_ok=patches_changed_ok,
        profile=steps_window(profile),
        wandb=wandb,
        waits=waits,
    )
    if launch.world().first:
        from model.reports import pictures

        pictures.at_the_end(out)
    if stopped and not apart.under_torchrun():  # which would start the ranks again
        raise typer.Exit(Exit.STOPPED)


if __name__ == "__main__":
    guarded(app)
