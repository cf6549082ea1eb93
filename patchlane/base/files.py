"""Files: what others wrote is read with limits, what we write appears whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from patchlane.base.errors import StoreError

LONGEST_PART, LONGEST_NAME = 255, 2048  # bytes
LARGEST = 64 * 2**20  # bytes of a record; the largest kept log has less than one MiB
TEMPORARY = "patchlane-tmp-"  # begins the names of temporary folders
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
INDENT = re.compile(r"\n *")  # in JSON no line ends inside a text
KEY = re.compile(r"[\w-]{1,200}", re.A)  # names one entry of a folder of ours


def astray(name: str) -> str:
    """Why a name that a file states is no path below a folder; "" if it is one. ``NAME/..`` is none, either."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        return "leaves the folder"
    if CONTROL.search(name):
        return "has control characters"
    long = [len(part.encode("utf-8", "surrogatepass")) for part in (*path.parts, name)]
    return "is too long" if max(long[:-1]) > LONGEST_PART or long[-1] > LONGEST_NAME else ""


def within(folder: Path, name: str, form: re.Pattern[str] | None = None) -> Path:
    """The path below ``folder`` of a name that a file states: no such name becomes a path in any other way.

    Raises StoreError if the name, or a link in ``folder``, leads elsewhere, and if it has not the ``form``.
    """
    why = astray(name) or ("has another form than our names" if form and not form.fullmatch(name) else "")
    path = folder / name
    if not why and not path.parent.resolve().is_relative_to(folder.resolve()):
        why = "lies behind a link out of the folder"
    if why:
        raise StoreError(f"refused: {name!r} {why}", "do not use the file that names it, or correct it there")
    return path


def opened(path: Path) -> BufferedReader:
    """The file, opened to be read. Raises StoreError at once if it is a folder, a pipe, a socket or a device."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise StoreError(f"{path}: not a regular file", f"ls -ld {path}, and put the file in its place")
    return path.open("rb")


def bytes_of(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file that others wrote. Raises StoreError as ``opened`` does, and beyond ``largest`` bytes."""
    with opened(path) as source:
        data = source.read(largest + 1)
    if len(data) > largest:
        raise StoreError(f"{path}: more than {largest} bytes, which no such file has", f"ls -lL {path}")
    return data


def parsed_json(text: str | bytes) -> Any:
    """The value of JSON that others wrote. Raises ValueError for anything else, and for more levels than Python reads:
    near a thousand; a record has a dozen."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def record_json(text: str) -> Any:
    """As ``parsed_json``, of a record: ValueError for a key that stands twice and for NaN and Infinity, too."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a dict; two readers may choose two values of a key that stands twice."""
    if len(made := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it states {next(name for name in names if names.count(name) > 1)!r} twice")
    return made


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def record_of_file(data: bytes) -> Any:
    """The value of a record's bytes, which are UTF-8 and JSON as ``record_bytes`` writes it. ValueError for others.

    So a record has one reading: no key twice, no mark before it, no CRLF, no number that is not finite.
    """
    text = data.decode()
    value = parsed_json(text)
    try:
        plain = json.dumps(value, sort_keys=True, separators=(",", ": "), allow_nan=False)
    except ValueError as error:
        raise ValueError("it states a number that is not finite") from error
    if INDENT.sub("", text) != plain:
        record_json(text)  # names the key that stands twice
        raise ValueError("it is not as it was written: keys in order, a space a level, LF at each line's end")
    return value


def record_bytes(value: Any) -> bytes:
    """A record as JSON: keys in order, a space a level, LF at each line's end. ValueError for NaN and infinities."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def file_sha256(path: Path) -> str:
    with opened(path) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """sha256 of a JSON value, independent of key order and white space."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` with its suffixes. It replaces ``path``, or goes if the block raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix="".join(path.suffixes))
    except OSError as error:
        error.filename = str(path.parent)  # there is no temporary file to look at
        raise
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        as_usual(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def as_usual(path: Path) -> None:
    """Give a file that was made as a temporary one, for its owner alone, the mode of one made by ``open``."""
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old file or the new one and nothing between."""
    with replacing(path) as scratch:
        scratch.write_bytes(data)


@contextlib.contextmanager
def scratch_folder(parent: Path, mark: str = "") -> Iterator[Path]:
    """A temporary folder in ``parent``, removed at the end. Folders of this ``mark`` from killed processes go first."""
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f".tmp-*-{mark}*"):
        owner = stale.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f".tmp-{os.getpid()}-{mark}"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A temporary folder where this host has them, removed at the end. Those that killed processes left go first.

    A living process holds its folder's lock, which other containers that share the place see too.
    """
    for stale in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        if (lock := _locked(stale)) is not None:
            shutil.rmtree(stale, ignore_errors=True)
            os.close(lock)
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        lock = _locked(scratch)
        if lock is not None and scratch.is_dir():  # or another process took it for a dead one's
            break
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int | None:
    """The folder, open and locked; None if another process holds its lock, or it is gone or another user's."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(handle).st_uid == os.getuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def swap(new: Path, out: Path, old: Path) -> None:
    """Move ``out`` to ``old`` and ``new`` to ``out``. Move ``old`` back if this fails."""
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise
