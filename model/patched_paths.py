"""Train through every validated patch: ``python -m model.patched_paths``, the runs of model/patched_paths.yaml.

Each patch that they apply is accounted for hunk by hunk: a run executed it, or its pack says why none can. The losses
of runs that name others ``alike`` are compared with these.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Annotated

import typer

from model.patched import runs
from model.patched.proof import accounted
from model.patched.runs import Plan
from model.patched.taking import Ended, Taking
from model.reports.compare import compare
from model.reports.kept import keep
from patchlane.base import disk
from patchlane.base.exits import Exit
from reproducers.base.cli import guarded
from reproducers.host import facts
from reproducers.record.schema import load_packs

app = typer.Typer(add_completion=False)


def _apart(plan: Plan, ended: set[str], out: Path) -> list[str]:
    """A line for each run whose losses differ more from those of its like than these do from each other."""
    wrong = []
    for name, run in plan.runs.items():
        if not run.alike or not ended >= {name, *run.alike}:
            continue
        off = max(compare(out / other, out / name, tolerance=1).worst_loss for other in run.alike)
        pairs = itertools.combinations(run.alike, 2)
        spread = max(compare(out / one, out / other, tolerance=1).worst_loss for one, other in pairs)
        like = ", ".join(run.alike)
        print(f"{name}: its losses differ by up to {off:.2e} from {like}, these by up to {spread:.2e}")
        if off > spread:
            wrong.append(f"{name}: its losses are further off")
    return wrong


def _why(how: Ended, run: Path) -> str:
    """Why a run failed or never began, and where its output is."""
    return how.why if how.code < 0 else f"{how.why or f'it failed with code {how.code}'}: {run}.log"


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Argument(help="of its runs, with those that they begin with")] = None,
    out: Annotated[Path, typer.Option(help="folder of the runs; one in it goes on where it ended")] = Path(
        "build/patched_paths"
    ),
    kept: Annotated[str | None, typer.Option("--keep", help="keep each run as receipts/train/NAME_RUN")] = None,
) -> None:
    """Take all runs that this host has GPUs for, side by side, and account for every hunk of their patches.

    Exit 1 if a run fails, losses are too far apart or, unless some runs alone are asked for, a hunk is unaccounted for.
    """
    plan = runs.read()
    plan = plan.only(only) if only else plan
    disk.usable_folder(out, "--out DIR, with a directory that can be written")
    ended = Taking(plan, out, facts.visible_gpus(), lambda line: print(line, file=sys.stderr, flush=True)).all()
    whole = [name for name, how in ended.items() if not how.code]
    wrong = [f"{name}: {_why(how, out / name)}" for name, how in ended.items() if how.code]
    account = accounted.of(load_packs(), out)
    print(f"{account.ran} hunks ran, {account.cannot} cannot and their packs say why, {len(account.rest)} are left")
    wrong += [*([] if only else account.rest), *_apart(plan, {*whole}, out)]
    for row in wrong:
        print(row)
    for name in whole if kept else ():
        print(keep(out / name, f"{kept}_{name}"))
    if wrong:
        raise typer.Exit(Exit.CONTRADICTED)


if __name__ == "__main__":
    guarded(app)
