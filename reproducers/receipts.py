"""One in-toto statement (Test Result v0.1) and one log a run, never overwritten, chained by digest.

``python -m reproducers.receipts verify [DIR]`` recomputes every digest, derives every verdict anew from the recorded
observations, compares each statement with its log, its place and its predecessor, and names what was changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproducers.base.errors import PatchlaneError
from reproducers.base.verdicts import Exit
from reproducers.base.wording import count
from reproducers.evidence.shelf import COMMITTED, every

app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def verify(root: Annotated[Path, typer.Argument(help="folder of receipts")] = COMMITTED) -> None:
    """Recompute every digest and verdict. Exit 1, naming each change, if a receipt was changed or there is none."""
    from reproducers.evidence.verification import verify_all
    from reproducers.studies.suites import keeping

    if not root.is_dir():
        raise PatchlaneError(f"{root} is not a folder", "python -m reproducers.run PACK writes build/receipts")
    faults, number = verify_all(root) | keeping.all_faults(root), len(every(root))
    for path, rows in faults.items():
        for row in rows:
            typer.echo(f"{path.relative_to(root)}: {row}")
    for row in keeping.broken(root):
        typer.echo(row)
    suites = f" and {count(len(kept), 'record')} of upstream's tests" if (kept := keeping.every(root)) else ""
    typer.echo(f"{count(number, 'receipt')}{suites}, {len(faults)} faulty")
    if not number:
        typer.echo(f"{root} holds no receipts; python -m reproducers.run PACK --receipts {root} writes them", err=True)
    raise typer.Exit(Exit.CONTRADICTED if faults or not number else Exit.OK)


@app.callback()
def _main() -> None:
    """Receipts of runs."""


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
