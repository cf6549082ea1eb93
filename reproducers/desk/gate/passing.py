"""Whether a pack's receipts show that its reproducer passed on a given day, on a host with an alias."""

from __future__ import annotations

import datetime
from pathlib import Path

from reproducers.evidence import booking, manifest, receipts, shelf
from reproducers.record.schema import Pack, Pin
from reproducers.trial.experiment import Request, expected


def on(pack: Pack, root: Path, day: datetime.date) -> list[Path]:
    """Receipts of runs of both arms at the filed pin that started on that day (UTC), newest first."""
    paths = []
    for path in reversed(shelf.chain(root / f"{pack.number:02d}")):
        receipt = receipts.read(path)
        if pack.pin_name(receipt.at) == pack.filing_pin and receipt.arm == "both" and receipt.day == day:
            paths.append(path)
    return paths


def refusal(pack: Pack, path: Path) -> str:
    """Why a receipt does not show that the pack, as it is now, passes at the filed pin on a host with an alias."""
    receipt, owed = receipts.read(path), expected(pack, Request(at=pack.filing_pin))
    if receipt.verdict not in owed:
        return f"its verdict is {receipt.verdict}, owed is {' or '.join(sorted(owed))}"
    if pack.kind == "guard" and "REGRESSION_GUARD_PASSED" not in receipt.sentinels:
        return "it does not say REGRESSION_GUARD_PASSED"
    if not _pinned(pack, path, receipt.pin):
        return f"it was taken on another tree than the {pack.filing_pin} pin's"
    if changed := manifest.changed_since(pack, path):
        return f"{', '.join(changed)} changed since"
    if receipt.host.alias == "local":
        return "its host has no alias"
    return ""


def _pinned(pack: Pack, path: Path, tried: Pin | None) -> bool:
    """Whether the run was on the filed pin's tree as upstream published it, and the pin still names this tree.

    The pin of a release may have got its commit since, because its files are known by their digests.
    """
    if tried is None:
        return False
    pin = pack.pins[pack.filing_pin]
    return manifest.same_pin(pin, tried) and not booking.mismatch(pack, receipts.statement_of(path))
