"""Carried patches as they are kept: ``INTO/QUEUE/NN_SLUG/`` with ``carry.yaml`` and ``carried.patch``, theirs.

An entry owes no reproducer, no receipt and no claim: it says whose patch it is and which tree it was made for.
"""

from __future__ import annotations

import re
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of, within
from reproducers.carried.patches import mails
from reproducers.carried.patches.diffs import Diff, Remark
from reproducers.carried.patches.reader import parse
from reproducers.record.schema import ROOT, Folder, GitSha, Model, explain, read_yaml

FOLDER = ROOT / "carried"
RECORD, PATCH = "carry.yaml", "carried.patch"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")  # of a queue


class Base(Model):
    """The tree that a queue was made for: a release of the distribution, a commit, or a release with its commit."""

    release: str | None = None
    sha: GitSha | None = None

    @model_validator(mode="after")
    def _named(self) -> Base:
        if self.release is None and self.sha is None:
            raise ValueError("a base needs a release or a 40-hex sha")
        return self

    def __str__(self) -> str:
        return self.release or str(self.sha)


class Upstream(Model):
    """The repository that the patch changes, its distribution on the package index, and the folder of its packages."""

    repo: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    distribution: str
    source_root: Folder = "."


class Carried(Model):
    """One patch of a team's own queue. ``folder`` holds its files.

    ``origin`` is theirs: a URL if they gave one. ``subject``, ``author`` and ``upstream_status`` are the patch's own
    words. ``source`` is the file that it was given in, ``part`` the one changed file that the entry is of, ``strip``
    git's -p. ``functions``: {"path:qualified name": the digests before and after} of the Python that it changes, None
    where there is no such function.
    """

    schema_version: Literal[1] = 1
    kind: Literal["carry"] = "carry"
    upstream: Upstream
    base: Base
    origin: str = "theirs"
    subject: str
    author: str = ""
    upstream_status: str = ""
    source: str
    part: str | None = None
    strip: int | None = None
    functions: dict[str, tuple[str | None, str | None]] = Field(default={})
    folder: Path = Field(exclude=True)

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def patch(self) -> Path:
        return self.folder / PATCH

    @cached_property
    def given(self) -> mails.Given:
        """The patch as it was given."""
        return mails.Given(self.source, bytes_of(self.patch), self.strip, self.part)

    @cached_property
    def diff(self) -> Diff:
        """Its files, by their paths in the repository. PatchlaneError with the line for what is no patch."""
        return parse(mails.body(self.given.data), str(self.patch), self.strip)

    @property
    def text(self) -> str:
        """The record as it is kept."""
        record = {"schema_version": 1, "kind": "carry"} | self.model_dump(mode="json", exclude_defaults=True)
        return yaml.safe_dump(record, sort_keys=False, width=1000, allow_unicode=True)

    @property
    def remarks(self) -> list[Remark]:
        return mails.remarks(self.given, self.diff)


def is_queue(name: str) -> bool:
    """Whether an argument names a carried queue or entry, not a pack: a folder, or a queue under ``carried/``."""
    return Path(name).is_dir() or (not re.fullmatch(r"(?:pack)?\d+", name) and (FOLDER / name).is_dir())


def load(name: str) -> list[Carried]:
    """The entries of a queue, or the one of an entry's folder, in order. PatchlaneError with every fault of any."""
    folder = Path(name) if Path(name).is_dir() else FOLDER / name
    if (folder / RECORD).is_file():
        return [_loaded(folder)]
    folders = sorted((path.parent for path in folder.glob(f"*/{RECORD}")), key=lambda path: (_number(path), path.name))
    if not folders:
        raise PatchlaneError(
            f"{folder} holds no carried patch", "patchlane import PATCH... --upstream OWNER/NAME --base X"
        )
    entries = [_loaded(path) for path in folders]
    if len({(entry.upstream, entry.base) for entry in entries}) > 1:
        raise PatchlaneError(
            f"{folder}: its patches are of several upstreams or bases", "import them as queues of their own"
        )
    return entries


def _number(folder: Path) -> int:
    match = re.match(r"\d+", folder.name)
    return int(match[0]) if match else 0


def _loaded(folder: Path) -> Carried:
    text, values = read_yaml(folder / RECORD)
    try:
        return Carried.model_validate({**(values if isinstance(values, dict) else {}), "folder": folder})
    except ValidationError as error:
        raise explain(folder / RECORD, text, error) from error


def write(into: Path, queue: str, entries: list[tuple[mails.Given, Carried]]) -> list[Carried]:
    """Write a queue, whole or not at all. PatchlaneError where one of that name is, or the folder refuses it."""
    folder = within(into, queue, NAME)
    if folder.exists():
        raise PatchlaneError(f"{folder} is there already", f"--queue another name, or rm -r {folder}")
    remedy = "make room there, or --into another folder"
    with (
        disk.writing(disk.usable_folder(into, remedy), remedy),
        tempfile.TemporaryDirectory(dir=into, prefix=".new-") as scratch,
    ):
        made = Path(scratch) / queue
        for given, entry in entries:
            inner = made / entry.id
            inner.mkdir(parents=True)
            (inner / PATCH).write_bytes(given.data)
            (inner / RECORD).write_text(entry.text, encoding="utf-8")
        made.rename(folder)
    return load(str(folder))


def slug(text: str) -> str:
    """The words of a text that a folder's name may have."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:48].rstrip("_") or "patch"
