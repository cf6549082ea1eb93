"""``packs/fingerprints.json``: which code has each pack's bug and which has not, and all else that the audit needs.

It is generated: ``python -m reproducers.audit --write``. A wheel carries it with the packs' patches.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from patchlane.base import place, records
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import astray, bytes_of, file_sha256, record_json

NAME = "fingerprints.json"
SCHEMA = 2
DIGEST, SHA256 = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
PATCH, FOLDER = re.compile(r"[\w.-]+\.patch"), re.compile(r"\d+_\w+")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
KnownState = Literal["buggy", "patched", "fixed"]
HARMS = ("wrong numbers", "crash", "memory", "slow", "trap")


@dataclass(frozen=True)
class KnownTree:
    """One tree of which receipts say whether it has the bug.

    ``name``: its release or commit, with the packs in it. ``patch``: of a patched tree the one in it, of a buggy one
    the one that mends it. ``beside``: releases that must be installed beside it, where only these decide.
    ``code``: {"path:qualified name": digest, None where the tree has no such function}; empty where no patch says which
    functions matter.
    """

    name: str
    state: KnownState
    release: str | None = None
    patch: str | None = None
    beside: dict[str, str] = field(default_factory=dict)
    code: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownPatch:
    """A file of the pack's folder: its sha256, and the paths below the import root that it changes."""

    sha256: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class KnownPack:
    """What is known of one pack; paths in ``code`` are below the import root, ``megatron/core/...``.

    ``folder``: its name beside this file; ``strip``: the ``-p`` of its patches for a folder of packages. ``added``: the
    day on which it came in. ``harm`` and ``effect``: what the bug does to a run, as a word and in one line, where the
    pack says it. ``sources``: upstream's threads of the bug.
    """

    title: str
    claim: str
    folder: str
    added: str
    distribution: str
    package: str
    repository: str
    strip: int
    trees: tuple[KnownTree, ...]
    harm: str | None = None
    effect: str | None = None
    sources: tuple[str, ...] = ()
    patches: dict[str, KnownPatch] = field(default_factory=dict)

    @property
    def functions(self) -> list[str]:
        """``path:qualified name`` of all that the pack's patches change."""
        return sorted({name for tree in self.trees for name in tree.code})

    def releases(self, state: KnownState) -> list[str]:
        """The releases of that state, in the file's order."""
        return [tree.release for tree in self.trees if tree.release and tree.state == state and not tree.beside]


@dataclass(frozen=True)
class Index:
    """The whole file: packs by id, and what all packs' pins tell of upstreams.

    ``date``: the day on which it last changed. ``repositories``: {"owner/name" in lower case: distribution};
    ``commits``: {distribution: {commit: the release that was cut from it}}.
    """

    schema_version: int
    date: str
    packs: dict[str, KnownPack]
    repositories: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return json.dumps(records.written(self), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Known:
    """An index, and the folder in which its packs' folders lie."""

    index: Index
    folder: Path = place.PACKS

    @property
    def packs(self) -> dict[str, KnownPack]:
        return self.index.packs

    def patch(self, pack: str, name: str) -> Path:
        return self.folder / self.packs[pack].folder / name

    def strange(self, pack: str, name: str) -> str:
        """What brings the patch that the index speaks of, where the file is missing or another one; "" where not."""
        path = self.patch(pack, name)
        if path.is_file() and file_sha256(path) == self.packs[pack].patches[name].sha256:
            return ""
        return f"{place.RENEW}: {path} is not the patch that the index speaks of"

    def only(self, packs: list[str]) -> Known:
        """The same of these packs alone, in their order; upstreams stay as they are."""
        return dataclasses.replace(
            self, index=dataclasses.replace(self.index, packs={pack: self.packs[pack] for pack in packs})
        )


def path_in(packs: Path | None = None) -> Path:
    """Where the file lies: beside the packs."""
    return (packs or place.PACKS) / NAME


def load(path: Path) -> Known:
    """The file's content, its packs beside it. PatchlaneError where it is missing, damaged or of another schema."""
    try:
        return Known(parsed(bytes_of(path), str(path), place.restore(path)), path.parent)
    except OSError as error:
        raise PatchlaneError(f"{path}: cannot be read ({error.strerror})", place.restore(path)) from error


def parsed(data: bytes, name: str, remedy: str) -> Index:
    """The index in the bytes of a file of this name. PatchlaneError, with this remedy, where it is none."""
    try:
        content = record_json(data.decode())
        version = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(content, dict) and version != SCHEMA:
            raise ValueError(f"schema_version: {version!r}, and this audit reads {SCHEMA}")
        index = records.read(Index, content)
        _check(index)
    except ValueError as error:
        raise PatchlaneError(f"{name}: {error}", remedy) from error
    return index


def _check(index: Index) -> None:
    """ValueError for a digest, date or name of another form: a name becomes a path."""
    _form(DAY, index.date, "date")
    for name, pack in index.packs.items():
        _form(FOLDER, pack.folder, f"packs.{name}.folder")
        _form(DAY, pack.added, f"packs.{name}.added")
        if pack.harm not in (None, *HARMS):
            raise ValueError(f"packs.{name}.harm: {pack.harm!r} is none of {', '.join(HARMS)}")
        for file, patch in pack.patches.items():
            _form(PATCH, file, f"packs.{name}.patches")
            _form(SHA256, patch.sha256, f"packs.{name}.patches.{file}.sha256")
            if why := next(filter(None, map(astray, patch.paths)), ""):
                raise ValueError(f"packs.{name}.patches.{file}.paths: one {why}")
        for number, tree in enumerate(pack.trees):
            for function, digest in tree.code.items():
                if digest is not None:
                    _form(DIGEST, digest, f"packs.{name}.trees.{number}.code.{function}")
            if tree.patch is not None and tree.patch not in pack.patches:
                raise ValueError(f"packs.{name}.trees.{number}.patch: {tree.patch!r} is not among its patches")


def _form(form: re.Pattern[str], value: str, where: str) -> None:
    if not form.fullmatch(value):
        raise ValueError(f"{where}: {value!r} is not of the form {form.pattern}")
