"""Puts a folder of generated files in place, whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import swap, within

MARKER = ".patchlane-site"


def publish(files: dict[str, bytes], out: Path, option: str = "--out") -> None:
    """Write the files beside ``out`` and swap them in whole; an interrupted run leaves the old ones.

    ``option``: the verb's, by which a person chooses another folder.
    Raises PatchlaneError if ``out`` exists and is neither an earlier one nor an empty folder, or cannot be written.
    """
    refuse_foreign(out, option)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".tmp-{out.name}-", dir=out.parent))
    except OSError as error:
        raise PatchlaneError(f"{out} cannot be written: {error.strerror}", f"{option} another folder") from error
    try:
        for name, data in {**files, MARKER: b"Made by patchlane, which replaces this folder whole.\n"}.items():
            path = within(scratch / "new", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        swap(scratch / "new", out, scratch / "old")
    except OSError as error:
        raise PatchlaneError(
            f"{out} cannot be written: {error.strerror}", f"make room, or {option} elsewhere"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def refuse_foreign(out: Path, option: str = "--out") -> None:
    """Raises PatchlaneError if ``out`` exists and is neither an earlier one nor an empty folder."""
    replaceable = out.is_dir() and not out.is_symlink() and ((out / MARKER).is_file() or not any(out.iterdir()))
    if (out.exists() or out.is_symlink()) and not replaceable:
        raise PatchlaneError(
            f"{out} was not made by this verb and is left alone", f"{option} a folder that does not exist"
        )
