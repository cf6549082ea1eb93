"""What a file requires, line by line: each line is read, skipped with a reason, or named as not understood."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from patchlane.base.errors import PatchlaneError

SHOWN = 160  # characters of a line that are kept


@dataclass(frozen=True)
class Line:
    """A line (1-based) that requires nothing, or that is not understood, and why."""

    file: str
    line: int
    text: str
    why: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Required:
    """A line that requires a distribution.

    ``version``: the one version that satisfies the line, None where there are several or none is told. ``spec``: the
    version specifiers as they are written. ``ref``: the commit, tag or branch of ``repository``, "owner/name" on its
    host. ``marker``: the environments in which the line holds (PEP 508). ``constraint``: the line requires nothing, and
    limits what others require. ``why``: why no version is told.
    """

    name: str
    file: str
    line: int
    version: str | None = None
    spec: str = ""
    ref: str = ""
    repository: str = ""
    marker: str = ""
    constraint: bool = False
    why: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Reading:
    """What one file and the files that it names require.

    ``repositories``: {"owner/name" in lower case: distribution} of known upstreams. ``above``: the files that led here,
    this one last. ``opened`` reads a file that this one names. ``script``: its folders are those of where it runs;
    ``moved``: it has changed its folder; ``commands``: the texts of all of its commands. ``whole``: a lock or listing,
    which names what its entries require in turn, too.
    """

    file: Path
    repositories: dict[str, str] = field(default_factory=dict)
    opened: Callable[[Path, Reading], Reading] | None = None
    above: tuple[Path, ...] = ()
    constraint: bool = False
    script: bool = False
    moved: bool = False
    whole: bool = False
    commands: list[str] = field(default_factory=list)
    required: list[Required] = field(default_factory=list)
    skipped: list[Line] = field(default_factory=list)
    unread: list[Line] = field(default_factory=list)

    def require(self, line: int, name: str, **more: Any) -> None:
        """Add a line that requires a distribution; ``more``: further fields of ``Required``."""
        known = {"constraint": self.constraint} | more
        self.required.append(Required(str(canonicalize_name(name)), str(self.file), line, **known))

    def skip(self, line: int, text: str, why: str) -> None:
        self.skipped.append(Line(file=str(self.file), line=line, text=text.strip()[:SHOWN], why=why))

    def miss(self, line: int, text: str, why: str) -> None:
        self.unread.append(Line(file=str(self.file), line=line, text=text.strip()[:SHOWN], why=why))

    def take(self, other: Reading) -> None:
        """Add what another reading has."""
        self.required += other.required
        self.skipped += other.skipped
        self.unread += other.unread

    def follow(self, line: int, text: str, name: str, constraint: bool = False) -> None:
        """Read the file that this line names, relative to this file; a file that cannot be read is not understood."""
        try:
            path = self.file.parent / name
            if path.resolve() in self.above:
                return self.skip(line, text, "a file that is being read already")
            if self.opened is None or name == "-":
                raise PatchlaneError(f"{name}: not to be had here")
            part = self.opened(path, self)
        except (PatchlaneError, ValueError, OSError) as error:
            return self.miss(line, text, f"names another file: {getattr(error, 'what', error)}")
        if constraint:
            part.required = [replace(each, constraint=True) for each in part.required]
        self.take(part)
        return self.skip(line, text, f"read: {path}")

    def astray(self, name: str, text: str) -> str:
        """Why a file that a command of a script names may be another one when it runs than the one that is here."""
        if Path(name).is_absolute():
            return "a place on the host where this runs"
        if self.moved:
            return "relative to a folder that was changed before"
        if any(Path(name).name in other for other in self.commands if other != text):
            return "other commands name it, too, and may change it"
        return ""

    def upstream(self, text: str) -> bool:
        """Whether a text names a known upstream: its repository, its distribution or its package."""
        plain = re.sub(r"[-_.]+", "-", text.lower())
        names = {repository for repository in self.repositories}
        names |= {name for name in self.repositories.values()} | {name.rpartition("/")[2] for name in names}
        return any(re.sub(r"[-_.]+", "-", name) in plain for name in names - {"mamba"})  # conda's, too


def row(text: str, *parts: str) -> int:
    """The first line of ``text`` that has all parts, 1 where none has."""
    return next((n for n, line in enumerate(text.splitlines(), 1) if all(part in line for part in parts)), 1)
