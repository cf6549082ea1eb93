"""The pinned tree of a patch, and the files that the patch touches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproducers.record.schema import Pack, Pin


def tree_of(pack: Pack, pin: Pin, store: Path) -> Path | None:
    """The pin's unpacked tree, None if not stored. Any artefact's tree will do: they differ in compiled files only."""
    keys = list(pin.artifacts.values()) if pin.release else [str(pin.sha)]
    return next((store / "trees" / key for key in keys if (store / "trees" / f"{key}.json").is_file()), None)


def touched(files: Any, strip: int) -> list[str]:
    """Paths inside the tree of every file that a patch reads or writes."""
    names = [name for file in files for name in (file.source_file, file.target_file) if name and name != "/dev/null"]
    return sorted({"/".join(Path(name).parts[strip:]) for name in names})
