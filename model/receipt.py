"""Keep a training run's files under ``receipts/train/NAME`` with digests: ``python -m model.receipt keep RUN NAME``.

``check`` compares every kept run with its digests, its summary with its records, and ``docs/benchmarks.md`` with all of
them. ``table`` prints that page; ``archive`` packs the files of older runs by xz.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from model.records.newest import KEPT
from model.reports import benchmarks
from model.reports.kept import faults, keep, unpacked
from patchlane.base.clock import today
from patchlane.base.errors import PatchlaneError, from_git
from patchlane.base.wording import count
from reproducers.base.cli import guarded
from reproducers.kept import xz
from reproducers.record.schema import ROOT

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command("keep")
def keep_command(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    name: Annotated[str, typer.Argument(help="e.g. 1xh200_quarter_lr2")],
) -> None:
    """Keep a run's records, profile and coverage."""
    print(keep(run, name).relative_to(ROOT))


@app.command()
def check() -> None:
    """Fail if a kept run differs from its receipt, or the page of figures from what the kept runs give."""
    _whole()
    path = ROOT / "docs" / "benchmarks.md"
    if not path.is_file() or path.read_text(errors="replace") != benchmarks.page(KEPT):
        raise PatchlaneError(f"docs/{path.name} is not what the kept runs give", benchmarks.COMMAND)
    print("training receipts: clean")


@app.command()
def archive(
    days: Annotated[int, typer.Option(min=0, help="of runs that ended so many days ago or earlier")] = 14,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would be packed")] = False,
) -> None:
    """Pack the files of older kept runs, but for receipts, by xz; every reader reads them like open ones."""
    paths = unpacked(today() - datetime.timedelta(days=days))
    sizes = [path.stat().st_size for path in paths]
    for path in paths if dry_run else ():
        print(path.relative_to(KEPT))
    for path in () if dry_run else paths:
        xz.pack(path)
    left = 0 if dry_run else sum(xz.place(path).stat().st_size for path in paths)
    print(f"{count(len(paths), 'file')} of {sum(sizes):,} bytes" + ("" if dry_run else f" packed to {left:,}"))


@app.command()
def table() -> None:
    """Print docs/benchmarks.md: a row of figures for every kept run. Fail if one differs from its receipt."""
    _whole()
    print(benchmarks.page(KEPT), end="")


def _whole() -> None:
    if rows := faults():
        raise PatchlaneError("\n".join(rows), from_git("receipts/train"))


if __name__ == "__main__":
    guarded(app)
