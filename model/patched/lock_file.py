"""model/patches.lock: the upstream files that the training patches change, with digests before and after."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import StringConstraints, ValidationError

from model.patched import overlay
from model.patched.overlay import Overlay
from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256
from reproducers.record import schema
from reproducers.record.schema import Model, Sha256
from reproducers.upstream import merging
from reproducers.upstream.merging import Applied
from reproducers.upstream.store import Store, Tree, tree_files

LOCK = Path(__file__).parents[1] / "patches.lock"
HEADER = "# Generated from packs/ and manifest.yaml by `python -m model.lock write`. Never edit.\n"
WRITE = "python -m model.lock write"
Image = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}|absent)$")]


class Release(Model):
    """A pinned upstream release. ``sources`` digests its .py files, the same in the wheels of every Python."""

    release: str
    sources: Sha256


class FileImages(Model):
    """sha256 of a file before and after one pack's patch alone."""

    before: Image
    after: Image


class LockedPack(Model):
    """A pack's part: its fix.patch, and each file before and after it."""

    title: str
    distribution: str
    patch: Sha256
    files: dict[str, FileImages]


class Lock(Model):
    """The releases and packs to train on."""

    schema_version: Literal[1] = 1
    stack: dict[str, Release]
    packs: dict[str, LockedPack]


def sources_digest(tree: Tree) -> str:
    """sha256 over the relative path and content of every .py file."""
    rows = [f"{name}\0{file_sha256(path)}\n" for name, path in tree_files(tree.path) if name.endswith(".py")]
    return hashlib.sha256("".join(rows).encode()).hexdigest()


def locked(applied: Applied) -> LockedPack:
    """A pack's entry, made from its patch and the trees on disk."""
    files = {
        name: FileImages(before=before, after=merging.image(applied.tree.path, name))
        for name, (before, _) in applied.images.items()
    }
    upstream = applied.pack.upstream.distribution
    return LockedPack(
        title=applied.pack.title, distribution=upstream, patch=file_sha256(applied.pack.patch), files=files
    )


def of(built: Overlay) -> Lock:
    """The lock that an overlay's stack and packs give."""
    stack = {
        name: Release(release=overlay.STACK[name], sources=sources_digest(tree))
        for name, tree in built.pristine.items()
    }
    return Lock(stack=stack, packs={applied.pack.id: locked(applied) for applied in built.packs})


def current(store: Store) -> Lock:
    """The lock of the packs that ``--patches all`` takes. Raises PatchlaneError if one of them is not validated."""
    return of(overlay.build(store, overlay.chosen("all"), "cpu"))


def render(lock: Lock) -> str:
    return HEADER + yaml.safe_dump(lock.model_dump(mode="json"), sort_keys=False, width=120)


def read(path: Path | None = None) -> Lock:
    """The committed lock, or the lock at ``path``. Raises PatchlaneError, naming file, line and field, if it is bad."""
    path = path or LOCK
    text, data = schema.read_yaml(path)
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        raise PatchlaneError(str(schema.explain(path, text, error).what), WRITE) from error


def differences(old: Lock, new: Lock) -> list[str]:
    """Each entry that differs in two locks, with pack, file and both values."""
    flat = [_flat(lock) for lock in (old, new)]
    names = sorted(set(flat[0]) | set(flat[1]))
    pairs = [(name, *(side.get(name, "nothing") for side in flat)) for name in names]
    return [f"{name}: {before} and {after}" for name, before, after in pairs if before != after]


def _flat(lock: Lock) -> dict[str, str]:
    rows = {f"{name} {field}": str(value) for name, entry in lock.stack.items() for field, value in entry}
    for name, pack in lock.packs.items():
        rows[f"{name} fix.patch"] = pack.patch
        for file, images in pack.files.items():
            rows |= {f"{name} {file} before": images.before, f"{name} {file} after": images.after}
    return rows
