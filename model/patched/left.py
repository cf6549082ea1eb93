"""The known bugs of a run's stack that its patches do not mend, and why that is fine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from model.patched import overlay as overlays
from model.patched.overlay import Overlay
from patchlane.known import data
from patchlane.known.index import KnownPack
from reproducers.record import schema

OPTION = "--patches leaves it out"
NO_WHY = "nobody said why that is fine"


class Left(NamedTuple):
    """A pack whose bug the stack's code has and no patch of the run mends; ``harm``: what it does to a run, as a word;
    ``why``: why that is fine, or ``NO_WHY``."""

    pack: str
    harm: str
    why: str


def left(overlay: Overlay) -> list[Left]:
    """The bugs that receipts show in the stack's releases and commits, by number, but for those that the run patches.

    Raises PatchlaneError for an index of the audit that cannot be read.
    """
    applied = {one.pack.id for one in overlay.packs}
    buggy = {name: pack for name, pack in data.known().packs.items() if name not in applied and _buggy(pack, overlay)}
    mended = {pack.id for pack in overlays.candidates(schema.load_named([*buggy]), overlay.stack)}
    return [Left(name, pack.harm or "", _why(name, overlay, mended)) for name, pack in buggy.items()]


def told(found: Iterable[Left]) -> str:
    """All of them in a line, those of one reason together."""
    by_why = itertools.groupby(sorted(found, key=lambda one: (one.why, one.pack)), key=lambda one: one.why)
    rows = [f"{', '.join(_named(one) for one in group)}: {why}" for why, group in by_why]
    return (
        f"known bugs of the stack without a patch: {'; '.join(rows)}" if rows else "no known bug of the stack is left"
    )


def _named(one: Left) -> str:
    return f"{one.pack} ({one.harm})" if one.harm else one.pack


def _buggy(pack: KnownPack, overlay: Overlay) -> bool:
    """Whether receipts show the bug in a tree whose code the run imports, beside releases that the run imports too."""
    code = {name: pin.origin.key for name, pin in overlay.stack.code.items()}
    code |= {tree.origin.distribution: tree.origin.release or "" for tree in overlay.needs if tree.origin.distribution}
    key = code.get(pack.distribution)
    own = [tree for tree in pack.trees if key and key in (tree.name, tree.release)]
    return any(
        tree.state == "buggy" and all(code.get(name) == release for name, release in tree.beside.items())
        for tree in own
    )


def _why(pack: str, overlay: Overlay, mended: set[str]) -> str:
    return OPTION if pack in mended else overlay.stack.unpatched.get(int(pack.removeprefix("pack")), NO_WHY)
