"""The places of receipts: ``NN/TIME_HOST_DIGEST.json``, each with its log, open or in the folder's archive.

An archived one has the path that it had when it lay open; ``reproducers.kept.archive`` reads either.
"""

from __future__ import annotations

import re
from pathlib import Path

from patchlane.base.errors import from_git
from reproducers.kept import archive
from reproducers.record import mutation, upstream_tests
from reproducers.record.schema import ROOT

NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
WHEN = re.compile(r"^(?:[a-z-]+_)?(\d{8}T\d{6}Z)_")  # of the name of any record
FOLDERS = "[0-9][0-9]*"
COMMITTED = ROOT / "receipts"
WITHOUT_LOG = {mutation.PREFIX: "mutate", upstream_tests.PREFIX: "upstream_tests"}  # prefix of a record: its verb


def remedy(path: Path) -> str:
    """The command that restores a receipt: from git if it lies in the checkout, else by a new run."""
    if path.name == archive.INDEX:
        return archive.remedy(path.parent)
    path = path.resolve()
    verb = next((verb for prefix, verb in WITHOUT_LOG.items() if path.name.startswith(prefix)), "run")
    if not path.is_relative_to(COMMITTED):
        return f"python -m reproducers.{verb} pack{path.parent.name}"
    return from_git(f"{COMMITTED.name}/{path.parent.name}")


def chain(folder: Path) -> list[Path]:
    """A folder's receipts, oldest first."""
    return [path for path in archive.listed(folder) if NAME.match(path.name)]


def statements(folder: Path, archived: bool = True) -> list[Path]:
    """A folder's statements, misnamed ones included, without the temporary files of killed writers.

    Mutation scores and records of upstream's tests, which are no statements, have prefixes of their own. ``archived``:
    those of the archive too.
    """
    paths = archive.listed(folder) if archived else sorted({*folder.glob("*.json")} - {folder / archive.INDEX})
    return [path for path in paths if not path.name.startswith((".tmp-", *WITHOUT_LOG))]


def every(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All statements under ``root``, as ``statements`` has them."""
    return [path for folder in sorted(root.glob(folders)) for path in statements(folder)]


def scores(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All mutation scores under ``root``, misnamed ones included."""
    return [
        path for folder in sorted(root.glob(folders)) for path in archive.listed(folder, f"{mutation.PREFIX}*.json")
    ]


def signature(receipt: Path) -> Path:
    """The file beside ``receipt`` that holds its signature."""
    return receipt.with_name(f"{receipt.name}.sig")


def kept(root: Path) -> list[Path]:
    """What lies open under ``root`` and a manifest names: statements, mutation scores, records of upstream's tests."""
    paths = root.glob(f"{FOLDERS}/*.json")
    return sorted(path for path in paths if not path.name.startswith(".tmp-") and path.name != archive.INDEX)


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed writers from ``folder``; the caller holds its lock."""
    for path in folder.glob(".tmp-*"):
        if path.is_file():
            path.unlink(missing_ok=True)
