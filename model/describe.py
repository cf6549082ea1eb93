"""Print layers, parameters, FLOPs, memory and traffic of each rank: ``python -m model.describe nam56r``.

A step's time is predicted from a kept run: ``--plan RUN``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from model.definition import memory
from model.definition.memory import Layout
from model.definition.recipes import RECIPES, Optimizer, known
from model.definition.traffic import GB
from model.families.sizes import SIZES, expert_parallel, named, readable
from model.plans import tables as plans
from model.plans.links import NAMEPLATE, Hosts
from model.records.newest import newest
from model.reports import description, page
from patchlane.base.errors import PatchlaneError
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    size: Annotated[str, typer.Argument(help=f"one of {', '.join(SIZES)}")],
    dp: Annotated[int, typer.Option(min=1, help="data-parallel ranks")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="expert-parallel ranks, a divisor of --dp")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="pipeline stages")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="rows of a micro-batch")] = 1,
    sequence: Annotated[int | None, typer.Option(min=16, help="tokens of a row, for the memory")] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1, help="propose the largest layout of as many GPUs, in place of --dp, --ep, --pp, --micro-batch"
        ),
    ] = None,
    gib: Annotated[
        float, typer.Option(min=1, max=10_000, help="memory of each of --gpus: 139 of an H200, 78 of an H100 of 80 GB")
    ] = 139.0,
    accumulate: Annotated[int, typer.Option(min=1, help="micro-batches a step, for --plan")] = 1,
    plan: Annotated[
        list[Path] | None,
        typer.Option(
            help="predict a step's time from this profiled run, a folder or a name in receipts/train; again: "
            "another one for rates that the first one lacks"
        ),
    ] = None,
    link_between_hosts: Annotated[
        float, typer.Option(min=0.001, help="GB/s that a GPU sends to other hosts; the default is a nameplate's")
    ] = NAMEPLATE,
    gpus_per_host: Annotated[int, typer.Option(min=1, help="for --plan")] = 8,
    overlap_grads: Annotated[bool, typer.Option("--overlap-grads", help="as model.train's, for --plan")] = False,
    overlap_weights: Annotated[bool, typer.Option("--overlap-weights", help="as model.train's, for --plan")] = False,
    optimizer: Annotated[Optimizer | None, typer.Option(help="for the memory; the recipe's, or adamw")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown: docs/nam56r.md")] = False,
) -> None:
    """Print all that follows from a size's definition, for the options' layout or for that of the recipe named SIZE."""
    recipe, console = RECIPES.get(size), cli.console(width=None if sys.stdout.isatty() else 160)
    optimizer = optimizer or (recipe.optimizer if recipe else "adamw")
    if gpus and (dp, ep, pp, micro_batch) != (1, 1, 1, 1):
        raise PatchlaneError(
            "--gpus proposes what --dp, --ep, --pp and --micro-batch give", f"python -m model.describe {size} --gpus N"
        )
    if recipe is not None and gpus:
        size = recipe.size
    elif recipe is not None:
        size, ep, pp, micro_batch = recipe.size, recipe.expert_parallel, recipe.pipeline_parallel, recipe.micro_batch
        dp, accumulate = recipe.ranks // pp, recipe.accumulate
        told = newest(recipe.size, recipe.ranks, recipe.on_gpus) or "no run of its size on as many GPUs is kept"
        console.print(f"recipe {recipe.name}: {told}")
    known(size)
    chosen = named(size)
    try:
        found = memory.largest(chosen, gpus, gib, sequence, optimizer) if gpus else []
        if gpus and not found:
            memory.none_fits(chosen, gpus, gib, sequence, optimizer)
        layout = found[0][0] if found else Layout(dp, ep, pp, micro_batch)
        dp, ep, pp, micro_batch = layout.data, layout.expert, layout.pipeline, layout.micro_batch
        expert_parallel(chosen, ep)
        tables = [description.layer_map(chosen), description.parameter_table(chosen), description.flops_table(chosen)]
        tables += [description.largest_table(found, gib)] if found else []
        tables += [
            description.memory_table(chosen, layout, sequence, optimizer),
            description.traffic_table(chosen, layout, sequence),
        ]
        if plan:
            hosts, overlap = Hosts(gpus_per_host, link_between_hosts * GB), (overlap_grads, overlap_weights)
            tables.append(plans.planned(plan, readable(size), layout, hosts, sequence, accumulate, *overlap))
    except ValueError as error:
        raise PatchlaneError(str(error), "python -m model.describe SIZE --dp N --ep DIVISOR --pp STAGES") from error
    if markdown:
        given = f"--gpus {gpus} --gib {gib:g}" if gpus else f"--dp {dp} --ep {ep} --pp {pp} --micro-batch {micro_batch}"
        command = f"python -m model.describe {size} {given} --markdown"
        command += f" --sequence {sequence}" if sequence else ""
        command += f" --optimizer {optimizer}" if optimizer != "adamw" else ""
        for run in plan or ():
            command += f" --plan {run}"
        if plan:
            command += f" --accumulate {accumulate} --link-between-hosts {link_between_hosts:g}"
            command += f" --gpus-per-host {gpus_per_host}" + " --overlap-grads" * overlap_grads
            command += " --overlap-weights" * overlap_weights
        print(page.page(command, tables), end="")
        return
    for table in tables:
        console.print(table)


if __name__ == "__main__":
    guarded(app)
