"""Proposes which packs are filed together and on which day, and tells of every pack why it is in or out.

The first ready pack, by class and then number, leads a wave. Packs of its repository fill the wave, one fewer where
exactly one would be left over. Where no second pack of its repository can go, one pack of another repository joins it:
the first with a repository of its own, or else the next in order. So only the last wave can hold a single pack.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproducers.desk.blockers import Blocker, blockers
from reproducers.desk.waves.classes import CLASSES, WaveClass, bug_checks, wave_class
from reproducers.evidence import manifest
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack, load_packs

SATURDAY, DAY = 5, datetime.timedelta(days=1)


@dataclass(frozen=True)
class Wave:
    """Packs to be filed on one day, in this order. ``number`` counts from 1."""

    number: int
    date: datetime.date
    packs: tuple[Pack, ...]


@dataclass(frozen=True)
class Explanation:
    """Why a pack is in the wave of that number, or in none (``wave`` is None) because of ``blockers``."""

    pack: Pack
    kind: WaveClass
    wave: int | None
    why: str
    blockers: tuple[Blocker, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """Waves until all ready packs are placed, and one explanation a pack, by number.

    ``last_filed``: the newest ``filed_on`` of any pack, None when nothing was filed.
    """

    asked: datetime.date
    size: int
    gap: int
    last_filed: datetime.date | None
    waves: tuple[Wave, ...]
    explanations: tuple[Explanation, ...]


def proposal_of(root: Path, today: datetime.date, size: int, gap: int) -> Proposal:
    """``propose`` for the project in folder ``root``; builds the manifest from its packs and receipts."""
    packs, receipts = load_packs(root / "packs"), root / "receipts"
    entries = manifest.build(packs, receipts)
    classes = {pack.id: wave_class(pack, bug_checks(entries[pack.id], receipts)) for pack in packs}
    return propose(packs, entries, classes, today, size, gap)


def propose(
    packs: Iterable[Pack],
    entries: Mapping[str, Entry],
    classes: Mapping[str, WaveClass],
    today: datetime.date,
    size: int = 3,
    gap: int = 2,
) -> Proposal:
    """The waves from ``today`` on, none on a Saturday or Sunday. ``entries`` and ``classes`` are by pack id.

    ``size`` is the most packs in a wave, ``gap`` the least days between two waves, and after the last filing.
    """
    packs = sorted(packs, key=lambda pack: pack.number)
    barred = _barred(packs, entries, today)
    ready = [pack for pack in packs if not barred[pack.number]]
    ready.sort(key=lambda pack: CLASSES.index(classes[pack.id]))
    last = max((day for pack in packs if (day := pack.upstream_state.filed_on)), default=None)
    day = max(today, last + gap * DAY) if last else today
    waves: list[Wave] = []
    for number, group in enumerate(_groups(ready, size), 1):
        while day.weekday() >= SATURDAY:
            day += DAY
        waves.append(Wave(number, day, tuple(group)))
        day += gap * DAY
    placed = {pack.number: wave for wave in waves for pack in wave.packs}
    explanations = []
    for pack in packs:
        kind, wave, reasons = classes[pack.id], placed.get(pack.number), barred[pack.number]
        why = _why(pack, kind, wave) if wave else "; ".join(blocker.what for blocker in reasons)
        explanations.append(Explanation(pack, kind, wave.number if wave else None, why, tuple(reasons)))
    return Proposal(today, size, gap, last, tuple(waves), tuple(explanations))


def dependencies(pack: Pack) -> dict[int, str]:
    """{number: the field of pack.yaml that names it} of the packs that must be filed before this one."""
    stacked = {number: f"pins.{name}.stacked_on" for name, pin in pack.pins.items() for number in pin.stacked_on}
    return stacked | {number: "filing.after" for number in pack.filing.after}


def _barred(packs: Sequence[Pack], entries: Mapping[str, Entry], today: datetime.date) -> dict[int, list[Blocker]]:
    """{number: the pack's own blockers, and one for each pack that it waits for and that is out itself}.

    Packs that wait for each other never become ready, so they are out.
    """
    barred = {pack.number: blockers(pack, entries[pack.id], today) for pack in packs}
    done = {pack.number for pack in packs if pack.upstream_state.filed_url}  # and, below, what becomes ready
    able = [pack for pack in packs if not barred[pack.number]]
    while more := {p.number for p in able if dependencies(p).keys() <= done} - done:
        done |= more
    known = {pack.number for pack in packs}
    for pack in packs:
        if not {blocker.rule for blocker in barred[pack.number]} & {"filed", "decision"}:
            barred[pack.number] += [_waits(pack, n, n in known) for n in sorted(dependencies(pack).keys() - done)]
    return barred


def _waits(pack: Pack, number: int, exists: bool) -> Blocker:
    other = f"pack{number:02d}"
    drop = f"drop {other} from packs/{pack.folder.name}/pack.yaml, {dependencies(pack)[number]}"
    if not exists:
        return Blocker("dependency", f"waits for {other}, and there is no such pack", drop)
    return Blocker("dependency", f"waits for {other}, which is out itself", f"do what {other} needs, or {drop}")


def _groups(ready: Iterable[Pack], size: int) -> Iterator[list[Pack]]:
    """The packs, given in order, as groups of up to ``size``; the module's docstring has the rule."""
    left = list(ready)
    while left:
        count = Counter(pack.upstream.repo for pack in left)
        repo = _free(left)[0].upstream.repo
        room = size - 1 if count[repo] == size + 1 and size > 2 else size
        group: list[Pack] = []
        while len(group) < room and (same := [pack for pack in _free(left) if pack.upstream.repo == repo]):
            group.append(same[0])
            left.remove(same[0])
        if len(group) == 1 and left:
            group.append(min(_free(left), key=lambda pack: count[pack.upstream.repo] > 1))
            left.remove(group[1])
        yield group


def _free(left: Sequence[Pack]) -> list[Pack]:
    """Packs that wait for no other of ``left``."""
    waiting = {pack.number for pack in left}
    return [pack for pack in left if not dependencies(pack).keys() & waiting]


def _why(pack: Pack, kind: WaveClass, wave: Wave) -> str:
    lead = wave.packs[0]
    if pack is not lead:
        place = f"with {lead.id}, {'same' if pack.upstream.repo == lead.upstream.repo else 'another'} repository"
    elif len(wave.packs) > 1:
        place = "first in order" if wave.number == 1 else "first in order of what is left"
    else:
        place = "alone, for no other pack is left"
    before = "".join(f"; after pack{number:02d}" for number in sorted(dependencies(pack)))
    return f"{kind}, {pack.upstream.repo}, {wave.date}: {place}{before}"
