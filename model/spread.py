"""Set a run's losses among those of other seeds, and fail above them: ``python -m model.spread RUN SEED…``.

The bar that a new default must pass: a path or precision that changes losses by more than rounding stays within for 500
steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from model.reports.compare import DISAGREE, spread
from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from reproducers.base import cli
from reproducers.base.cli import guarded

app = typer.Typer(add_completion=False)


@app.command()
def main(
    run: Annotated[Path, typer.Argument(help="the run to judge")],
    seeds: Annotated[list[Path], typer.Argument(help="two runs or more, otherwise alike, of other seeds")],
    last: Annotated[int, typer.Option(min=1, help="steps at the end, whose mean training loss is compared")] = 100,
    picture: Annotated[Path | None, typer.Option(help="draw the run in the seeds' band into this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, a line a loss")] = False,
) -> None:
    """Set a run's held-out and training losses among those of other seeds. Exit 1 if one is above all of theirs."""
    if picture is not None:
        if picture.suffix != ".png":
            raise PatchlaneError(f"--picture {picture}: only PNG is drawn", f"--picture {picture}.png")
        disk.usable_file(picture, "--picture names a file that you may write")
    found = spread(run, seeds, last)
    if picture is not None:
        from model.reports.pictures import band

        band(run, seeds, picture)
    if as_json:
        print("\n".join(among.model_dump_json() for among in found))
    else:
        names = ", ".join(folder.resolve().name for folder in seeds)
        table = Table("loss", "run", "least", "greatest", "within", title=escape(f"{run.resolve().name} among {names}"))
        for among in found:
            numbers = [f"{loss:.4f}" for loss in (among.value, among.least, among.greatest)]
            table.add_row(among.what, *numbers, "yes" if among.within else "NO")
        cli.console(width=None if sys.stdout.isatty() else 140).print(table)
    if not all(among.within for among in found):
        raise typer.Exit(DISAGREE)


if __name__ == "__main__":
    guarded(app)
