"""What a run's first steps executed of each pack's patch: coverage.json, and what must be true of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from reproducers.base.errors import PatchlaneError
from reproducers.base.files import write_atomic
from reproducers.record.schema import Model

FILE = "coverage.json"
BUILD, OUTSIDE = "build", "outside layers"  # places that are no layer
HUNK_LEVEL = 4  # record, packs, pack, hunks: what lies deeper shares its hunk's line
State = Literal["ran", "compiled", "loaded", "never"]


class Compiled(Model):
    """A Triton or TileLang kernel whose text, at these lines, went to its compiler."""

    first: int
    last: int
    compiler: str
    sha256: str
    places: list[str]


class HunkSeen(Model):
    """A hunk's lines in the merged tree, and which of them executed where.

    ``loaded``: only the file's import ran them, which proves nothing of what its functions do. Such lines are left out
    where functions' lines ran. ``at_import``: none of its lines is in a function, so that no more can be seen of it.
    """

    file: str
    first: int
    last: int
    state: State
    lines: list[int]
    places: dict[str, list[int]]
    compiled: list[Compiled]
    at_import: bool = False

    @property
    def where(self) -> str:
        return f"{self.file}:{self.first}-{self.last}"

    @property
    def executed(self) -> bool:
        return self.state in ("ran", "compiled")


class PackSeen(Model):
    """A pack's hunks, and by which lanes and modules it is said to be consumed."""

    title: str
    consumed_by: list[str]
    hunks: list[HunkSeen]

    @property
    def executed(self) -> bool:
        """Whether anything of it did its work. A patch of nothing but statements of an import did when they ran."""
        if all(hunk.at_import for hunk in self.hunks):
            return any(hunk.state == "loaded" for hunk in self.hunks)
        return any(hunk.executed for hunk in self.hunks)

    def wanted_on(self, device: str) -> list[str]:
        """The entries of ``consumed_by`` for a device."""
        return [entry for entry in self.consumed_by if entry.split()[0] == device]


class Record(Model):
    """coverage.json. Seconds are wall clock, one value a step: watched, then not.

    ``foreign``: functions of patched files whose running code is not the file's, such as what torch.compile made.
    """

    schema_version: Literal[1] = 1
    device: str
    python: str
    seconds_building: float
    seconds_watched: list[float]
    seconds_after: list[float] = Field(default=[], exclude=True)  # old records have it, always empty
    packs: dict[str, PackSeen]
    foreign: list[str]

    def write(self, run: Path) -> None:
        """Write ``run``/coverage.json, a line a hunk, whole or not at all."""
        write_atomic(run / FILE, (_lines(self.model_dump(mode="json"), HUNK_LEVEL) + "\n").encode())

    def missing(self, device: str | None = None) -> dict[str, PackSeen]:
        """Packs that are said to be consumed on the device and of which nothing executed."""
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


def read(run: Path) -> Record:
    """A run directory's record; PatchlaneError where there is none or it is not one."""
    path = run / FILE
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise PatchlaneError(f"{path}: cannot be read ({error.strerror})", "name a run directory") from error
    except ValidationError as error:
        fault = error.errors()[0]
        said = f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise PatchlaneError(said, "run again; the file was changed by hand or by another version") from None


def merged(records: Sequence[Record]) -> Record:
    """The records of all ranks as one: a stage of a pipeline executes its own layers only. Seconds are the first's."""
    first = records[0]
    packs = {name: _same_pack([record.packs[name] for record in records]) for name in first.packs}
    foreign = sorted({name for record in records for name in record.foreign})
    return first.model_copy(update={"packs": packs, "foreign": foreign})


def _same_pack(seen: Sequence[PackSeen]) -> PackSeen:
    hunks = [_same_hunk(group) for group in zip(*(pack.hunks for pack in seen), strict=True)]
    return seen[0].model_copy(update={"hunks": hunks})


def _same_hunk(seen: Sequence[HunkSeen]) -> HunkSeen:
    order: list[State] = ["ran", "compiled", "loaded", "never"]
    places: dict[str, set[int]] = {}
    for hunk in seen:
        for place, lines in hunk.places.items():
            places.setdefault(place, set()).update(lines)
    update: dict[str, Any] = {
        "state": min((hunk.state for hunk in seen), key=order.index),
        "lines": sorted({line for hunk in seen for line in hunk.lines}),
        "places": {place: sorted(lines) for place, lines in places.items()},
        "compiled": _same_kernels([kernel for hunk in seen for kernel in hunk.compiled]),
    }
    return seen[0].model_copy(update=update)


def _same_kernels(seen: Sequence[Compiled]) -> list[Compiled]:
    found: dict[tuple[int, str], Compiled] = {}
    for one in seen:
        known = found.get((one.first, one.sha256))
        places = list(dict.fromkeys([*(known.places if known else []), *one.places]))
        found[one.first, one.sha256] = one.model_copy(update={"places": places})
    return list(found.values())
