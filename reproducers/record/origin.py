"""Where a tree comes from, as a record. Only this module spells the name of a pin's tree or a stored tree."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

WORDS = {"release": "", "commit": "git ", "folder": "folder ", "made": ""}


def readable(text: str) -> str:
    """The text with a question mark for each character that UTF-8 cannot write, such as a stray byte of a file name."""
    return text.encode("utf-8", "replace").decode()


class Origin(BaseModel):
    """A release, a commit, a folder as it stood, or a tree made of other trees; ``name`` names the last two.

    ``stacked_on``: packs whose patches are in it. ``dirty``: the commit's checkout had local changes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["release", "commit", "folder", "made"]
    distribution: str | None = None
    release: str | None = None
    sha: str | None = None
    name: str | None = None
    stacked_on: tuple[int, ...] = ()
    dirty: bool = False

    @property
    def key(self) -> str:
        """The manifest's key of the tree: its release, commit or name, with the packs in it."""
        return (self.release or self.sha or str(self.name)) + "".join(f" + {number:02d}" for number in self.stacked_on)

    def __str__(self) -> str:
        before = f"{self.distribution} " if self.distribution else ""
        return f"{before}{WORDS[self.kind]}{self.key}{' (dirty)' if self.dirty else ''}"

    def of(self, distribution: str | None) -> Origin:
        """This origin with another distribution, or with none."""
        return self.model_copy(update={"distribution": distribution})

    def on(self, number: int) -> Origin:
        """This origin with one more pack's patch in it."""
        return self.model_copy(update={"stacked_on": (*self.stacked_on, number)})
