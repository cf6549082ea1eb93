"""Waves as an iCalendar file: one all-day event a pack, the same bytes for the same plan."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from reproducers.base.errors import PatchlaneError
from reproducers.desk.waves.plan import Plan, Wave

if TYPE_CHECKING:
    from icalendar import Event

    from reproducers.record.schema import Pack


def calendar(plan: Plan, waves: Sequence[Wave]) -> bytes:
    """The file's content. An event's UID is of its pack, its DTSTAMP of the day asked: a re-import moves it.

    PatchlaneError when the icalendar library is not installed.
    """
    try:
        from icalendar import Calendar
    except ImportError as error:
        raise PatchlaneError("--ics needs the icalendar library", "pip install -e '.[desk]'") from error
    found = Calendar()
    found.add("prodid", "-//patchlane//waves//EN")
    found.add("version", "2.0")
    for wave in waves:
        for pack in wave.packs:
            found.add_component(_event(pack, wave, plan.asked))
    return bytes(found.to_ical())


def _event(pack: Pack, wave: Wave, asked: datetime.date) -> Event:
    from icalendar import Event

    event = Event()
    event.add("uid", f"{pack.id}@patchlane")  # a pack whose day moved is the same event
    event.add("dtstamp", datetime.datetime.combine(asked, datetime.time(), datetime.UTC))
    event.add("dtstart", wave.date)
    event.add("dtend", wave.date + datetime.timedelta(days=1))
    event.add("transp", "TRANSPARENT")
    event.add("summary", f"File {pack.id}: {pack.title}")
    event.add("description", _description(pack, wave))
    return event


def _description(pack: Pack, wave: Wave) -> str:
    others = [f"{other.id}: {other.title}" for other in wave.packs if other is not pack]
    return "\n".join(
        [
            f"{pack.id}: {pack.title}",
            f"{pack.upstream.repo}, as {pack.filing.decision}",
            f"python -m reproducers.preflight {pack.id}",
            *([f"Wave {wave.number}, with:", *others] if others else [f"Wave {wave.number}, alone"]),
        ]
    )
