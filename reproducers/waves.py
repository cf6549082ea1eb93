"""Propose the next wave: which packs to file, on which day, and why each
ready pack is in or out.

A wave is two to four packs of one repository, filed on one day, two or three
days after the last filing (the newest filed_on of any pack) and never on a
Saturday or Sunday. Crash fixes go first, then comments, other fixes,
refactors, and reports without a fix; what makes a crash is read from receipts.
A pack never goes before one that its pack.yaml names under filing.after or
stacked_on. Repositories share a wave only where the first pack has no second
one of its repository to go with; a wave of one is only ever the last.

It reads and prints; a person files. The first filed_on that is recorded moves
all that is left to the next day for a filing: keep the proposal (--ics,
--json), and record filed_on when the whole wave is out. A re-import of --ics
moves what has another day by then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproducers.base.clock import day_of
from reproducers.base.clock import today as utc_today
from reproducers.base.errors import PatchlaneError
from reproducers.desk.waves.proposal import as_json, plan_of, show, write_calendar
from reproducers.record.schema import ROOT

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    everything: Annotated[bool, typer.Option("--all", help="every wave until all ready packs are placed")] = False,
    date: Annotated[str | None, typer.Option(metavar="DAY", help="the day to plan from, UTC (default: today)")] = None,
    size: Annotated[int, typer.Option(min=2, max=4, help="most packs in a wave")] = 3,
    gap: Annotated[int, typer.Option(min=2, max=3, help="days between two waves")] = 2,
    json_out: Annotated[bool, typer.Option("--json", help="the plan as JSON on stdout")] = False,
    ics: Annotated[Path | None, typer.Option(help="write the waves shown to this iCalendar file")] = None,
) -> None:
    """Print the next wave, or all, and write the calendar asked for; PatchlaneError for a day or file of no use."""
    today = day_of(date) or utc_today()
    try:
        plan = plan_of(ROOT / "packs", ROOT / "receipts", today, size, gap)
    except OverflowError as error:
        raise PatchlaneError(f"--date {today} is at the edge of the calendar", "name a day near today") from error
    waves = plan.waves if everything else plan.waves[:1]
    if ics is not None:
        write_calendar(plan, waves, ics)
    if json_out:
        typer.echo(as_json(plan, waves))
    else:
        show(plan, waves)


if __name__ == "__main__":
    from reproducers.base.cli import guarded

    guarded(app)
