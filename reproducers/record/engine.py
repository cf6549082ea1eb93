"""The digest of the code that decides: what makes and watches an arm, and what rules on it."""

from __future__ import annotations

import functools
import hashlib

from reproducers.record.schema import ROOT

# Files of reproducers/, or folders of it with all that is in them.
PLACES = ("probe", "trial", "upstream/patching", "base/files", "base/verdicts")


@functools.cache
def digest() -> str:
    """sha256 over the relative path and the content of each of these modules."""
    here, found = ROOT / "reproducers", hashlib.sha256()
    for place in PLACES:
        folder = here / place
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [here / f"{place}.py"]:
            found.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
