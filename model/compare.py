"""``python -m model.compare BASE RUN…``: do the same steps of other runs agree with a base's, and at what speed.

For other layouts (EP, PP, recomputing), other paths and other patches over the same data: from the records alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from model.reports.compare import DISAGREE, compare, row
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    base: Annotated[Path, typer.Argument(help="the run that the others are compared with")],
    runs: Annotated[list[Path], typer.Argument(help="runs over the same data with the same tokens a step")],
    tolerance: Annotated[float, typer.Option(min=0, help="largest relative difference of a step's loss")] = 0.01,
    first: Annotated[int, typer.Option(min=1, help="first step: that after the checkpoint both went on from")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="common steps left out of speed and memory")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, a line a run")] = False,
) -> None:
    """Losses, gradient norms, speed and memory beside a base's, step by step. Exit 1 where a loss does not agree."""
    found = [compare(base, run, tolerance, first, warmup) for run in runs]
    if as_json:
        print("\n".join(one.model_dump_json() for one in found))
    else:
        table = Table(
            Column("run", overflow="fold"), "steps", "loss off at most", "on average", "gradient norm",
            f"within {tolerance:g}", "speed, of the base's", "peak, GiB more", title=escape(f"against {found[0].base}"),
        )  # fmt: skip
        for one in found:
            table.add_row(*row(one))
        Console(width=None if sys.stdout.isatty() else 140).print(table)
    if not all(one.agrees for one in found):
        raise typer.Exit(DISAGREE)


if __name__ == "__main__":
    guarded(app)
