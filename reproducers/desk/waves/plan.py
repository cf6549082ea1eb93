"""Which packs are filed in which wave, and why each is in or out: a pure function of records, manifest and date.

A wave is led by the first ready pack in order (class, then number) and filled from that pack's repository, but not so
far that exactly one would be left of it. Where nothing else of that repository can go, the wave is shared: with packs
that are the last of their repository, up to the wave's size, or, where there is none, with the next pack in order. So a
wave of one is only ever the last.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reproducers.desk.blockers import Blocker, blockers
from reproducers.desk.waves.classes import WaveClass
from reproducers.desk.waves.dates import Filed, first_day, last_filing, next_day
from reproducers.desk.waves.order import Order, dependencies, waits
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack

Entries = Mapping[str, Entry]


@dataclass(frozen=True)
class Wave:
    """Packs to be filed on one day, in this order; ``why`` is about the day."""

    number: int
    date: datetime.date
    why: str
    packs: tuple[Pack, ...]

    @property
    def repositories(self) -> list[str]:
        return sorted({pack.upstream.repo for pack in self.packs})


@dataclass(frozen=True)
class Explanation:
    """Why a pack is in its wave (``wave``: its number) or in none, with every blocker.

    ``by_then``: what is fine on the day asked and no longer on the wave's day.
    """

    pack: Pack
    kind: WaveClass
    wave: int | None
    why: str
    blockers: tuple[Blocker, ...] = ()
    by_then: tuple[Blocker, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Every wave until all ready packs are placed, and one explanation a pack, by number."""

    asked: datetime.date
    size: int
    gap: int
    filed: Filed | None
    waves: tuple[Wave, ...]
    explanations: tuple[Explanation, ...]


def propose(
    packs: Sequence[Pack],
    entries: Entries,
    classes: Mapping[str, WaveClass],
    today: datetime.date,
    size: int = 3,
    gap: int = 2,
) -> Plan:
    """The waves from ``today`` on; ``entries`` are the manifest's and ``classes`` wave_class's, by pack id.

    ``size`` is the most packs in a wave, ``gap`` the days between two waves.
    """
    own = {pack.number: blockers(pack, entries[pack.id], today) for pack in packs}
    blocked = waits(packs, own)
    ready = [pack for pack in packs if not blocked[pack.number]]
    filed = last_filing(packs)
    waves: list[Wave] = []
    for chosen in Order(ready, classes).waves(size):
        last = waves[-1] if waves else None
        day, why = next_day(last.date, last.number, gap) if last else first_day(filed, today, gap)
        waves.append(Wave(len(waves) + 1, day, why, tuple(chosen)))
    placed = {pack.number: wave for wave in waves for pack in wave.packs}
    explained = []
    for pack in sorted(packs, key=lambda pack: pack.number):
        kind, found, wave = classes[pack.id], blocked[pack.number], placed.get(pack.number)
        if wave is None:
            explained.append(Explanation(pack, kind, None, "; ".join(b.what for b in found), tuple(found)))
        else:
            late = tuple(blockers(pack, entries[pack.id], wave.date))
            explained.append(Explanation(pack, kind, wave.number, _why(pack, kind, wave, waves, size), by_then=late))
    return Plan(today, size, gap, filed, tuple(waves), tuple(explained))


def _why(pack: Pack, kind: WaveClass, wave: Wave, waves: Sequence[Wave], size: int) -> str:
    why = f"{kind}, {pack.upstream.repo}, {wave.date}: {_place(pack, wave, len(waves))}"
    return why if wave.number == 1 else f"{why}; {_not_next(pack, waves, size)}"


def _place(pack: Pack, wave: Wave, waves: int) -> str:
    lead = wave.packs[0]
    if len(wave.packs) == 1:
        return "alone, for nothing else is " + ("left" if waves > 1 else "ready")
    if pack is lead:
        return "first in order" if wave.number == 1 else "first in order of what is left"
    if pack.upstream.repo == lead.upstream.repo:
        return f"with {lead.id}, same repository"
    return f"with {lead.id}, which has no second pack of its repository to go with"


def _not_next(pack: Pack, waves: Sequence[Wave], size: int) -> str:
    """Why a pack of a later wave is not in the next one."""
    after = dependencies(pack)
    for wave in waves[1:]:
        for other in wave.packs:
            if other.number in after:
                return f"waits for {other.id}, in wave {wave.number}"
    first = waves[0].packs
    if pack.upstream.repo != first[0].upstream.repo:
        return f"wave 1 is for {first[0].upstream.repo}"
    return "wave 1 is full" if len(first) == size else f"wave 1 stops at {len(first)}, so that no pack is left alone"
