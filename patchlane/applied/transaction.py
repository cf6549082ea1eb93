"""Several files of a folder of packages changed as one: whoever dies half way, the next call takes it back first.

What is to change is written down, with the files as they are and as they will be, before the first is replaced. Each is
replaced by a rename, so that no file is ever half written, and no room is needed any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import within
from patchlane.patches.state import FOLDER, SCHEMA, Change, State, kept, load, save, sha256, twin

NEW = "new"  # below FOLDER: files on their way to their place


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """The folder for this process alone, and no change half done in it. PatchlaneError where another one has it."""
    if not os.access(root, os.W_OK):
        raise PatchlaneError(f"{root}: cannot be written", f"run it as the user who may: ls -ld {root}")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PatchlaneError(f"{root}: another patchlane changes it", "wait for it, and run this again") from error
        with disk.writing(root, f"get room and the right to write there (df -h {root}, ls -ld), and run this again"):
            _recover(root)
            yield
    finally:
        os.close(handle)


def change(root: Path, contents: dict[str, bytes | Path | None], packs: tuple[str, ...]) -> State:
    """Give files the content of bytes or of another file, or none at all; ``packs`` is what is in afterwards.

    Needs the lock. Raises PatchlaneError, with nothing changed, where the disk is full or a file may not be replaced.
    """
    state = load(root)
    try:
        begun = {name: _prepared(root, name, content) for name, content in contents.items()}
        folders = _missing(root, [name for name, step in begun.items() if step.after])
        save(root, replace(state, begun=begun, folders=tuple(dict.fromkeys([*state.folders, *folders]))))
        for name, step in begun.items():
            _put(root, name, step.after)
    except BaseException:
        _recover(root)
        raise
    changes = {**state.changes}
    for name, step in begun.items():
        first = None if _source(name) in state.changes else step.before  # compiled from what was patched already
        changes[name] = Change(state.changes[name].before if name in state.changes else first, step.after)
    changes = {name: one for name, one in changes.items() if one.before != one.after}
    done = State(SCHEMA, packs, changes, {}, load(root).folders)
    save(root, done)
    _tidy(root, done)
    return done


def _prepared(root: Path, name: str, content: bytes | Path | None) -> Change:
    """Keep a file as it is, and its new content, so that each can be put into its place."""
    path = within(root, name)
    before, after = sha256(path), None
    if before:
        twin(path, kept(root, name, before))
    if content is not None:
        new = root / FOLDER / NEW
        new.unlink(missing_ok=True)
        if isinstance(content, Path):
            twin(content, new)
        else:
            new.parent.mkdir(exist_ok=True)
            new.write_bytes(content)
            new.chmod(path.stat().st_mode & 0o777 if before else 0o644)
            if before:
                with contextlib.suppress(PermissionError):  # a file of root's that others may write, say
                    os.chown(new, path.stat().st_uid, path.stat().st_gid)
            with new.open("rb") as written:
                os.fsync(written.fileno())
        after = sha256(new) or ""
        place = kept(root, name, after)
        place.parent.mkdir(exist_ok=True)
        new.replace(place)
    return Change(before, after)


def _put(root: Path, name: str, digest: str | None) -> None:
    """Give a file the content that is kept, or take it away."""
    path = within(root, name)
    if digest is None:
        return path.unlink(missing_ok=True)
    new = root / FOLDER / NEW
    twin(kept(root, name, digest), new)
    path.parent.mkdir(parents=True, exist_ok=True)
    new.replace(path)
    new.unlink(missing_ok=True)  # a rename of one file onto itself leaves both names
    return None


def _missing(root: Path, names: list[str]) -> list[str]:
    """The folders that these files need and that are not there, outermost first."""
    inner = {parent for name in names for parent in Path(name).parents if not (root / parent).exists()}
    return sorted(map(str, inner))


def _recover(root: Path) -> None:
    """Take back what a call had begun and not ended. PatchlaneError where somebody changed a file meanwhile."""
    state = load(root)
    for name, step in state.begun.items():
        if not name.endswith(".pyc") and sha256(within(root, name)) not in (step.before, step.after):
            raise PatchlaneError(f"{root / name}: changed while patches were put in", anew(root))
    for name, step in state.begun.items():
        _put(root, name, step.before)
    if state.begun:
        state = replace(state, begun={})
        save(root, state)
    _tidy(root, state)


def _tidy(root: Path, state: State) -> None:
    """Remove what nobody needs any more: with the last change the folder of ours, and the folders that were made."""
    own, needed = root / FOLDER, {kept(root, name, one.before) for name, one in state.changes.items() if one.before}
    for path in (own / "kept").glob("*"):
        if path not in needed:
            path.unlink()
    (own / NEW).unlink(missing_ok=True)
    if not state.changes:
        for name in reversed(state.folders):
            for folder in (root / name / "__pycache__", root / name):
                with contextlib.suppress(OSError):  # another one's file is in it
                    folder.rmdir()
        shutil.rmtree(own, ignore_errors=True)


def _source(name: str) -> str:
    """The source file of a file of bytecode, "" of any other file."""
    path = Path(name)
    return str(path.parent.parent / f"{path.name.split('.')[0]}.py") if path.suffix == ".pyc" else ""


def anew(root: Path) -> str:
    """What mends a folder of packages whose files are not as they were left."""
    remove = f"rm -r {root / FOLDER}"
    return f"{remove}, where that package was installed anew since, else pip install --force-reinstall it first"


def unchanged(root: Path) -> State:
    """The state, where each file is as it was left; PatchlaneError, with the way out, where one was changed since."""
    state = load(root)
    for name, one in state.changes.items():
        if not name.endswith(".pyc") and sha256(within(root, name)) != one.after:
            raise PatchlaneError(f"{root / name}: changed since patches were put in", anew(root))
    return state
