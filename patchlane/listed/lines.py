"""Lines that pip reads: requirements files, what ``pip freeze`` prints, and the arguments of ``pip install``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from patchlane.base.files import temporary
from patchlane.base.optional import load
from patchlane.listed import origins
from patchlane.listed.reading import Reading

EXACT = re.compile(r"===?\s*([^*,]+)")
EDITABLE = re.compile(r"# Editable .*\(([A-Za-z0-9._-]+?)===?(\S+)\)")  # what freeze writes above an editable install


def read(text: str, reading: Reading) -> Reading:
    """Read the text of a requirements file into ``reading``."""
    parser = load("pip_requirements_parser", "pip-requirements-parser")
    with temporary() as folder:  # the parser takes files only
        scratch = folder / "requirements.txt"
        scratch.write_text(text, encoding="utf-8")
        parsed = parser.RequirementsFile.from_file(str(scratch))
    named = _named_editables(parsed.comments)
    for each in parsed.comments:
        reading.skip(each.line_number, each.line, "a comment")
    for each in parsed.requirements:
        _requirement(each, named.get(each.line_number, ("", "")), reading)
    for each in parsed.options:
        _option(each, reading)
    for each in parsed.invalid_lines:
        said = str(each.error_message).split("\n")[0].removeprefix("Invalid requirement: : ")
        reading.miss(each.line_number, each.line, said)
    return reading


def argument(text: str, number: int, reading: Reading) -> None:
    """Read one line of pip's, which stands in line ``number`` of another kind of file."""
    part = read(text, Reading(reading.file, reading.repositories, reading.opened, reading.above, script=reading.script))
    own = str(reading.file)
    reading.required += [replace(x, line=number) if x.file == own else x for x in part.required]
    reading.skipped += [replace(x, line=number) if x.file == own else x for x in part.skipped]
    reading.unread += [replace(x, line=number) if x.file == own else x for x in part.unread]


def _named_editables(comments: list[Any]) -> dict[int, tuple[str, str]]:
    """{line of an editable install: (name, version) that freeze's comment above it tells}."""
    found = ((each.line_number + 1, EDITABLE.fullmatch(each.line.strip())) for each in comments)
    return {line: (match[1], match[2]) for line, match in found if match}


def _requirement(each: Any, above: tuple[str, str], reading: Reading) -> None:
    line, text = each.line_number, each.requirement_line.line
    marker = str(each.marker or getattr(each.req, "marker", None) or "")
    name = each.req.name if each.req is not None else ""
    url = str(each.link.url) if each.link is not None else getattr(each.req, "url", None) or ""
    if url:
        return located(url, name or above[0], line, text, reading, marker=marker, version=above[1])
    if each.req is None:
        return reading.miss(line, text, "names no distribution")
    spec = str(each.req.specifier)
    return reading.require(line, name, version=exact(spec), spec=spec, marker=marker)


def exact(spec: str) -> str | None:
    """The one version that a set of specifiers allows by an ``==`` or ``===``; None where it names none, or is none."""
    try:
        found = [EXACT.fullmatch(str(each).strip()) for each in SpecifierSet(spec)]
    except InvalidSpecifier:
        return None
    pinned = {match[1].strip() for match in found if match}
    return pinned.pop() if len(pinned) == 1 else None


def located(url: str, name: str, line: int, text: str, reading: Reading, marker: str = "", version: str = "") -> None:
    """Take a requirement that a URL or a path satisfies. ``version``: what freeze says of a checkout's metadata."""
    source = origins.of_url(url, reading.repositories)
    name = name or source.name
    if source.repository:
        if not name:
            return reading.miss(line, text, "does not say which distribution the repository has: NAME @ URL")
        why = "" if source.ref else "no commit is named"
        return reading.require(line, name, ref=source.ref, repository=source.repository, marker=marker, why=why)
    if source.version and name:
        return reading.require(line, name, version=source.version, marker=marker)
    if name:
        stated = f", whose metadata said {version}" if version else ""
        return reading.require(line, name, marker=marker, why=f"it is the code in {url}{stated}")
    return _local(url, line, text, reading)


def _local(url: str, line: int, text: str, reading: Reading) -> None:
    """A folder says its distribution in pyproject.toml, where it is there to be read."""
    folder = url.removeprefix("file://").split("#")[0].split("[")[0]
    project = Path(folder) / "pyproject.toml"
    if not reading.script and (reading.file.parent / project).is_file():
        return reading.follow(line, text, str(project))
    return reading.miss(line, text, "does not say which distribution it has: NAME @ URL")


def _option(each: Any, reading: Reading) -> None:
    """``-r`` and ``-c`` are followed; all others choose indexes and files, no versions."""
    line, text, options = each.line_number, each.requirement_line.line, each.options
    for name in options.get("requirements") or []:
        reading.follow(line, text, name)
    for name in options.get("constraints") or []:
        reading.follow(line, text, name, constraint=True)
    if not options.keys() & {"requirements", "constraints"}:
        reading.skip(line, text, "an option that names no distribution")
