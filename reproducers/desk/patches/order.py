"""Which packs' patches make up a series at a pin, why others are left out, and the order in which they apply."""

from __future__ import annotations

import graphlib
from dataclasses import dataclass, field
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from reproducers.desk.patches.header import header
from reproducers.record.entry import Entry
from reproducers.record.schema import Pack, Pin


@dataclass(frozen=True)
class Member:
    """A pack in a series, at one of its pins."""

    pack: Pack
    name: str

    @property
    def pin(self) -> Pin:
        return self.pack.pins[self.name]

    @property
    def patch(self) -> Path:
        """The committed patch; every pack in a series has one."""
        return self.pack.patch_at(self.name) or self.pack.patch

    @property
    def tree(self) -> tuple[str, str]:
        """(distribution, release or SHA); members of the same tree make up a series."""
        return self.pack.upstream.distribution, self.pin.release or str(self.pin.sha)[:12]


@dataclass(frozen=True)
class Choice:
    """Members by tree, each list in the order to apply, and ``{pack id: reason}`` of the packs left out.

    ``refused``: those of them that were named.
    """

    series: dict[tuple[str, str], list[Member]]
    left_out: dict[str, str]
    refused: dict[str, PatchlaneError] = field(default_factory=dict)


def choose(packs: list[Pack], named: list[Pack], pin: str, entries: dict[str, Entry], receipts: Path) -> Choice:
    """The series at ``pin`` of the packs ``named``, or of all; ``entries`` are the manifest's.

    Raises PatchlaneError if no pack can be in a series.
    """
    members, left_out, refused = list[Member](), dict[str, str](), dict[str, PatchlaneError]()
    for pack in named or packs:
        why = _unfit(pack, pin, entries[pack.id], receipts)
        if why is None and pack.filing.decision == "hold" and not named:
            why = PatchlaneError(f"held: {pack.filing.reason}", f"name it: python -m reproducers.series {pack.id}")
        if why is None:
            members.append(Member(pack, pin))
        elif named:
            refused[pack.id] = PatchlaneError(f"cannot be in a series: {why.what}", why.remedy)
        else:
            left_out[pack.id] = " ".join(why.what.removeprefix(f"{pack.id} ").split())
    if not members and refused:
        raise next(iter(refused.values()))
    if not members:
        names = sorted({name for pack in packs for name in pack.pins})
        raise PatchlaneError(f"no pack has a validated patch at pin {pin!r}", f"--pin, one of: {', '.join(names)}")
    by_tree: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        by_tree.setdefault(member.tree, []).append(member)
    series = {tree: order(_completed(some, packs, entries, receipts)) for tree, some in sorted(by_tree.items())}
    inside = {member.pack.id for some in series.values() for member in some}
    return Choice(series, {name: why for name, why in left_out.items() if name not in inside}, refused)


def _unfit(pack: Pack, pin: str, entry: Entry, receipts: Path) -> PatchlaneError | None:
    """Why the pack has no validated patch at the pin; None if it has one."""
    if pin not in pack.pins:
        return PatchlaneError(f"{pack.id} has no pin named {pin}", f"--pin, one of: {', '.join(pack.pins)}")
    try:
        header(pack, pin, entry, receipts)
    except PatchlaneError as error:
        return error
    missing = entry.lanes_without_receipt if pin == "live" else []
    if missing:
        run = f"python -m reproducers.run {pack.id} --lane {missing[0]}"
        return PatchlaneError(f"{pack.id} is not validated, without a receipt of: {', '.join(missing)}", run)
    return None


def _completed(members: list[Member], packs: list[Pack], entries: dict[str, Entry], receipts: Path) -> list[Member]:
    """The members and the packs beneath their pins, each at its own pin for the same tree."""
    completed = list(members)
    for member in completed:  # grows while it is read
        for number in member.pin.stacked_on:
            if number not in [other.pack.number for other in completed]:
                completed.append(_below(member, number, packs, entries, receipts))
    return completed


def _below(member: Member, number: int, packs: list[Pack], entries: dict[str, Entry], receipts: Path) -> Member:
    pack = next((pack for pack in packs if pack.number == number), None)
    for name, pin in pack.pins.items() if pack else ():
        if (pin.release, pin.sha, pin.stacked_on) == (member.pin.release, member.pin.sha, []):
            why = _unfit(pack, name, entries[pack.id], receipts) if pack else None
            if pack and why is None:
                return Member(pack, name)
    what = f"{member.pack.id} at pin {member.name} is stacked on pack{number:02d}, which has no validated patch there"
    raise PatchlaneError(
        what, f"python -m reproducers.run pack{number:02d}, then python -m reproducers.manifest refresh"
    )


def order(members: list[Member]) -> list[Member]:
    """By number, but each after the packs that it is stacked on or is to be filed after; PatchlaneError for a cycle."""
    by_number = {member.pack.number: member for member in members}
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for number, member in by_number.items():
        sorter.add(number, *(n for n in _before(member) if n in by_number))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        ring = " before ".join(f"pack{number:02d}" for number in error.args[1])
        raise PatchlaneError(f"no order: {ring}", "correct filing.after or stacked_on in their pack.yaml") from error
    ready, done = list[int](), list[Member]()
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        number = ready.pop(0)
        done.append(by_number[number])
        sorter.done(number)
    return done


def _before(member: Member) -> set[int]:
    """Numbers of the packs that come before it: by ``filing.after``, and by any pin of the same tree."""
    pins = [p for p in member.pack.pins.values() if (p.release, p.sha) == (member.pin.release, member.pin.sha)]
    return {*member.pack.filing.after, *(number for pin in pins for number in pin.stacked_on)}
