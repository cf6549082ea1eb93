"""Hunk ablation: drop each hunk of a patch in turn; every one must be needed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from reproducers.base.errors import PatchlaneError
from reproducers.base.verdicts import Exit, Verdict
from reproducers.base.wording import count
from reproducers.record.schema import load_named, load_packs
from reproducers.trial.ablation import ablations, with_patch
from reproducers.trial.experiment import Request, execute
from reproducers.upstream.store import Store

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="packs, as pack05")] = None,
    every: Annotated[bool, typer.Option("--all", help="every pack that has a patch and the lane")] = False,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
) -> None:
    """Exit 1 when a hunk can be dropped and the verdict stays REPRODUCED_AND_FIXED."""
    spare = 0
    named = [p for p in load_packs() if p.patch.is_file() and lane in p.lanes] if every else load_named(packs or [])
    if not named:
        raise PatchlaneError("no pack named", "python -m reproducers.ablate pack09, or --all")
    for pack in named:
        if not pack.patch.is_file():
            raise PatchlaneError(f"{pack.id} has no patch to ablate", "python -m reproducers.run --list")
        for name, text in ablations(pack):
            with tempfile.TemporaryDirectory() as scratch:
                changed = with_patch(pack, text, Path(scratch))
                run = execute(changed, Request(lane=lane, timeout_s=timeout), Store(), lambda arm, line: None)
            spare += run.ruling.verdict is Verdict.REPRODUCED_AND_FIXED
            typer.echo(f"{pack.id} without {name}: {run.ruling.verdict.value}: {run.ruling.reason[:100]}")
    typer.echo(f"{count(spare, 'hunk')} can be dropped without notice")
    raise typer.Exit(Exit.CONTRADICTED if spare else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
