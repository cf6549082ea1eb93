"""Keep a training run's files under ``receipts/train/NAME`` with digests: ``python -m model.receipt keep RUN NAME``.

``check`` compares every kept run with its digests, its summary with its records, and both pages with all of them.
``table`` prints all runs as the page ``docs/benchmarks.md``; ``plan`` predictions beside them, and the plan for more
GPUs, as ``docs/plan.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.plans import page
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
    """Fail if a kept run differs from its receipt, or a page of figures from what the kept runs give."""
    if rows := faults():
        raise PatchlaneError("\n".join(rows), from_git("receipts/train"))
    pages = {benchmarks.COMMAND: ("benchmarks.md", benchmarks.page), page.COMMAND: ("plan.md", page.page)}
    for command, (name, made) in pages.items():
        path = ROOT / "docs" / name
        if not path.is_file() or path.read_text(errors="replace") != made(KEPT):
            raise PatchlaneError(f"docs/{name} is not what the kept runs give", command)
    print("training receipts: clean")


@app.command()
def table() -> None:
    """Print docs/benchmarks.md: a row of figures for every kept run."""
    print(benchmarks.page(KEPT), end="")


@app.command()
def plan() -> None:
    """Print docs/plan.md: steps predicted from one kept run, beside those of the others, and for 8 to 512 GPUs."""
    print(page.page(KEPT), end="")


if __name__ == "__main__":
    guarded(app)
