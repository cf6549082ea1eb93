"""Find the packs that a lane still has to run: no folder holds a receipt that answers for them."""

from __future__ import annotations

import sys
from pathlib import Path

from patchlane.base.clock import today
from patchlane.base.errors import PatchlaneError
from reproducers.evidence import receipts
from reproducers.evidence.manifest import changed_since
from reproducers.record.schema import Pack
from reproducers.trial.experiment import Request, expected


def wanting(packs: list[Pack], lane: str, at: str, folders: list[Path]) -> list[Pack]:
    """The packs without an answering receipt in any folder. Raises PatchlaneError if ``at`` is no pin of a pack."""
    for pack in packs:
        if pack.pin_name(at) is None:
            raise PatchlaneError(f"{pack.id} has no pin {at}, and --missing-from knows pins only", "leave it out")
    return [pack for pack in packs if not any(answered(pack, lane, at, folder) for folder in folders)]


def answered(pack: Pack, lane: str, at: str, folder: Path) -> bool:
    """Whether the newest receipt of both arms is unaltered, as expected, of these files and pin, and not too old."""
    pin = pack.pin_name(at) or at
    try:
        path = receipts.newest(pack, lane, folder, pin)
        details = receipts.read(path) if path else None
    except PatchlaneError:  # altered or incomplete: a new run replaces it as the newest
        return False
    if path is None or details is None or lane not in pack.lanes or changed_since(pack, path):
        return False
    age = today() - details.day
    fresh = age.days <= pack.lanes[lane].max_age_days  # type: ignore[index]
    return fresh and details.verdict in expected(pack, Request(pin, lane))


def left(packs: list[Pack], lane: str, at: str, folders: list[Path], arm: str, upstream: Path | None) -> list[Pack]:
    """The packs without a receipt that still holds; prints how many have one."""
    if arm != "both" or upstream is not None:
        raise PatchlaneError("--missing-from goes with both arms of a pin", "leave out --arm and --upstream")
    kept = wanting(packs, lane, at, folders)
    if len(kept) < len(packs):
        places = ", ".join(map(str, folders))
        done = len(packs) - len(kept)
        print(f"{done} of {len(packs)} packs have a {lane} receipt that holds in {places}", file=sys.stderr)
    return kept
