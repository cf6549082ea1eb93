"""Where a tree comes from, as a record. Only this module spells the name of a pin's tree or a stored tree."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

WORDS = {"release": "", "commit": "git ", "folder": "folder ", "made": ""}


def readable(text: str) -> str:
    """The text with a question mark for each character that UTF-8 cannot write, such as a stray byte of a file name."""
    return text.encode("utf-8", "replace").decode()


class File(BaseModel):
    """A file by its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str


class Built(BaseModel):
    """How a commit's tree was built: a command that ran in a copy of it and only added files.

    ``files``: those that the command names. ``source``: the digest of the commit's own tree.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    files: tuple[File, ...] = ()
    source: str


class Origin(BaseModel):
    """A release, a commit, a folder as it stood, or a tree made of other trees; ``name`` names the last two.

    ``stacked_on``: packs whose patches are in it. ``dirty``: the commit's checkout had local changes. ``built``: the
    tree has more files than its commit, and who made them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["release", "commit", "folder", "made"]
    distribution: str | None = None
    release: str | None = None
    sha: str | None = None
    name: str | None = None
    stacked_on: tuple[int, ...] = ()
    dirty: bool = False
    built: Built | None = None

    @property
    def key(self) -> str:
        """The manifest's key of the tree: its release, commit or name, with the packs in it."""
        named = (self.release or self.sha or str(self.name)) + (" (built)" if self.built else "")
        return named + "".join(f" + {number:02d}" for number in self.stacked_on)

    def __str__(self) -> str:
        before = f"{self.distribution} " if self.distribution else ""
        return f"{before}{WORDS[self.kind]}{self.key}{' (dirty)' if self.dirty else ''}"

    def of(self, distribution: str | None) -> Origin:
        """This origin with another distribution, or with none."""
        return self.model_copy(update={"distribution": distribution})

    def built_by(self, built: Built) -> Origin:
        """This origin with the files that a build added."""
        return self.model_copy(update={"built": built})

    @property
    def unbuilt(self) -> Origin:
        """This origin as it was before a build."""
        return self.model_copy(update={"built": None})

    def on(self, number: int) -> Origin:
        """This origin with one more pack's patch in it."""
        return self.model_copy(update={"stacked_on": (*self.stacked_on, number)})
