"""What was changed in a folder of packages: ``.patchlane/state.json`` in it, and the files as they were before."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from patchlane.base import records
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of, file_sha256, record_json, within, write_atomic

FOLDER, NAME = ".patchlane", "state.json"
SCHEMA = 1


@dataclass(frozen=True)
class Change:
    """The sha256 of a file before and after, None where there is none."""

    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class State:
    """``changes``: by path below the folder, from what pip installed to what is there; ``packs``: whose patches are in.

    ``begun``: what a call is about to change, from what is there; it is gone when all of it is done. ``folders``: those
    that were made, outermost first.
    """

    schema_version: int = 0
    packs: tuple[str, ...] = ()
    changes: dict[str, Change] = field(default_factory=dict)
    begun: dict[str, Change] = field(default_factory=dict)
    folders: tuple[str, ...] = ()


def load(root: Path) -> State:
    """The state of a folder of packages, an empty one where nothing was changed. PatchlaneError for a damaged file."""
    path = root / FOLDER / NAME
    try:
        state = records.read(State, record_json(bytes_of(path).decode()))
        if state.schema_version != SCHEMA:
            raise ValueError(f"schema_version: {state.schema_version}, and this audit reads {SCHEMA}")
        for name in {*state.changes, *state.begun, *state.folders}:
            within(root, name)
    except FileNotFoundError:
        return State(SCHEMA)
    except ValueError as error:
        raise PatchlaneError(f"{path}: {error}", f"install the packages anew, and rm -r {path.parent}") from error
    return state


def save(root: Path, state: State) -> None:
    """Write the state; who reads it sees the old or the new one."""
    write_atomic(root / FOLDER / NAME, (json.dumps(records.written(state), indent=1) + "\n").encode())


def sha256(path: Path) -> str | None:
    """The digest of a file's content, None where there is no file."""
    return file_sha256(path) if path.is_file() else None


def applied(root: Path, pack: str, paths: set[str]) -> bool:
    """Whether a pack's patch was put into a folder of packages, and those of its files that were changed still are so.

    Several patches of one function are no code that anybody measured: only this tells what it is.
    """
    try:
        state = load(root)
    except (PatchlaneError, OSError):
        return False
    mine = {name: one for name, one in state.changes.items() if name in paths}
    done = pack in state.packs and not state.begun
    return done and bool(mine) and all(sha256(root / name) == one.after for name, one in mine.items())


def kept(root: Path, name: str, digest: str) -> Path:
    """Where a file with this content is kept, with its mode and times."""
    return root / FOLDER / "kept" / hashlib.sha256(f"{name}\0{digest}".encode()).hexdigest()


def twin(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, or a copy of it where the two cannot be one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
