"""Kept training runs as far as patches are concerned: where each ran, how it was asked for, and what it executed."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from patchlane.base.errors import PatchlaneError, from_git
from patchlane.base.files import parsed_json
from reproducers.kept import xz
from reproducers.training import coverage
from reproducers.training.coverage import OCCASIONS, CoverageRecord, HunkCoverage, PackCoverage

FOLDER = "train"  # of receipts/
SETUP = "run.json"
# What a run has where nothing is asked of it that chooses other code; a checkpoint's format is not here, for saving is
# an occasion of its own. A record without a field is of before there was one.
PLAIN = {
    "paths": {},
    "expert_parallel": 1,
    "pipeline_parallel": 1,
    "deterministic": False,
    "recompute": False,
    "overlap_grads": False,
    "overlap_weights": False,
    "bucket": None,
}


class Executed(NamedTuple):
    """A hunk in a run: whether it executed, and the ``OCCASIONS`` of it where no step executed it.

    ``imported``: its file's import alone did, which proves nothing of a pack that has lines in functions.
    ``lines``: those that executed, counted from its first; none of what was compiled whole.
    """

    ran: bool
    occasions: frozenset[str]
    imported: bool = False
    lines: frozenset[int] = frozenset()


class TrainingRun(NamedTuple):
    """A kept run. ``paths``: {part: the kernel path that it took}; ``asked``: whether --path, a layout or --set
    chose other code than a run takes by itself; ``other``: its architecture where that is not NAM56R.

    ``patches``: {pack id: the digest of the patch that was applied}; ``packs``: {pack id: its hunks, in their order}.
    """

    name: str
    day: datetime.date
    device: str
    stack: str
    size: str
    paths: Mapping[str, str]
    asked: bool
    patches: Mapping[str, str]
    packs: Mapping[str, tuple[Executed, ...]]
    other: str = ""

    @property
    def order(self) -> tuple[datetime.date, str]:
        return self.day, self.name


def kept(receipts: Path) -> list[TrainingRun]:
    """The kept runs of ``receipts``; see ``of``."""
    return of(receipts / FOLDER, from_git(f"receipts/{FOLDER}"))


def of(folder: Path, remedy: str = "take the run again, into another folder") -> list[TrainingRun]:
    """The runs of a folder that recorded which patched lines they executed, oldest first; without run.json none tells
    of what patches.

    Raises PatchlaneError, with the remedy, for a run that cannot be read.
    """
    found = []
    for path in xz.found(folder, f"*/{SETUP}"):
        if not xz.place(path.with_name(coverage.FILE)).exists():
            continue
        try:
            found.append(_run(path.parent.name, parsed_json(xz.data(path)), coverage.read(path.parent)))
        except PatchlaneError as error:
            raise PatchlaneError(error.what, remedy) from error
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise PatchlaneError(f"{path}: {type(error).__name__}: {error}", remedy) from error
    return sorted(found, key=lambda run: run.order)


def _run(name: str, setup: Any, record: CoverageRecord) -> TrainingRun:
    return TrainingRun(
        name=name,
        day=datetime.datetime.fromisoformat(setup["started"]).date(),
        device=record.device,
        stack=setup.get("stack") or "released",  # before there were others
        size=setup["size"]["name"],
        paths={part: choice["name"] for part, choice in setup.get("paths", {}).items()},
        asked=any(setup["run"].get(name, plain) != plain for name, plain in PLAIN.items()),
        patches={pack: locked["patch"] for pack, locked in setup["patches"]["lock"]["packs"].items()},
        packs={
            pack: tuple(_executed(hunk, covered) for hunk in covered.hunks) for pack, covered in record.packs.items()
        },
        other=setup["size"].get("model_type", ""),  # which NAM56R's records do not have
    )


def _executed(hunk: HunkCoverage, pack: PackCoverage) -> Executed:
    """Of a hunk with no line in a function an import is all that can be seen."""
    imported, places = hunk.at_import and hunk.state == "loaded", frozenset(hunk.places)
    ran = hunk.executed or imported
    lines = [] if hunk.compiled or hunk.state != "ran" else hunk.lines
    return Executed(
        ran,
        places if ran and places <= {*OCCASIONS} else frozenset(),
        imported and not pack.at_import,
        frozenset(line - hunk.first for line in lines),
    )
