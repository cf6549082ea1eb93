"""``audit --apply`` and ``--revert``: what is changed, under the locks of what is changed, and what is said of it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from patchlane.applied import environment as applied
from patchlane.applied.transaction import locked
from patchlane.base import place
from patchlane.judged import judgement
from patchlane.known.index import Known
from patchlane.present import environment


def apply(python: Path | None, known: Known, dry_run: bool) -> list[str]:
    """Put in all patches that fit; a line for each that went in, or would, and for each that did not."""
    seen = environment.of_python(python, known)
    with ExitStack() as locks:
        for root in [] if dry_run else applied.roots(known, seen):
            locks.enter_context(locked(root))
        done = applied.apply(judgement.audit(known, seen), known, seen, dry_run)
    word = "fits" if dry_run else "applied"
    lines = [f"{word:8} {pack}" for pack in done.packs]
    lines += [f"{'left':8} {pack}: {why}" for pack, why in done.left.items()]
    if done.root and not dry_run:
        lines += [f"{'':8} the way back: {place.AUDIT} --revert{seen.option}"]
    return lines or ["nothing to apply"]


def revert(python: Path | None, known: Known) -> list[str]:
    """Take all patches out again; a line for each folder of packages."""
    seen, lines = environment.of_python(python, known), list[str]()
    for root in applied.roots(known, seen):
        with locked(root):
            if packs := applied.revert(root):
                lines.append(f"reverted {' '.join(packs)} in {root}")
    return lines or ["nothing to revert"]
