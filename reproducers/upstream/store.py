"""The upstream store: a content-addressed, locked, atomic cache of artefacts and unpacked trees.

It holds ``artifacts/SHA256/FILE``, ``trees/KEY/`` with ``trees/KEY.json`` (its content digest), ``patched/KEY/`` and
``built/KEY/`` for trees that this host compiled. A tree appears by rename, so a killed process leaves at most a
temporary folder, which the next run removes. With ``offline`` (``--offline`` or PATCHLANE_OFFLINE=1) the store uses no
network.

Trust: the store compares a release's tree with its artefact, whose digest the pin states, if it has the artefact, and a
commit's tree with the commit's SHA (``git.py``). It compares trees made of others (needs, patched, built) and trees
from a bundle with the record beside them, which anyone who can write to the store can forge.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from patchlane.base import disk
from patchlane.base.errors import CannotTestHere, PatchlaneError, StoreError
from patchlane.base.files import (
    KEY,
    bytes_of,
    file_sha256,
    parsed_json,
    scratch_folder,
    temporary,
    within,
    write_atomic,
)
from reproducers.record.origin import Origin
from reproducers.upstream import archive, index

LOCK_TIMEOUT_S = 900
KEPT_DAYS = 30
INTERPRETER = "interpreter"  # the folder of bytecode that all trees share
SKIPPED = {".git", "__pycache__"}
WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
Fill = Callable[[Path], object]


@dataclass(frozen=True)
class Tree:
    """An unpacked upstream tree: its folder, the digest of all its files, and its origin."""

    path: Path
    digest: str
    origin: Origin


def tree_digest(root: Path) -> str:
    """sha256 over every file's relative path, executable bit and content. Times and owners do not count."""
    return _digest_of(_entry(name, path) for name, path in tree_files(root))


def _entry(name: str, path: Path) -> tuple[str, bool, str]:
    if path.is_symlink():
        return name, False, str(path.readlink())
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):  # a pipe would be waited for, a device read for ever
        return name, False, f"no file but of mode {mode:o}"
    return name, bool(mode & 0o100), file_sha256(path)


def _digest_of(entries: Iterable[tuple[str, bool, str]]) -> str:
    digest = hashlib.sha256()
    for name, executable, content in entries:
        digest.update(f"{name}\0{int(executable)}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def wheel_digest(wheel: Path) -> str:
    """The ``tree_digest`` that a wheel has once unpacked. Reads the wheel only."""
    entries = sorted((entry[0].split("/"), entry) for entry in archive.wheel_files(wheel))
    return _digest_of(entry for parts, entry in entries if SKIPPED.isdisjoint(parts))


def tree_files(root: Path) -> list[tuple[str, Path]]:
    """(relative path, path) of every file and link, sorted by folder, without version control and bytecode."""
    rows = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        below = here.relative_to(root).parts
        names = [*files, *(name for name in folders if (here / name).is_symlink())]
        folders[:] = [name for name in folders if name not in SKIPPED]
        rows += [((*below, name), here / name) for name in names if name not in SKIPPED]
    return [("/".join(parts), path) for parts, path in sorted(rows)]


def no_progress(name: str, done: int, size: int) -> None:
    """The default progress sink: it shows nothing."""


def writable(source: str, target: str) -> None:
    """``shutil.copytree``'s copy of a file that the owner may write, as those of the store are not."""
    shutil.copy2(source, target)
    path = Path(target)
    path.chmod(path.stat().st_mode | stat.S_IWUSR)


def _protect(root: Path) -> None:
    """Take the write bits of a tree's files, so that an arm that writes into one fails there. Root may write still."""
    for _, path in tree_files(root):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & WRITE and not path.is_symlink():
            path.chmod(mode & ~WRITE)


class Lease(NamedTuple):
    """A lock of the store, or why this host refuses it."""

    refused: OSError | None

    def must_write(self) -> None:
        """Raise the refusal, if there is one: without the lock nothing is written."""
        if self.refused:
            raise self.refused


def place() -> Path:
    """The folder of the store that the environment names, or the user's; nothing is made."""
    return Path(os.environ.get("PATCHLANE_STORE") or user_cache_path("patchlane")).resolve()


class Store:
    def __init__(
        self, root: Path | None = None, *, offline: bool | None = None, progress: index.Progress = no_progress
    ) -> None:
        self.root = root.resolve() if root else place()
        self.offline = os.environ.get("PATCHLANE_OFFLINE") == "1" if offline is None else offline
        self.progress = progress
        try:
            for name in ("artifacts", "trees", "patched", "built", "locks", "cache/bytecode"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PatchlaneError(f"store {self.root}: {error.strerror}", disk.STORE_REMEDY) from error
        self._prune()

    def _prune(self) -> None:
        """Remove patched trees and bytecode unused for a month: every edit of a patch makes new ones."""
        oldest = time.time() - KEPT_DAYS * 86400
        for note in (self.root / "patched").glob("*.json"):
            if _mtime(note) < oldest:
                with contextlib.suppress(OSError):
                    note.unlink()
                shutil.rmtree(note.with_suffix(""), ignore_errors=True)
        for folder in (self.root / "cache" / "bytecode").iterdir():
            if _mtime(folder) < oldest and folder.name != INTERPRETER:
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Lease]:
        """Hold the lock ``key``; a store that can only be read has none, for there digests are compared all the same.

        Raises PatchlaneError with the remedy if this host refuses a write inside.

        Raises StoreError if another process holds the lock for LOCK_TIMEOUT_S.
        """
        refused: OSError | None = None
        lock = FileLock(self.root / "locks" / f"{key}.lock", timeout=LOCK_TIMEOUT_S)
        with disk.writing(self.root, disk.STORE_REMEDY):
            try:
                lock.acquire()
            except Timeout as error:
                raise StoreError(
                    f"another process has held {lock.lock_file} for {LOCK_TIMEOUT_S} s", "run again"
                ) from error
            except OSError as error:
                if error.errno not in disk.READ_ONLY:
                    raise
                refused = error
            try:
                yield Lease(refused)
            finally:
                lock.release()

    def artifact(self, distribution: str, filename: str, sha256: str) -> Path:
        """The artefact's path, fetched if absent.

        Raises StoreError if the fetched bytes do not have the pinned digest, CannotTestHere if it is out of reach.
        """
        path = self._artifact(filename, sha256)
        with self.lock(sha256) as lease:
            if path.exists() and file_sha256(path) == sha256:
                return path
            if self.offline:
                raise CannotTestHere(
                    f"{filename} is not in the store and the run is offline",
                    index.BUNDLED,
                )
            lease.must_write()
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder(path.parent) as scratch:
                fetched = within(scratch, filename)
                index.download(distribution, filename, fetched, self.progress)
                actual = file_sha256(fetched)
                if actual != sha256:
                    raise StoreError(
                        f"{filename}: sha256 is {actual}, pinned is {sha256}", "do not trust this index; check the pin"
                    )
                fetched.replace(path)
        return path

    def has(self, filename: str, sha256: str) -> bool:
        """Whether the store has a release's file, or its tree, and need not fetch it."""
        return bool(record(within(self.root / "trees", sha256, KEY))) or self._artifact(filename, sha256).exists()

    def _artifact(self, filename: str, sha256: str) -> Path:
        return within(within(self.root / "artifacts", sha256, KEY), filename)

    def release_tree(self, distribution: str, release: str, filename: str, sha256: str) -> Tree:
        """The unpacked tree of one wheel or sdist, compared with the artefact if the store has it."""

        def fill(target: Path) -> None:
            archive.unpack(self.artifact(distribution, filename, sha256), target)

        def proved(path: Path, record: dict[str, Any]) -> bool:
            source = self._artifact(filename, sha256)
            if not source.exists() or file_sha256(source) != sha256:
                return True  # fetching it again would prove no more than filling the tree anew
            return _unpacked_digest(source) == str(record["digest"])

        origin = Origin(kind="release", distribution=distribution, release=release)
        return self.tree("trees", sha256, origin, fill, proved)

    def tree(
        self,
        area: str,
        key: str,
        origin: Origin,
        fill: Fill,
        proved: Callable[[Path, dict[str, Any]], bool] = lambda path, record: True,
    ) -> Tree:
        """The tree named ``key``, made by ``fill(empty folder)`` if absent.

        Checks the tree's content digest and ``proved(folder, record)``, and makes a tree that fails anew. The record
        keeps a dictionary that ``fill`` returns. Raises StoreError for a key that could name another folder.
        """
        path = within(self.root / area, key, KEY)
        note = _record_file(path)
        with self.lock(f"{area}-{key}") as lease:
            known = record(path)
            if path.is_dir() and known and tree_digest(path) == known["digest"] and proved(path, known):
                with contextlib.suppress(OSError):  # a store that can only be read serves too
                    os.utime(note)
                return Tree(path, known["digest"], origin)
            lease.must_write()
            note.unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            with scratch_folder(path.parent) as scratch:
                inner = scratch / "tree"
                inner.mkdir()
                proof = fill(inner)
                _protect(inner)
                digest = tree_digest(inner)
                kept = {**(proof if isinstance(proof, dict) else {}), "digest": digest, "label": str(origin)}
                write_atomic(note, json.dumps(kept).encode())
                inner.replace(path)
        return Tree(path, digest, origin)


class Seal:
    """Trees as they are now, to tell later whether a process has changed one."""

    def __init__(self, trees: Iterable[Tree]) -> None:
        self.trees = {tree: _stats(tree.path) for tree in trees}
        self.file = ""  # the first changed file of a broken tree, or folder where it has no file

    def broken(self) -> Tree | None:
        """A changed tree, None if there is none. Its next use makes it anew; its bytecode is removed.

        Contents are read only where a size, time, mode or inode differs.
        """
        for tree, before in self.trees.items():
            now = _stats(tree.path)
            if now != before and not (tree.path.is_dir() and tree_digest(tree.path) == tree.digest):
                changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
                files = [name for name in changed if not (tree.path / name).is_dir()]
                self.file = next(iter([*files, *changed]))
                if record(tree.path):
                    _record_file(tree.path).unlink(missing_ok=True)
                    for folder in tree.path.parents[1].glob("cache/bytecode/*"):
                        shutil.rmtree(folder, ignore_errors=True)
                return tree
        return None


def _stats(root: Path) -> dict[str, tuple[int, ...]]:
    """{relative path: size, times, inode, mode} of all under ``root``: cheap, and different after any change."""
    stats: dict[str, tuple[int, ...]] = {}
    start = len(f"{root}/")
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            try:
                seen = os.lstat(path := f"{folder}/{name}")
            except FileNotFoundError:  # another process makes the tree anew
                continue
            stats[path[start:]] = (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_mode)
    return stats


def _record_file(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.json")


def record(tree: Path) -> dict[str, Any]:
    """The record of the store's tree at this path: its digest, label and proof; empty if it has none."""
    try:
        kept = parsed_json(bytes_of(_record_file(tree)))
    except (FileNotFoundError, ValueError, StoreError):
        return {}
    return kept if isinstance(kept, dict) and "digest" in kept else {}


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _unpacked_digest(artefact: Path) -> str:
    """The ``tree_digest`` that an artefact's tree has."""
    if artefact.suffix == ".whl":
        return wheel_digest(artefact)
    with temporary() as scratch:
        archive.unpack(artefact, Path(scratch))
        return tree_digest(Path(scratch))
