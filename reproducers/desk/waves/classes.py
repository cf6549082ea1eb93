"""In which order packs are filed: each pack's class, derived from its record and receipts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from reproducers.evidence.receipts import read
from reproducers.record.entry import Entry
from reproducers.record.receipt import Check
from reproducers.record.schema import Pack

WaveClass = Literal["crash fix", "comment", "fix", "refactor", "report"]
CLASSES: tuple[WaveClass, ...] = get_args(WaveClass)  # in filing order


def wave_class(pack: Pack, checks: Iterable[Check]) -> WaveClass:
    """The first class whose condition holds, asked in this order; ``checks`` are ``bug_checks``.

    - "comment": the decision is a comment, whatever the bug is.
    - "report": the pack has no fix to offer (kind report or guard), even where its bug is a crash.
    - "refactor": kind refactor; it removes something, and no user waits for it.
    - "crash fix": of those ``checks`` that show the bug, at least half have the signature of a crash. Never in category
      "graph safety": that code raises only while a CUDA graph captures it.
    - "fix": every other bug, memory and performance included.
    """
    if pack.filing.decision == "comment":
        return "comment"
    if pack.kind in ("report", "guard"):
        return "report"
    if pack.kind == "refactor":
        return "refactor"
    crashed = [check.signature is not None for check in checks if check.shows_bug]
    crash = 0 < len(crashed) <= 2 * sum(crashed) and pack.category != "graph safety"
    return "crash fix" if crash else "fix"


def bug_checks(entry: Entry, root: Path) -> list[Check]:
    """Bug checks of the last pristine arm in each lane's newest receipt under ``root``; ``entry`` is the manifest's."""
    receipts = [read(root / lane.receipt) for _, lane in sorted(entry.lanes.items())]
    return [check for receipt in receipts for check in receipt.checks("pristine") if check.role == "bug"]
