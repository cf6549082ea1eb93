"""A stack's lock, model/patches.lock for one: the upstream files that its patches change, with digests of both."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import StringConstraints, ValidationError

from model.patched import overlay
from model.patched.overlay import Overlay
from model.patched.stacks import Stack
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import file_sha256
from reproducers.record import schema
from reproducers.record.schema import GitSha, Model, Sha256
from reproducers.upstream.merging import Applied
from reproducers.upstream.store import Store, Tree, tree_files

HEADER = "# Generated from packs/ and manifest.yaml by `{}`. Never edit.\n"
Image = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}|absent)$")]


class Release(Model):
    """A release or commit of upstream. ``sources`` digests its .py files, the same in the wheels of every Python."""

    release: str | None = None
    sha: GitSha | None = None
    sources: Sha256


class FileImages(Model):
    """sha256 of a file before and after one pack's patch alone."""

    before: Image
    after: Image


class LockedPack(Model):
    """A pack's part: its patch for the stack, and each file before and after it."""

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
    """A pack's entry, made from its patch."""
    files = {name: FileImages(before=before, after=after) for name, (before, after) in applied.images.items()}
    upstream = applied.pack.upstream.distribution
    return LockedPack(title=applied.pack.title, distribution=upstream, patch=file_sha256(applied.patch), files=files)


def of(built: Overlay) -> Lock:
    """The lock that an overlay's stack and packs give."""
    code = built.stack.code
    stack = {
        name: Release(release=code[name].release, sha=code[name].sha, sources=sources_digest(tree))
        for name, tree in built.pristine.items()
    }
    return Lock(stack=stack, packs={applied.pack.id: locked(applied) for applied in built.packs})


def current(store: Store, stack: Stack, clone: Path | None = None) -> Lock:
    """The lock of the packs that ``--patches all`` takes. Raises PatchlaneError if one of them is not validated."""
    return of(overlay.build(store, overlay.chosen("all", stack=stack), "cpu", stack, clone))


def write_command(stack: Stack) -> str:
    """The command that makes the stack's lock anew."""
    return f"python -m model.lock write {stack.option}".strip()


def render(lock: Lock, stack: Stack) -> str:
    content = lock.model_dump(mode="json", exclude_none=True)
    return HEADER.format(write_command(stack)) + yaml.safe_dump(content, sort_keys=False, width=120)


def read(stack: Stack, path: Path | None = None) -> Lock:
    """The stack's committed lock, or the one at ``path``. PatchlaneError, naming file, line and field, if it is bad."""
    path = path or stack.lock
    text, data = schema.read_yaml(path)
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        raise PatchlaneError(str(schema.explain(path, text, error).what), write_command(stack)) from error


def differences(old: Lock, new: Lock) -> list[str]:
    """Each entry that differs in two locks, with pack, file and both values."""
    flat = [_flat(lock) for lock in (old, new)]
    names = sorted(set(flat[0]) | set(flat[1]))
    pairs = [(name, *(side.get(name, "nothing") for side in flat)) for name in names]
    return [f"{name}: {before} and {after}" for name, before, after in pairs if before != after]


def _flat(lock: Lock) -> dict[str, str]:
    rows = {f"{name} {field}": str(value) for name, entry in lock.stack.items() for field, value in entry if value}
    for name, pack in lock.packs.items():
        rows[f"{name} fix.patch"] = pack.patch
        for file, images in pack.files.items():
            rows |= {f"{name} {file} before": images.before, f"{name} {file} after": images.after}
    return rows
