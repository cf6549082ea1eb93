"""On which days waves are filed: some days after the last filing, never on a Saturday or Sunday."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from reproducers.record.schema import Pack

SATURDAY = 5


@dataclass(frozen=True)
class Filed:
    """The last filing: its day and the packs filed on it."""

    date: datetime.date
    packs: tuple[str, ...]


def last_filing(packs: Iterable[Pack]) -> Filed | None:
    """The newest ``filed_on`` over all packs, None when nothing was filed."""
    days = {pack.id: day for pack in packs if (day := pack.upstream_state.filed_on) is not None}
    if not days:
        return None
    last = max(days.values())
    return Filed(last, tuple(sorted(name for name, day in days.items() if day == last)))


def first_day(last: Filed | None, asked: datetime.date, gap: int) -> tuple[datetime.date, str]:
    """(the next wave's day, why): the day asked, or ``gap`` days after the last filing where that is later."""
    if last is None:
        return _weekday(asked, "the day asked, nothing was filed yet")
    said = f"{', '.join(last.packs)} filed on {last.date}"
    earliest = last.date + datetime.timedelta(days=gap)
    if earliest <= asked:
        return _weekday(asked, f"the day asked, {said}")
    return _weekday(earliest, f"{gap} days after {said}")


def next_day(previous: datetime.date, number: int, gap: int) -> tuple[datetime.date, str]:
    """(the following wave's day, why); ``previous`` is the day of wave ``number``."""
    return _weekday(previous + datetime.timedelta(days=gap), f"{gap} days after wave {number}")


def _weekday(day: datetime.date, why: str) -> tuple[datetime.date, str]:
    if day.weekday() < SATURDAY:
        return day, why
    monday = day + datetime.timedelta(days=7 - day.weekday())
    return monday, f"{why}; moved to Monday, for {day} is a {day:%A}"
