"""The header that is committed above a pack's diff: ``Field: value`` lines, then an optional description."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from patchlane.base.errors import PatchlaneError

FIELD = re.compile(r"^([A-Z][A-Za-z]*(?:-[A-Za-z]+)*):[ \t]+(\S.*?)[ \t]*$")
START = re.compile(rb"^(?:diff --git |--- )", re.M)


@dataclass(frozen=True)
class ShortHeader:
    """The fields above a diff, the line of each, the paragraphs of the description, and the diff as committed."""

    path: Path
    fields: dict[str, str]
    lines: dict[str, int]
    description: list[str]
    diff: bytes

    def field(self, name: str) -> str:
        """A field's value; PatchlaneError if the header lacks it."""
        if name not in self.fields:
            raise PatchlaneError(f"{self._place}:1: the header has no {name}", f'write "{name}: ..." above the diff')
        return self.fields[name]

    @property
    def _place(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"


@dataclass(frozen=True)
class StrayLine:
    """A line of a short header that is no field, or repeats one."""

    line: int
    what: str
    remedy: str


def scan(path: Path) -> tuple[ShortHeader, list[StrayLine]]:
    """The short header of a committed patch and its stray lines; PatchlaneError if no diff follows.

    The fields end at the first empty line; the text from there to the diff is the description, by paragraphs.
    """
    data = path.read_bytes()
    start = START.search(data)
    if start is None:
        raise PatchlaneError(f"{path.parent.name}/{path.name}: no diff", "regenerate it with git diff")
    head, _, rest = data[: start.start()].decode(errors="replace").partition("\n\n")
    fields, lines, strays = dict[str, str](), dict[str, int](), list[StrayLine]()
    for number, line in enumerate(head.splitlines(), 1):
        match = FIELD.match(line)
        if match is None:
            strays.append(StrayLine(number, f"{line!r} is no field", 'write "Field: value", one a line'))
        elif match[1] in fields:
            strays.append(StrayLine(number, f"{match[1]} comes twice", "keep one of them"))
        else:
            fields[match[1]], lines[match[1]] = match[2], number
    paragraphs = [" ".join(part.split()) for part in rest.split("\n\n") if part.strip()]
    return ShortHeader(path, fields, lines, paragraphs, data[start.start() :]), strays


def read(path: Path) -> ShortHeader:
    """The short header of a committed patch; PatchlaneError if it has a stray line or no diff follows."""
    header, strays = scan(path)
    for stray in strays:
        raise PatchlaneError(f"{path.parent.name}/{path.name}:{stray.line}: {stray.what}", stray.remedy)
    return header
