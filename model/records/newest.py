"""The newest kept run of a size on so many GPUs: who names a run in code names one that goes stale.

Runs count that measured a speed: those of a few steps are kept for other reasons.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

from patchlane.base.errors import PatchlaneError, from_git
from patchlane.base.files import parsed_json
from reproducers.kept import xz
from reproducers.record.schema import ROOT

KEPT = ROOT / "receipts" / "train"
RECEIPT, SETUP = "receipt.json", "run.json"


def newest(size: str, ranks: int, on_gpus: bool = True, kept: Path = KEPT) -> str:
    """The newest kept run of a size on so many GPUs, or CPUs, in words; "" without one. A run without a run.json tells
    neither.

    Raises PatchlaneError if a run.json cannot be read.
    """
    found = max(
        (run for run in _runs(kept) if (run.size, run.ranks, run.gpu is not None) == (size, ranks, on_gpus)),
        default=None,
    )
    return f"{ranks} {found.gpu or 'CPU'}: {kept.parent.name}/{kept.name}/{found.name}" if found else ""


def measured(kind: str, path: str, kept: Path = KEPT) -> str:
    """The name of the newest kept run that took this kernel path; "" where none did. Raises as ``newest``."""
    return max(((run.started, run.name) for run in _runs(kept) if run.paths.get(kind) == path), default=("", ""))[1]


class _Run(NamedTuple):
    """When a kept run started, by its run.json, and where."""

    started: str
    name: str
    size: str
    ranks: int
    gpu: str | None
    paths: dict[str, str]  # {kind: path}


@functools.cache
def _runs(kept: Path) -> list[_Run]:
    found = []
    for path in xz.found(kept, f"*/{SETUP}"):
        try:
            setup, receipt = (parsed_json(xz.data(file)) for file in (path, path.with_name(RECEIPT)))
            if not receipt["summary"].get("steady_steps"):
                continue
            where = path.parent.name, setup["size"]["name"], setup["ranks"], receipt["summary"].get("gpu")
            paths = {kind: choice["name"] for kind, choice in setup.get("paths", {}).items()}
            found.append(_Run(setup["started"], *where, paths))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{path.parent.name}/{path.name}: {type(error).__name__}: {error}"
            raise PatchlaneError(what, from_git("receipts/train")) from error
    return found
