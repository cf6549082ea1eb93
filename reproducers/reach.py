"""Say which lines of the functions that a patch changes no check runs. ``python -m reproducers.reach pack35``.

A fix that is wrong there passes: a check that runs the line, or a reason why none can, is owed by the pack's author.
"""

from __future__ import annotations

from typing import Annotated

import typer

from patchlane.base.exits import Exit
from reproducers.record import choice

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    packs: Annotated[list[str], typer.Argument(help="pack05, 05 or 5")],
    at: Annotated[str, typer.Option(help="a pin of the pack")] = "live",
    lane: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    timeout: Annotated[
        float | None, typer.Option(min=1, help="processor seconds an arm may use, for the lane's timeout_s")
    ] = None,
) -> None:
    """Exit 77 when a pack could not be run here."""
    chosen = choice.chosen(packs, False, lane, "patched")
    from patchlane.base.errors import CannotTestHere
    from patchlane.base.wording import count
    from reproducers.host import cores
    from reproducers.studies import reach
    from reproducers.trial import screen
    from reproducers.trial.experiment import Request
    from reproducers.upstream.store import Store

    out = screen.console(as_json=False)
    store, untested = Store(progress=screen.Announcer(out)), 0
    for pack in chosen:
        request = Request(at=at, lane=lane, timeout_s=timeout, threads=cores.threads(1))
        try:
            made = reach.measure(pack, request, store, lambda arm, line: None)
        except CannotTestHere as error:
            untested += 1
            out.print(f"{error}", highlight=False, markup=False, soft_wrap=True)
            continue
        functions = count(len(made.unrun), "changed function")
        said = f"{pack.id} {lane}: {made.ran} of {made.all} statements of {functions} ran"
        out.print(said, highlight=False, markup=False, soft_wrap=True)
        for line in reach.lines(made):
            out.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(Exit.CANNOT_TEST if untested else Exit.OK)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
