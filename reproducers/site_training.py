"""Kept training runs for the report page: what each receipt's summary says, and the files kept beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproducers.errors import PatchlaneError


@dataclass(frozen=True)
class TrainingRun:
    """One folder of ``receipts/train``. ``rows`` are the summary's fields, nested ones by dotted name."""

    name: str
    summary: dict[str, Any]
    rows: list[tuple[str, Any]]
    files: list[Path]
    absent: list[str]

    @property
    def href(self) -> str:
        return f"receipts/train/{self.name}"

    @property
    def pictures(self) -> list[str]:
        return [path.name for path in self.files if path.suffix == ".png"]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        yield name, ", ".join(map(str, value)) or "none"
    else:
        yield name, value


def training_runs(root: Path) -> list[TrainingRun]:
    """All runs kept under ``root``, by name; PatchlaneError for a receipt that is not one."""
    return [_run(path) for path in sorted(root.glob("*/receipt.json"))]


def _run(path: Path) -> TrainingRun:
    try:
        receipt = json.loads(path.read_text())
        summary, files = dict(receipt["summary"]), sorted(receipt["files"])
    except (ValueError, KeyError, TypeError) as error:
        where = f"{path.parent.name}/{path.name}"
        raise PatchlaneError(f"{where} is no training receipt: {error!r}", "python -m model.receipt check") from error
    # names of a receipt are never trusted to stay inside its folder
    kept = [path.parent / name for name in files if name == Path(name).name and (path.parent / name).is_file()]
    rows = [row for row in _flat(summary) if row[0] != "schema_version"]
    return TrainingRun(path.parent.name, summary, rows, [path, *kept], list(receipt.get("absent", [])))
