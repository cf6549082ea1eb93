"""Drop each hunk of a patch in turn, then try each mutant: checks must need all hunks, catch all mutants."""

from __future__ import annotations

from typing import Annotated

import typer

from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.wording import count
from reproducers.base.verdicts import Verdict
from reproducers.record.schema import load_named, load_packs
from reproducers.studies.mutation.ablation import ablations, attempt
from reproducers.studies.mutation.candidates import by_hand
from reproducers.studies.mutation.trying import outcome, pinned_tree, prepare
from reproducers.trial.experiment import Request

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)


@app.command()
def main(
    packs: Annotated[list[str] | None, typer.Argument(help="packs, as pack05")] = None,
    every: Annotated[bool, typer.Option("--all", help="every pack that has a patch and the lane")] = False,
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use (default: the lane's timeout_s)")
    ] = None,
) -> None:
    """Exit 1 if the verdict stays REPRODUCED_AND_FIXED without a hunk, or no check catches a mutant."""
    spare = missed = 0
    named = [p for p in load_packs() if p.patch.is_file() and lane in p.lanes] if every else load_named(packs or [])
    if not named:
        raise PatchlaneError("no pack named", "python -m reproducers.ablate pack09, or --all")
    for pack in named:
        if not pack.patch.is_file():
            raise PatchlaneError(f"{pack.id} has no patch to ablate", "python -m reproducers.run --list")
        request = Request(lane=lane, timeout_s=timeout)
        for name, text in ablations(pack):
            ruling = attempt(pack, text, request).ruling
            spare += ruling.verdict is Verdict.REPRODUCED_AND_FIXED
            typer.echo(f"{pack.id} without {name}: {ruling.verdict.value}: {ruling.reason[:100]}")
        written = [*by_hand(pack, pinned_tree(pack))] if lane == "cpu" else []
        ground = prepare(pack, request) if written else None
        for mutant, candidate in written:
            assert ground is not None
            tried = outcome(ground, candidate)
            caught = mutant.catching(tried.caught_by)
            missed += not caught
            result = f"caught by {', '.join(caught)}" if caught else f"not caught by {mutant.caught_by}"
            typer.echo(f"{pack.id} with {candidate.name}: {tried.verdict.value}: {result}")
    typer.echo(f"{count(spare, 'hunk')} not needed, {count(missed, 'mutant')} not caught")
    raise typer.Exit(Exit.CONTRADICTED if spare or missed else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
