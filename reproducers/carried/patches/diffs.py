"""A patch that somebody else wrote, byte for byte, as ``git apply`` reads it: files, hunks, and where each stands.

``upstream.patching`` refuses what a pack's fix may not hold (modes, binaries, words that deceive the probe) and reads
text; here nothing of a patch is changed or left out, in whatever encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

LINKS = {"120000", "160000"}  # modes of a link and of a submodule


class Remark(NamedTuple):
    """What a reader of a patch has to know of one of its lines, 1-based."""

    line: int
    what: str


@dataclass(frozen=True)
class Hunk:
    """A hunk: its number in its file, its line in the patch, the lines it begins at before and after, its rows.

    A row is its sign and its text with the line's end, which the last line of a file may lack.
    """

    number: int
    line: int
    old: int
    new: int
    rows: tuple[tuple[str, bytes], ...]

    @property
    def before(self) -> list[bytes]:
        return [text for sign, text in self.rows if sign != "+"]

    @property
    def after(self) -> list[bytes]:
        return [text for sign, text in self.rows if sign != "-"]

    @property
    def trailing(self) -> bool:
        """Whether it ends in context."""
        return bool(self.rows) and self.rows[-1][0] == " "


@dataclass(frozen=True, eq=False)
class FileDiff:
    """What a patch does to one file. ``source`` and ``target`` are paths of the repository, None where there is none.

    ``line`` is where it begins in the patch, ``raw`` its bytes. ``blobs`` are the beginnings of git's SHAs before and
    after, ``modes`` those it states. ``binary`` has no hunks.
    """

    source: str | None
    target: str | None
    line: int
    raw: bytes
    hunks: tuple[Hunk, ...] = ()
    blobs: tuple[str, str] | None = None
    modes: tuple[str, ...] = ()
    binary: bool = False
    copied: bool = False

    @property
    def path(self) -> str:
        return self.target or self.source or ""

    @property
    def renamed(self) -> bool:
        return bool(self.source and self.target and self.source != self.target and not self.copied)


@dataclass(frozen=True)
class Diff:
    """The files of a patch, what has to be known of its lines, and where the first file begins, in bytes."""

    files: tuple[FileDiff, ...]
    remarks: tuple[Remark, ...]
    start: int
