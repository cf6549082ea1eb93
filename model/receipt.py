"""``python -m model.receipt keep RUN NAME``: keep a training run's files under ``receipts/train/NAME`` with digests.

``check`` compares every kept run with its digests, its summary with its records, and ``docs/benchmarks.md`` with all of
them. ``table`` prints that page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.reports import benchmarks
from model.reports.kept import KEPT, faults, keep
from reproducers.base.cli import guarded
from reproducers.base.errors import PatchlaneError, from_git
from reproducers.record.schema import ROOT

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command("keep")
def keep_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    name: Annotated[str, typer.Argument(help="e.g. 1xh200_quarter_20261121")],
) -> None:
    """Keep a run's records, pictures, profile and coverage."""
    print(keep(run, name).relative_to(ROOT))


@app.command()
def check() -> None:
    """Fail if a kept run differs from its receipt, or the page of figures from what the kept runs give."""
    if rows := faults():
        raise PatchlaneError("\n".join(rows), from_git("receipts/train"))
    path = ROOT / "docs" / "benchmarks.md"
    if not path.is_file() or path.read_text(errors="replace") != benchmarks.page(KEPT):
        raise PatchlaneError(f"docs/{path.name} is not what the kept runs give", benchmarks.COMMAND)
    print("training receipts: clean")


@app.command()
def table() -> None:
    """Print docs/benchmarks.md: a row of figures for every kept run."""
    print(benchmarks.page(KEPT), end="")


if __name__ == "__main__":
    guarded(app)
