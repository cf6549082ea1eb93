"""Digests of files, and files and folders that appear whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def file_sha256(path: Path) -> str:
    with path.open("rb") as source:
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


def source(path: Path, largest: int) -> bytes:
    """The content of a regular file of at most ``largest`` bytes. OSError for any other, which is not read.

    A FIFO or a device is opened without waiting for what it has.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        if seen.st_size > largest:
            raise OSError(errno.EFBIG, f"{seen.st_size:,} bytes, which no such file has", str(path))
        return os.read(handle, seen.st_size)
    finally:
        os.close(handle)
