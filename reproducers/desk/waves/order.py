"""Dependencies between packs, and how ready packs are grouped into waves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from reproducers.desk.blockers import Blocker
from reproducers.desk.waves.classes import CLASSES, WaveClass
from reproducers.record.schema import Pack

RULE = "dependency"


def dependencies(pack: Pack) -> dict[int, str]:
    """{number: the field of pack.yaml that says so} of the packs to be filed before this one."""
    stacked = {number: f"pins.{name}.stacked_on" for name, pin in pack.pins.items() for number in pin.stacked_on}
    return stacked | {number: "filing.after" for number in pack.filing.after}


def waits(packs: Sequence[Pack], own: Mapping[int, Sequence[Blocker]]) -> dict[int, list[Blocker]]:
    """``own`` blockers of each pack and those that its dependencies give it, by number.

    A filed dependency is met. One that is itself blocked blocks every pack after it, and so does a circle.
    """
    known = {pack.number: pack for pack in sorted(packs, key=lambda pack: pack.number)}
    unmet = {number: _unmet(pack, known) for number, pack in known.items()}
    found = {number: list(own[number]) for number in known}
    for circle in _circles(unmet):
        for number in circle:
            found[number].append(_circle(known[number], [known[other] for other in circle]))
    for number in _in_order(unmet, known):
        pack = known[number]
        for other in unmet[number]:
            if other not in known:
                found[number].append(_unknown(pack, other))
            elif found[other] and not {blocker.rule for blocker in own[number]} & {"filed", "decision"}:
                found[number].append(_blocked(pack, known[other]))
    return found


def _unmet(pack: Pack, known: Mapping[int, Pack]) -> list[int]:
    return [n for n in sorted(dependencies(pack)) if n not in known or not known[n].upstream_state.filed_url]


def _circles(unmet: dict[int, list[int]]) -> list[list[int]]:
    """Every circle, taken out of ``unmet``: its packs no longer depend on each other there."""
    circles: list[list[int]] = []
    while True:
        try:
            TopologicalSorter(unmet).prepare()
        except CycleError as error:
            circle = sorted(set(error.args[1]))
            circles.append(circle)
            for number in circle:
                unmet[number] = [other for other in unmet[number] if other not in circle]
        else:
            return circles


def _in_order(unmet: Mapping[int, list[int]], known: Mapping[int, Pack]) -> list[int]:
    """Packs after what they depend on."""
    return [number for number in TopologicalSorter(unmet).static_order() if number in known]


def _drop(pack: Pack, other: str, number: int) -> str:
    return f"drop {other} from packs/{pack.folder.name}/pack.yaml, {dependencies(pack)[number]}"


def _circle(pack: Pack, members: Sequence[Pack]) -> Blocker:
    names = ", ".join(member.id for member in members)
    said = f"{names} wait for each other" if len(members) > 1 else "waits for itself"
    number = next(member.number for member in members if member.number in dependencies(pack))
    return Blocker(RULE, said, _drop(pack, f"pack{number:02d}", number))


def _unknown(pack: Pack, number: int) -> Blocker:
    other = f"pack{number:02d}"
    return Blocker(RULE, f"waits for {other}, and there is no such pack", _drop(pack, other, number))


def _blocked(pack: Pack, other: Pack) -> Blocker:
    words = {"hold": f"is held: {other.filing.reason}", "none": f"is not to be filed: {other.filing.reason}"}
    said = words.get(other.filing.decision, "is not ready itself")
    remedy = f"do what {other.id} needs, or {_drop(pack, other.id, other.number)}"
    return Blocker(RULE, f"waits for {other.id}, which {said}", remedy)


class Order:
    """Groups packs, each of which depends on what is filed or among them, and hands them out wave by wave."""

    def __init__(self, ready: Iterable[Pack], classes: Mapping[str, WaveClass]) -> None:
        self.left = sorted(ready, key=lambda pack: (CLASSES.index(classes[pack.id]), pack.number))
        mine = {pack.number for pack in self.left}
        self.needs = {pack.number: mine & set(dependencies(pack)) for pack in self.left}

    def waves(self, size: int) -> Iterator[list[Pack]]:
        """Groups of up to ``size`` packs until none is left; only the last may be a single pack."""
        while self.left:
            yield self._wave(size)

    def _wave(self, size: int) -> list[Pack]:
        repo = self._free()[0].upstream.repo
        wave: list[Pack] = []
        for _ in range(self._room(repo, size)):
            self._take(wave, self._of(repo))
        shared = len(wave) == 1
        while shared and len(wave) < size:
            last = [pack for pack in self._free() if self._count(pack.upstream.repo) == 1]
            shared = self._take(wave, self._of(repo) or last or (self._free() if len(wave) == 1 else []))
        return wave

    def _room(self, repo: str, size: int) -> int:
        """How many of a repository go: one fewer than there is room for where exactly one would be left alone."""
        count = self._count(repo)
        return size - 1 if count == size + 1 and size > 2 else min(count, size)

    def _free(self) -> list[Pack]:
        waiting = {pack.number for pack in self.left}
        return [pack for pack in self.left if not self.needs[pack.number] & waiting]

    def _of(self, repo: str) -> list[Pack]:
        return [pack for pack in self._free() if pack.upstream.repo == repo]

    def _count(self, repo: str) -> int:
        return sum(pack.upstream.repo == repo for pack in self.left)

    def _take(self, wave: list[Pack], choice: Sequence[Pack]) -> bool:
        for pack in choice[:1]:
            self.left.remove(pack)
            wave.append(pack)
        return bool(choice)
