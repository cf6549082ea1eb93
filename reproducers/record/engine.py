"""The digest of the code that decides: it makes and watches an arm, and rules on it."""

from __future__ import annotations

import functools
import hashlib

from reproducers.record.schema import ROOT

# Files of reproducers/, or whole folders.
PLACES = ("probe", "trial", "upstream/patching", "base/errors", "base/files", "base/verdicts")


@functools.cache
def digest() -> str:
    """sha256 over the relative path and the content of each module in PLACES."""
    here, content = ROOT / "reproducers", hashlib.sha256()
    for place in PLACES:
        folder = here / place
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [here / f"{place}.py"]:
            content.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()
