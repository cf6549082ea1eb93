"""Compare each step's loss, gradient norm, speed and memory with a base run's: ``python -m model.compare BASE RUN…``.

For runs of another layout (EP, PP, recomputing), path or patch over the same data; reads their records alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from model.reports.compare import DISAGREE, compare, row
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    base: Annotated[Path, typer.Argument(help="the run to compare the others with")],
    runs: Annotated[list[Path], typer.Argument(help="runs over the same data with the same tokens a step")],
    tolerance: Annotated[float, typer.Option(min=0, help="largest relative difference of a step's loss")] = 0.01,
    first: Annotated[
        int, typer.Option(min=1, help="first step, such as the comparison after the checkpoint that both resumed from")
    ] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="common steps left out of speed and memory")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, a line a run")] = False,
) -> None:
    """Compare runs with a base step by step: losses, gradient norms, speed, memory. Exit 1 if a loss does not agree."""
    comparisons = [compare(base, run, tolerance, first, warmup) for run in runs]
    if as_json:
        print("\n".join(comparison.model_dump_json() for comparison in comparisons))
    else:
        table = Table(
            Column("run", overflow="fold"),
            "steps",
            "loss off at most",
            "on average",
            "gradient norm",
            f"within {tolerance:g}",
            "speed, of the base's",
            "peak, GiB more",
            title=escape(f"against {base.resolve().name}"),
        )
        for comparison in comparisons:
            table.add_row(*row(comparison))
        cli.console(width=None if sys.stdout.isatty() else 140).print(table)
    if not all(comparison.agrees for comparison in comparisons):
        raise typer.Exit(DISAGREE)


if __name__ == "__main__":
    guarded(app)
