"""The digests of the code that decides: it makes and watches an arm and rules on it, or it verifies receipts."""

from __future__ import annotations

import functools
import hashlib

from reproducers.record.schema import ROOT

# Modules, or whole folders.
PLACES = (
    *("reproducers/probe", "reproducers/trial", "reproducers/upstream/patching", "reproducers/base/verdicts"),
    *("patchlane/base/errors", "patchlane/base/exits", "patchlane/base/files"),
)


VERIFIER = (
    *("patchlane/base/exits", "patchlane/base/files", "reproducers/base/verdicts", "reproducers/kept"),
    *("reproducers/probe/checks", "reproducers/record/origin", "reproducers/record/receipt"),
    *("reproducers/record/schema", "reproducers/trial/arms", "reproducers/trial/rulings"),
    *("reproducers/evidence/binding", "reproducers/evidence/shelf", "reproducers/evidence/verification"),
)


@functools.cache
def digest(places: tuple[str, ...] = ()) -> str:
    """sha256 over path and content of each module in ``places``: what verifies; by default what decides."""
    content = hashlib.sha256()
    for place in places or PLACES:
        folder = ROOT / place
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{place}.py"]:
            content.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()
