"""Propose the next wave: which packs to file, on which day, and why each
pack is in or out.

A wave is two to four packs of one repository, filed on one day, two or three
days after the last filing (the newest filed_on of any pack) and never on a
Saturday or Sunday. Crash fixes go first, then comments, other fixes,
refactors, and reports without a fix; receipts decide what a crash is. A pack
never goes before one that its pack.yaml names under filing.after or
stacked_on. A pack shares a wave with one of another repository only where no
second pack of its own can go; only the last wave can hold a single pack.

It reads and prints; a person files. The first filed_on that is recorded moves
all that is left to a later day: keep the proposal (--json), and record
filed_on when the whole wave is out.
"""

from __future__ import annotations

from typing import Annotated

import typer

from patchlane.base.clock import day_of
from patchlane.base.clock import today as utc_today
from patchlane.base.errors import PatchlaneError
from reproducers.desk.waves.printing import as_json, as_lines
from reproducers.desk.waves.proposal import proposal_of
from reproducers.record.schema import ROOT

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    everything: Annotated[bool, typer.Option("--all", help="every wave until all ready packs are placed")] = False,
    date: Annotated[str | None, typer.Option(metavar="DAY", help="the day to plan from, UTC (default: today)")] = None,
    size: Annotated[int, typer.Option(min=2, max=4, help="most packs in a wave")] = 3,
    gap: Annotated[int, typer.Option(min=2, max=3, help="days between two waves")] = 2,
    json_out: Annotated[bool, typer.Option("--json", help="the proposal as JSON on stdout")] = False,
) -> None:
    """Print the next wave, or all; PatchlaneError for a day that is no date or at the edge of the calendar."""
    today = day_of(date) or utc_today()
    try:
        proposal = proposal_of(ROOT, today, size, gap)
    except OverflowError as error:
        raise PatchlaneError(f"--date {today} is at the edge of the calendar", "name a day near today") from error
    waves = proposal.waves if everything else proposal.waves[:1]
    typer.echo(as_json(proposal, waves) if json_out else "\n".join(as_lines(proposal, waves)))


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
