"""Print which patched lines a run executed: ``python -m model.coverage RUN``. Pack, file and line, by layer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from model.patched.proof.table import cost, table
from model.records import history
from patchlane.base.exits import Exit
from reproducers.base import cli
from reproducers.kept import xz
from reproducers.training.coverage import read

app = typer.Typer(add_completion=False)


@app.command()
def show(run: Annotated[Path, typer.Argument(help="run directory, with its coverage.json")]) -> None:
    """Print which patched lines a run's first steps executed, by layer; exit 1 if a pack that it wants never ran."""

    record, console = read(run), cli.console(width=None if sys.stdout.isatty() else 160)
    console.print(table(record))
    steps = history.train(history.read(run)) if xz.place(run / history.NAME).exists() else []
    console.print(cost(record, steps), highlight=False)
    for name in record.foreign:
        console.print(f"other code than the file's ran: {name}", highlight=False)
    lost = record.missing()
    for name, pack in lost.items():
        console.print(f"{name}: wanted by {'; '.join(pack.wanted_on(record.device))}, yet never ran", style="red")
    raise typer.Exit(Exit.CONTRADICTED if lost else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
