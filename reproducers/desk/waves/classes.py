"""In which order packs are filed: the class of each, derived from its record and receipts, never typed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from reproducers.desk.text.lookups import RAISED
from reproducers.evidence.receipts import read
from reproducers.record.schema import Pack

WaveClass = Literal["crash fix", "comment", "fix", "refactor", "report"]
CLASSES: tuple[WaveClass, ...] = get_args(WaveClass)  # in filing order


def wave_class(pack: Pack, checks: Iterable[dict[str, Any]]) -> WaveClass:
    """The first class that holds, in this order of questions.

    - "comment": the decision is a comment; what is posted is one, whatever the bug is.
    - "report": the pack has no fix to offer (kind report or guard), even where its bug is a crash.
    - "refactor": kind refactor; it removes something, and no user waits for it.
    - "crash fix": raising is what the unpatched tree does wrong. Of those of ``checks``, the bug checks of the newest
      pristine arms, that show the bug, at least half have a limit of the form "no EXCEPTION /MESSAGE/ from FILE", which
      only ``probe.attempt`` writes. Not in category "graph safety": what no graph can hold runs without one.
    - "fix": every other bug, memory included.
    """
    if pack.filing.decision == "comment":
        return "comment"
    if pack.kind in ("report", "guard"):
        return "report"
    if pack.kind == "refactor":
        return "refactor"
    crashed = [_crashed(check) for check in checks if check["role"] == "bug" and check["state"] == "bug"]
    crash = 0 < len(crashed) <= 2 * sum(crashed) and pack.category != "graph safety"
    return "crash fix" if crash else "fix"


def _crashed(check: dict[str, Any]) -> bool:
    return isinstance(check["limit"], str) and RAISED.fullmatch(check["limit"]) is not None


def bug_checks(entry: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    """The bug checks of the last pristine arm in each lane's newest receipt; ``entry`` is the manifest's."""
    arms = [read(root / lane["receipt"]).get("pristine") or [{}] for _, lane in sorted(entry["lanes"].items())]
    return [check for arm in arms for check in arm[-1].get("checks", []) if check["role"] == "bug"]
