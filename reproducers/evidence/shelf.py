"""Where receipts lie: ``NN/TIME_HOST_DIGEST.json``, each with its log."""

from __future__ import annotations

import re
from pathlib import Path

from reproducers.record.mutation import PREFIX
from reproducers.record.schema import ROOT

NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
FOLDERS = "[0-9][0-9]*"
COMMITTED = ROOT / "receipts"


def remedy(path: Path) -> str:
    """The command that brings a receipt back: from git where it lies in the checkout, else by a new run."""
    path = path.resolve()
    scored = path.name.startswith(PREFIX)  # which has no log
    if not path.is_relative_to(COMMITTED):
        return f"python -m reproducers.{'mutate' if scored else 'run'} pack{path.parent.name}"
    stem = f"{COMMITTED.name}/{path.parent.name}/{path.stem}"
    return f"git checkout -- {stem}.json" + ("" if scored else f" {stem}.log")


def chain(folder: Path) -> list[Path]:
    """A folder's receipts, oldest first."""
    return sorted(p for p in folder.glob("*.json") if NAME.match(p.name))


def every(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All statements under ``root``, also those whose names no run writes; what a killed writer left is none."""
    return sorted(path for path in root.glob(f"{folders}/*.json") if not path.name.startswith((".tmp-", PREFIX)))


def scores(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All mutation scores under ``root``, also those whose names ``mutate`` does not write."""
    return sorted(root.glob(f"{folders}/{PREFIX}*.json"))


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in ``folder``; for whoever holds its lock."""
    for path in folder.glob(".tmp-*"):
        if path.is_file():
            path.unlink(missing_ok=True)
