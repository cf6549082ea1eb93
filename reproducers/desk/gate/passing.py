"""Whether a reproducer has passed on a given day, on a host with a name, by the pack's own receipts."""

from __future__ import annotations

import datetime
from pathlib import Path

from reproducers.evidence import booking, manifest, receipts, shelf
from reproducers.record.schema import Pack, Pin
from reproducers.trial.experiment import Request, expected


def on(pack: Pack, root: Path, day: datetime.date) -> list[Path]:
    """The receipts of runs of both arms at the filed pin that started on that day (UTC), newest first."""
    found = []
    for path in reversed(shelf.chain(root / f"{pack.number:02d}")):
        seen = receipts.read(path)
        if pack.pin_name(seen.at) == pack.filing_pin and seen.arm == "both" and seen.day == day:
            found.append(path)
    return found


def refusal(pack: Pack, path: Path) -> str:
    """Why a receipt does not show that the pack, as it is, passes at the filed pin on a named host; "" when it does."""
    seen, wanted = receipts.read(path), expected(pack, Request(at=pack.filing_pin))
    if seen.verdict not in wanted:
        return f"its verdict is {seen.verdict}, owed is {' or '.join(sorted(wanted))}"
    if pack.kind == "guard" and "REGRESSION_GUARD_PASSED" not in seen.sentinels:
        return "it does not say REGRESSION_GUARD_PASSED"
    if not _pinned(pack, path, seen.pin):
        return f"it was taken on another tree than the {pack.filing_pin} pin's"
    if changed := manifest.changed_since(pack, path):
        return f"{', '.join(changed)} changed since"
    if seen.host.alias == "local":
        return "its host has no name"
    return ""


def _pinned(pack: Pack, path: Path, tried: Pin | None) -> bool:
    """Whether the tree that ran is the filed pin's as upstream published it, and the pin is still the same.

    A release's commit may have been added to the pin since: its files are known by their digests.
    """
    if tried is None:
        return False
    pin = pack.pins[pack.filing_pin]
    return manifest.same_pin(pin, tried) and not booking.mismatch(pack, receipts.statement_of(path))
