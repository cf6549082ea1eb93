"""The upstream store: a content-addressed, locked, atomic cache of artefacts and unpacked trees.

``artifacts/SHA256/FILE``, ``trees/KEY/`` with ``trees/KEY.json`` (its content digest), ``patched/KEY/`` and, for what
this host compiled, ``built/KEY/``. A tree appears by rename, so a killed process leaves at most a temporary folder,
which the next run removes. No network is used when ``offline`` is set (``--offline`` or PATCHLANE_OFFLINE=1).

What is trusted: a release's tree is compared with its artefact, whose digest the pin states, wherever the store holds
it; a commit's tree with the commit's own SHA (``git.py``). Trees made of others (needs, patched, built)
and those that a bundle brought are compared with the record beside them, which whoever can write the store can forge.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from reproducers.base import disk
from reproducers.base.errors import CannotTestHere, PatchlaneError, StoreError
from reproducers.base.files import file_sha256, scratch_folder, write_atomic
from reproducers.record.origin import Origin
from reproducers.upstream import archive, index

LOCK_TIMEOUT_S = 900
KEPT_DAYS = 30
INTERPRETER = "interpreter"  # the folder of bytecode that all trees share
SKIPPED = {".git", "__pycache__"}
Fill = Callable[[Path], object]


@dataclass(frozen=True)
class Tree:
    """An unpacked upstream tree: where, the digest of all its files, and what it is."""

    path: Path
    digest: str
    origin: Origin


def tree_digest(root: Path) -> str:
    """sha256 over every file's relative path, executable bit and content; independent of time and owner."""
    return _digest_of(_entry(name, path) for name, path in tree_files(root))


def _entry(name: str, path: Path) -> tuple[str, bool, str]:
    if path.is_symlink():
        return name, False, str(path.readlink())
    return name, bool(path.stat().st_mode & 0o100), file_sha256(path)


def _digest_of(entries: Iterable[tuple[str, bool, str]]) -> str:
    digest = hashlib.sha256()
    for name, executable, content in entries:
        digest.update(f"{name}\0{int(executable)}\0{content}\n".encode())
    return digest.hexdigest()


def wheel_digest(wheel: Path) -> str:
    """The ``tree_digest`` of a wheel once unpacked, read from the wheel alone."""
    entries = sorted((entry[0].split("/"), entry) for entry in archive.wheel_files(wheel))
    return _digest_of(entry for parts, entry in entries if SKIPPED.isdisjoint(parts))


def tree_files(root: Path) -> list[tuple[str, Path]]:
    """(relative path, path) of every file and link, by folder; version control and bytecode left out."""
    found = []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        below = here.relative_to(root).parts
        names = [*files, *(name for name in folders if (here / name).is_symlink())]
        folders[:] = [name for name in folders if name not in SKIPPED]
        found += [((*below, name), here / name) for name in names if name not in SKIPPED]
    return [("/".join(parts), path) for parts, path in sorted(found)]


def no_progress(name: str, done: int, size: int) -> None:
    """The default progress sink: silence."""


class Store:
    def __init__(
        self, root: Path | None = None, *, offline: bool | None = None, progress: index.Progress = no_progress
    ) -> None:
        configured = os.environ.get("PATCHLANE_STORE")
        self.root = (root or Path(configured or user_cache_path("patchlane"))).resolve()
        self.offline = os.environ.get("PATCHLANE_OFFLINE") == "1" if offline is None else offline
        self.progress = progress
        try:
            for name in ("artifacts", "trees", "patched", "built", "locks", "cache/bytecode"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PatchlaneError(f"store {self.root}: {error.strerror}", disk.STORE_REMEDY) from error
        self._prune()

    def _prune(self) -> None:
        """Remove patched trees and bytecode that nobody has used for a month: every edit of a patch makes another."""
        oldest = time.time() - KEPT_DAYS * 86400
        for note in (self.root / "patched").glob("*.json"):
            if _mtime(note) < oldest:
                note.unlink(missing_ok=True)
                shutil.rmtree(note.with_suffix(""), ignore_errors=True)
        for folder in (self.root / "cache" / "bytecode").iterdir():
            if _mtime(folder) < oldest and folder.name != INTERPRETER:
                shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Held within; what this host refuses there (no room, no permission) is a PatchlaneError with the remedy."""
        lock = FileLock(self.root / "locks" / f"{key}.lock", timeout=LOCK_TIMEOUT_S)
        with disk.writing(self.root, disk.STORE_REMEDY):
            try:
                lock.acquire()
            except Timeout as error:
                raise StoreError(
                    f"another process has held {lock.lock_file} for {LOCK_TIMEOUT_S} s", "run again"
                ) from error
            try:
                yield
            finally:
                lock.release()

    def artifact(self, distribution: str, filename: str, sha256: str) -> Path:
        """The artefact's path, fetched if absent. StoreError when the bytes do not have the pinned digest."""
        path = self.root / "artifacts" / sha256 / filename
        with self.lock(sha256):
            if path.exists() and file_sha256(path) == sha256:
                return path
            if self.offline:
                raise CannotTestHere(
                    f"{filename} is not in the store and the run is offline",
                    "run once without --offline, or: python -m reproducers.bundle install PART...",
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            with scratch_folder(path.parent) as scratch:
                fetched = scratch / filename
                index.download(distribution, filename, fetched, self.progress)
                found = file_sha256(fetched)
                if found != sha256:
                    raise StoreError(
                        f"{filename}: sha256 is {found}, pinned is {sha256}", "do not trust this index; check the pin"
                    )
                fetched.replace(path)
        return path

    def release_tree(self, distribution: str, release: str, filename: str, sha256: str) -> Tree:
        """The unpacked tree of one wheel or sdist; as the artefact has it, where the store holds the artefact."""

        def fill(target: Path) -> None:
            archive.unpack(self.artifact(distribution, filename, sha256), target)

        def proved(path: Path, record: dict[str, Any]) -> bool:
            source = self.root / "artifacts" / sha256 / filename
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
        """The tree named ``key``, made by ``fill(empty folder)`` when absent.

        Its content digest is checked, and by ``proved(folder, record)`` whatever else can be known of it; a tree that
        fails is made anew. A dictionary that ``fill`` returns is kept in the record.
        """
        path = self.root / area / key
        note = _record_file(path)
        with self.lock(f"{area}-{key}"):
            known = record(path)
            if path.is_dir() and known and tree_digest(path) == known["digest"] and proved(path, known):
                with contextlib.suppress(OSError):  # a store that can only be read serves too
                    os.utime(note)
                return Tree(path, known["digest"], origin)
            note.unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            with scratch_folder(path.parent) as scratch:
                inner = scratch / "tree"
                inner.mkdir()
                more = fill(inner)
                digest = tree_digest(inner)
                kept = {**(more if isinstance(more, dict) else {}), "digest": digest, "label": str(origin)}
                write_atomic(note, json.dumps(kept).encode())
                inner.replace(path)
        return Tree(path, digest, origin)


class Seal:
    """Trees as they are now, to tell later whether what ran beside them has changed one."""

    def __init__(self, trees: Iterable[Tree]) -> None:
        self.trees = {tree: _signature(tree.path) for tree in trees}

    def broken(self) -> Tree | None:
        """A tree that was changed since; its next use makes it anew, and no bytecode is left that could be of it."""
        for tree, signature in self.trees.items():
            if _signature(tree.path) != signature and not (
                tree.path.is_dir() and tree_digest(tree.path) == tree.digest
            ):
                _record_file(tree.path).unlink(missing_ok=True)
                for folder in tree.path.parents[1].glob("cache/bytecode/*"):
                    shutil.rmtree(folder, ignore_errors=True)
                return tree
        return None


def _signature(root: Path) -> str:
    """Names, sizes, times and inodes of all that is under ``root``: cheap, and different after any change."""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            try:
                seen = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:  # another process makes the tree anew
                continue
            digest.update(
                f"{folder}/{name} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}\n".encode()
            )
    return digest.hexdigest()


def _record_file(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.json")


def record(tree: Path) -> dict[str, Any]:
    """The record of the store's tree at that path: its digest, label and what proves it; empty when there is none."""
    try:
        found = json.loads(_record_file(tree).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) and "digest" in found else {}


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _unpacked_digest(artefact: Path) -> str:
    """The ``tree_digest`` that an artefact's tree has."""
    if artefact.suffix == ".whl":
        return wheel_digest(artefact)
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        archive.unpack(artefact, Path(scratch))
        return tree_digest(Path(scratch))
