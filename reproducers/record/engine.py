"""The digests of the code that decides: it makes and watches an arm and rules on it, or it verifies receipts."""

from __future__ import annotations

import functools
import hashlib

from reproducers.record.schema import ROOT

# Files of reproducers/, or whole folders.
PLACES = ("probe", "trial", "upstream/patching", "base/errors", "base/files", "base/verdicts")


VERIFIER = (
    *("base/files", "base/verdicts", "kept", "probe/checks", "record/origin", "record/receipt", "record/schema"),
    *("trial/arms", "trial/rulings", "evidence/binding", "evidence/shelf", "evidence/verification"),
)


@functools.cache
def digest(places: tuple[str, ...] = ()) -> str:
    """sha256 over path and content of each module in ``places``: what verifies; by default what decides."""
    here, content = ROOT / "reproducers", hashlib.sha256()
    for place in places or PLACES:
        folder = here / place
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [here / f"{place}.py"]:
            content.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()
