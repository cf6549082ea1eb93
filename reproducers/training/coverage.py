"""coverage.json: the lines of each pack's patch that a run's first steps executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.kept import xz
from reproducers.record.schema import Model

FILE = "coverage.json"
BUILD, OUTSIDE = "build", "outside layers"  # places that are no layer
OCCASIONS = RESUMING, SAVING, EVALUATING = "resuming", "saving", "evaluating"  # beside the steps; the first is watched
HUNK_LEVEL = 4  # record, packs, pack, hunks: deeper values share their hunk's line
State = Literal["ran", "compiled", "loaded", "never"]


class CompiledKernel(Model):
    """A Triton or TileLang kernel that went to its compiler, with the lines of its text."""

    first: int
    last: int
    compiler: str
    sha256: str
    places: list[str]


class HunkCoverage(Model):
    """A hunk's lines in the merged tree, and those that executed, by place.

    ``loaded``: only the file's import ran lines of it, which proves nothing about its functions. They are left out
    if a function's line ran. ``at_import``: none of its lines is in a function, so the import is all that can be seen.
    """

    file: str
    first: int
    last: int
    state: State
    lines: list[int]
    places: dict[str, list[int]]
    compiled: list[CompiledKernel]
    at_import: bool = False

    @property
    def where(self) -> str:
        return f"{self.file}:{self.first}-{self.last}"

    @property
    def executed(self) -> bool:
        return self.state in ("ran", "compiled")


class PackCoverage(Model):
    """A pack's hunks. ``consumed_by``: "cuda by default" where such a run has to execute it; old records name more."""

    title: str
    consumed_by: list[str]
    hunks: list[HunkCoverage]

    @property
    def at_import(self) -> bool:
        """Whether no hunk has a line in a function, so that importing is all that a run can do."""
        return all(hunk.at_import for hunk in self.hunks)

    @property
    def executed(self) -> bool:
        """Whether a hunk executed. Importing is enough if no hunk has a line in a function."""
        if self.at_import:
            return any(hunk.state == "loaded" for hunk in self.hunks)
        return any(hunk.executed for hunk in self.hunks)

    def wanted_on(self, device: str) -> list[str]:
        """The entries of ``consumed_by`` for a device."""
        return [entry for entry in self.consumed_by if entry.split()[0] == device]


class CoverageRecord(Model):
    """coverage.json. Seconds are wall clock, one value a step.

    ``foreign``: functions of patched files that ran as other code than the file's, such as torch.compile's.
    """

    schema_version: Literal[1] = 1
    device: str
    python: str
    seconds_building: float
    seconds_watched: list[float]
    seconds_after: list[float] = Field(default=[], exclude=True)  # old records have it, always empty
    packs: dict[str, PackCoverage]
    foreign: list[str]

    def write(self, run: Path) -> None:
        """Write ``run``/coverage.json, a line a hunk, whole or not at all."""
        write_atomic(run / FILE, (_lines(self.model_dump(mode="json"), HUNK_LEVEL) + "\n").encode())

    def missing(self, device: str | None = None) -> dict[str, PackCoverage]:
        """Packs that the device should consume and of which nothing executed."""
        device = device or self.device
        return {name: pack for name, pack in self.packs.items() if pack.wanted_on(device) and not pack.executed}


def _lines(value: Any, levels: int) -> str:
    """JSON that breaks lines in the outermost ``levels`` of lists and objects only."""
    if not levels or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(item, levels - 1) for item in value) + "\n]"
    rows = [f"{json.dumps(name)}: {_lines(item, levels - 1)}" for name, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


def read(run: Path) -> CoverageRecord:
    """A run directory's record. Raises PatchlaneError if it is missing or malformed."""
    path = run / FILE
    try:
        return CoverageRecord.model_validate_json(xz.data(path))
    except OSError as error:
        raise PatchlaneError(f"{path}: cannot be read ({error.strerror})", "name a run directory") from error
    except ValidationError as error:
        fault = error.errors()[0]
        message = f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise PatchlaneError(message, "run again; the file was changed by hand or by another version") from None


def merged(records: Sequence[CoverageRecord]) -> CoverageRecord:
    """The records of all ranks as one, since a pipeline stage executes only its own layers. Seconds are the first's."""
    first = records[0]
    packs = {name: _same_pack([record.packs[name] for record in records]) for name in first.packs}
    foreign = sorted({name for record in records for name in record.foreign})
    return first.model_copy(update={"packs": packs, "foreign": foreign})


def _same_pack(packs: Sequence[PackCoverage]) -> PackCoverage:
    hunks = [_same_hunk(group) for group in zip(*(pack.hunks for pack in packs), strict=True)]
    return packs[0].model_copy(update={"hunks": hunks})


def _same_hunk(hunks: Sequence[HunkCoverage]) -> HunkCoverage:
    order: list[State] = ["ran", "compiled", "loaded", "never"]
    places: dict[str, set[int]] = {}
    for hunk in hunks:
        for place, lines in hunk.places.items():
            places.setdefault(place, set()).update(lines)
    update: dict[str, Any] = {
        "state": min((hunk.state for hunk in hunks), key=order.index),
        "lines": sorted({line for hunk in hunks for line in hunk.lines}),
        "places": {place: sorted(lines) for place, lines in places.items()},
        "compiled": _same_kernels([kernel for hunk in hunks for kernel in hunk.compiled]),
    }
    return hunks[0].model_copy(update=update)


def _same_kernels(kernels: Sequence[CompiledKernel]) -> list[CompiledKernel]:
    joined: dict[tuple[int, str], CompiledKernel] = {}
    for kernel in kernels:
        known = joined.get((kernel.first, kernel.sha256))
        places = list(dict.fromkeys([*(known.places if known else []), *kernel.places]))
        joined[kernel.first, kernel.sha256] = kernel.model_copy(update={"places": places})
    return list(joined.values())
