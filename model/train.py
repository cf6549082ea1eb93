"""Train a size of a model through the packs' patches: ``python -m model.train nam56r_tiny``, or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.definition import paths, recipe_file, recipes
from model.definition.command import INVARIANTS, Command
from model.definition.recipes import MOST
from model.kinds import catalogue
from model.loop import launch
from model.loop.ranks import apart
from model.loop.session import steps_window, train
from model.patched import stacks
from patchlane.base.exits import Exit
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


def _list(asked: bool) -> None:
    """Print each recipe and end: name, size, ranks, steps and the newest kept run of that size on as many GPUs."""
    if asked:
        from model.records.newest import newest

        for recipe in recipes.RECIPES.values():
            known = newest(recipe.size, recipe.ranks, recipe.on_gpus) or "no run is kept"
            print(f"{recipe.name:14}  {recipe.size:14}  {recipe.ranks}  {recipe.steps:4}  {known}")
        raise typer.Exit()


def _paths(asked: bool) -> None:
    """Print docs/paths.md and end."""
    if asked:
        print(paths.page(), end="")
        raise typer.Exit()


@app.command(cls=Command)
def main(
    size: Annotated[str | None, typer.Argument(help="a size, or a recipe's name")] = None,
    file: Annotated[Path | None, typer.Option("--recipe", help="YAML of a recipe's fields, over SIZE's")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", help="FIELD=VALUE of the recipe, over the file's, or of the run: overlap_grads=true"),
    ] = None,
    show: Annotated[bool, typer.Option("--show-recipe", help="print the recipe as YAML for --recipe, and end")] = False,
    listing: Annotated[
        bool, typer.Option("--list", callback=_list, is_eager=True, help="list the recipes: name, size, ranks, steps")
    ] = False,
    known: Annotated[
        bool, typer.Option("--paths", callback=_paths, is_eager=True, help="list the kernel paths: docs/paths.md")
    ] = False,
    out: Annotated[Path, typer.Option(help="run directory; a run in it is resumed")] = Path("build/train"),
    data: Annotated[
        list[str] | None,
        typer.Option(help="dataset folder, several as WEIGHT:[NAME=]FOLDER; default: the standard library's sources"),
    ] = None,
    held_out: Annotated[list[str] | None, typer.Option(help="NAME=FOLDER, a set to evaluate on only")] = None,
    patches: Annotated[str, typer.Option(help="none, all, all but some: all,-53, or packs: 12,16,17")] = "all",
    stack: Annotated[str, typer.Option(help="a stack of model/stacks.yaml: whose upstream code")] = stacks.DEFAULT,
    upstream: Annotated[Path | None, typer.Option(help="the clone to take a stack's commit from")] = None,
    steps: Annotated[int | None, typer.Option(help="as --set steps=N")] = None,
    path: Annotated[list[str] | None, typer.Option(help="KIND=PATH, e.g. mamba3=torch")] = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh")] = True,
    patches_changed_ok: Annotated[bool, typer.Option(help="resume a checkpoint of other patches")] = False,
    cuda_graphs: Annotated[bool, typer.Option("--cuda-graphs/--no-cuda-graphs", help="replay layers")] = False,
    waits: Annotated[int | None, typer.Option(min=1, help="the step to count the host's waits for the GPU in")] = None,
    invariants: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help=f"[N]: check every N steps what must hold of any; alone every {INVARIANTS}"),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="FIRST:LAST, steps under torch.profiler")] = None,
    wandb: Annotated[bool | None, typer.Option("--wandb/--no-wandb")] = None,
) -> None:
    """Train SIZE by its recipe, or by the recipe of this name; --recipe changes it, --set that and how it is run."""
    if steps is not None:
        field = [*(field or []), f"steps={steps}"]
    recipe, options = recipe_file.asked(size, file, field or [])
    if show:
        print(recipe_file.as_yaml(recipe), end="")
        raise typer.Exit()
    apart.live()
    run = launch.run_of(recipe, options, stacks.named(stack).paths | catalogue.asked(path or []), cuda_graphs)
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
        invariants=invariants,
    )
    if launch.world().first:
        from model.reports import pictures

        pictures.at_the_end(out)
    if stopped and not apart.under_torchrun():  # which would start the ranks again
        raise typer.Exit(Exit.STOPPED)


if __name__ == "__main__":
    guarded(app)
