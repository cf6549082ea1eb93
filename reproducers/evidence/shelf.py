"""The places of receipts: ``NN/TIME_HOST_DIGEST.json``, each with its log."""

from __future__ import annotations

import re
from pathlib import Path

from reproducers.record.schema import ROOT
from reproducers.record.upstream_tests import PREFIX

NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
FOLDERS = "[0-9][0-9]*"
COMMITTED = ROOT / "receipts"


def remedy(path: Path) -> str:
    """The command that restores a receipt: from git if it lies in the checkout, else by a new run."""
    path = path.resolve()
    if not path.is_relative_to(COMMITTED):
        return f"python -m reproducers.run pack{path.parent.name}"
    stem = f"{COMMITTED.name}/{path.parent.name}/{path.stem}"
    return f"git checkout -- {stem}.json {stem}.log"


def chain(folder: Path) -> list[Path]:
    """A folder's receipts, oldest first."""
    return sorted(p for p in folder.glob("*.json") if NAME.match(p.name))


def every(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All statements under ``root``, misnamed ones included, without the temporary files of killed writers.

    Records of upstream's tests, which are no statements, have a prefix of their own.
    """
    return sorted(path for path in root.glob(f"{folders}/*.json") if not path.name.startswith((".tmp-", PREFIX)))


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed writers from ``folder``; the caller holds its lock."""
    for path in folder.glob(".tmp-*"):
        if path.is_file():
            path.unlink(missing_ok=True)
