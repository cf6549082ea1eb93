"""The upstream store: a content-addressed, locked, atomic cache of artefacts and unpacked trees.

``artifacts/SHA256/FILE``, ``trees/KEY/`` with ``trees/KEY.json`` (its content digest), ``patched/KEY/`` and, for what
this host compiled, ``built/KEY/``. A tree appears by rename, so a killed process leaves at most a temporary folder,
which the next run removes. No network is used when ``offline`` is set (``--offline`` or PATCHLANE_OFFLINE=1).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from reproducers import archive, index
from reproducers.errors import CannotTestHere, StoreError

LOCK_TIMEOUT_S = 900
SKIPPED = {".git", "__pycache__"}


@dataclass(frozen=True)
class Tree:
    """An unpacked upstream tree: where, the digest of all its files, and how it was named."""

    path: Path
    digest: str
    label: str


def file_sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def tree_digest(root: Path) -> str:
    """sha256 over every file's relative path, executable bit and content; independent of time and owner."""
    digest = hashlib.sha256()
    for name, path in tree_files(root):
        content = str(path.readlink()) if path.is_symlink() else file_sha256(path)
        executable = not path.is_symlink() and bool(path.stat().st_mode & 0o100)
        digest.update(f"{name}\0{int(executable)}\0{content}\n".encode())
    return digest.hexdigest()


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


def swap(new: Path, out: Path, old: Path) -> None:
    """Put ``new`` in the place of ``out``, which goes to ``old`` and comes back when that fails."""
    if out.exists():
        out.rename(old)
    try:
        new.rename(out)
    except BaseException:
        if old.exists():
            old.rename(out)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write so that a reader, or a kill at any moment, sees the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


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
        for name in ("artifacts", "trees", "patched", "built", "locks"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        with FileLock(self.root / "locks" / f"{key}.lock", timeout=LOCK_TIMEOUT_S):
            yield

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
            with _scratch(path.parent) as scratch:
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
        """The unpacked tree of one wheel or sdist."""
        label = f"{distribution} {release}"

        def fill(target: Path) -> None:
            archive.unpack(self.artifact(distribution, filename, sha256), target)

        return self.tree("trees", sha256, label, fill)

    def tree(self, area: str, key: str, label: str, fill: Callable[[Path], None]) -> Tree:
        """The tree named ``key``, made by ``fill(empty folder)`` when absent; its content digest is checked."""
        path, record = self.root / area / key, self.root / area / f"{key}.json"
        with self.lock(f"{area}-{key}"):
            if path.is_dir() and record.exists():
                digest = json.loads(record.read_text())["digest"]
                if tree_digest(path) == digest:
                    return Tree(path, digest, label)
            record.unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
            with _scratch(path.parent) as scratch:
                inner = scratch / "tree"
                inner.mkdir()
                fill(inner)
                digest = tree_digest(inner)
                write_atomic(record, json.dumps({"digest": digest, "label": label}).encode())
                inner.replace(path)
        return Tree(path, digest, label)


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A temporary folder beside its destination; folders that a killed process left are removed first."""
    for stale in parent.glob(".tmp-*"):
        owner = stale.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f".tmp-{os.getpid()}-"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
