"""Alarms as they are kept: one JSON file each, named by its content. Needs no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import write_atomic

FOLDER = "hunt"  # in the store, beside what it fetched


class Alarm(BaseModel):
    """A relation that does not hold on a release, with the simplest case that was found.

    ``what``: the quantity, or a crash and its place; ``also``: {what else fails in the case: its error}. ``case``: the
    fields of ``trying.Case``. ``seed``: of the hunt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    distribution: str
    release: str
    target: str
    symbol: str
    relation: str
    what: str
    also: dict[str, float] = {}
    error: float
    limit: float
    raised: str = ""
    case: dict[str, Any]
    seed: int

    @property
    def key(self) -> str:
        """The name of its file: of target, relation and case, whatever the release."""
        named = self.model_dump_json(include={"distribution", "target", "relation", "what", "case"})
        return hashlib.sha256(named.encode()).hexdigest()[:16]

    def line(self) -> str:
        """One line for people."""
        size = self.raised or f"{self.what} is off by {self.error:.3g}, healthy up to {self.limit:.2g}"
        more = f" (and {', '.join(self.also)})" if self.also else ""
        return f"{self.target}: {self.relation.replace('_', ' ')}: {size}{more}"


def keep(folder: Path, alarm: Alarm) -> Path:
    """Write it below the folder of its distribution, unless it is there."""
    path = folder / alarm.distribution / f"{alarm.key}.json"
    with disk.writing(folder, "--corpus DIR names another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, (alarm.model_dump_json(indent=1) + "\n").encode())
    return path


def kept(folder: Path, distribution: str) -> list[Alarm]:
    """The alarms of a distribution, in the order of their names. Raises PatchlaneError for a damaged one."""
    found = []
    for path in sorted((folder / distribution).glob("*.json")):
        try:
            found.append(Alarm.model_validate_json(path.read_bytes()))
        except ValidationError as error:
            raise PatchlaneError(f"{path}: no alarm of a hunt: {error.errors()[0]['msg']}", f"rm {path}") from error
    return found
