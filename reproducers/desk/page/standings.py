"""What receipts say of each release of an upstream: an answer a pack and release, as one table an upstream."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.version import Version

from reproducers.base.verdicts import BROKEN, HEALTHY, Verdict
from reproducers.record.entry import Entry
from reproducers.record.receipt import Details
from reproducers.record.schema import Pack, Releases

RELEASE = re.compile(r"\d+(\.\w+)+")
COMMIT = re.compile(r"([0-9a-f]{40})(?: \(built\))?")
BUGGY = (*BROKEN, Verdict.FIX_INEFFECTIVE, Verdict.FIX_REGRESSES)


class Answer(NamedTuple):
    """A word, the mark that stands for it in a table, and its meaning."""

    mark: str
    meaning: str


ANSWERS = {
    "bug": Answer("✗", "a receipt shows the bug in this release"),
    "fixed": Answer("✓", "a receipt shows no bug, and an older release has it"),
    "healthy": Answer("○", "a receipt shows no bug, and no older release has it"),
    "unknown": Answer("?", "it was tried and says neither: mostly a release without the code in question"),
    "not measured": Answer("·", "no receipt is of this release"),
}


@dataclass(frozen=True)
class Told:
    """One pack in its receipts' words. ``answers``: {release: a word of ``ANSWERS``}, oldest first.

    ``commits``: {full SHA: a word}. ``shown``, ``changed``: when the first receipt showed what a pack owes, and when
    the newest was taken, as RFC 3339 has times; "" without one.
    """

    pack: Pack
    entry: Entry
    answers: dict[str, str]
    commits: dict[str, str]
    shown: str
    changed: str


class Matrix(NamedTuple):
    """One upstream's releases, newest first, and its packs that name a bug."""

    distribution: str
    releases: list[str]
    packs: list[Told]


def told(pack: Pack, entry: Entry, history: Iterable[Details]) -> Told:
    """What a pack's receipts tell; ``history``: their bodies, in any order."""
    owed = Verdict.REPRODUCED_AND_FIXED if pack.patch.is_file() else Verdict.REPRODUCED
    rows = [(body.started, body.verdict) for body in history]
    shown = [started for started, verdict in rows if verdict == owed]
    commits = {found[1]: verdict for name, verdict in entry.tried.items() if (found := COMMIT.fullmatch(name))}
    return Told(
        pack=pack,
        entry=entry,
        answers=answers(entry.tried),
        commits={sha: _word(verdict) for sha, verdict in commits.items()},
        shown=min(shown, default=""),
        changed=max((started for started, _ in rows), default=""),
    )


def answers(tried: Mapping[str, Verdict]) -> dict[str, str]:
    """{release: its word} of the releases among the trees that were tried as published, oldest first."""
    found, seen = dict[str, str](), False
    for name in sorted((name for name in tried if RELEASE.fullmatch(name)), key=Version):
        word = _word(tried[name])
        found[name] = "fixed" if word == "healthy" and seen else word
        seen = seen or word == "bug"
    return found


def _word(verdict: Verdict) -> str:
    return "bug" if verdict in BUGGY else "healthy" if verdict in HEALTHY else "unknown"


def matrices(packs: list[Told], releases: Releases) -> list[Matrix]:
    """A matrix for each upstream that has a pack with a bug, by name; a release is in it that is known or was tried.

    ``releases``: those of releases.yaml.
    """
    found = []
    for name in sorted({one.pack.upstream.distribution for one in packs if one.pack.names_bug}):
        own = [one for one in packs if one.pack.names_bug and one.pack.upstream.distribution == name]
        known = {*releases.get(name, {}), *(release for one in own for release in one.answers)}
        found.append(Matrix(name, sorted(known, key=Version, reverse=True), own))
    return found
