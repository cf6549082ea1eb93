"""``pyproject.toml``: PEP 621, dependency groups (PEP 735), and the tables of uv, Poetry, PDM, Hatch and setuptools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from patchlane.listed.lines import exact, located
from patchlane.listed.reading import Reading, row

Table = dict[str, Any]
LISTS = (  # dotted names of tables that hold requirement lines, by themselves or by group
    "project.dependencies",
    "project.optional-dependencies",
    "tool.uv.dev-dependencies",
    "tool.pdm.dev-dependencies",
)
READ = (  # below [tool], what is read of keys that name requirements
    r"uv\.(dev-dependencies|constraint-dependencies|override-dependencies|sources)(\..*)?",
    r"poetry\.((group\.[^.]+\.)?dependencies|dev-dependencies)(\..*)?",
    r"pdm\.dev-dependencies(\..*)?",
    r"hatch\.envs\.[^.]+\.(dependencies|extra-dependencies)",
    r"setuptools\.dynamic\.(dependencies|optional-dependencies)(\..*)?",
)
NAMING = re.compile(r"dependenc|requires|requirements|overrides|\bmembers\b")
POETRY_VERSION = re.compile(r"\d[^\s,*|<>=^~!]*")


def is_project(data: Table) -> bool:
    return bool(data.keys() & {"project", "tool", "dependency-groups", "build-system"})


def read(data: Table, text: str, reading: Reading) -> Reading:
    """Read a parsed pyproject.toml into ``reading``; what it builds with is no part of what runs."""
    sources = {str(canonicalize_name(name)): source for name, source in _table(data, "tool.uv.sources").items()}
    for name in LISTS:
        _requirements(_flat(_at(data, name)), text, sources, reading)
    _requirements(_grouped(data, text, reading), text, sources, reading)
    _requirements(_flat(_at(data, "tool.uv.constraint-dependencies")), text, sources, reading, limits=True)
    _overridden(_flat(_at(data, "tool.uv.override-dependencies")), text, sources, reading)
    for each in _table(data, "tool.hatch.envs").values():
        for key in ("dependencies", "extra-dependencies"):
            _requirements(_flat(each.get(key) if isinstance(each, dict) else None), text, sources, reading)
    _poetry(data, text, reading)
    _dynamic(data, text, reading)
    for name in _unread(_table(data, "tool"), ""):
        reading.miss(
            row(text, name.rpartition(".")[2]), name, f"tool.{name} may require something in a form of its own"
        )
    if "project" not in data and not _table(data, "tool.poetry"):
        reading.miss(1, "", "it has no table [project]: a program says what it is and what it requires")
    if isinstance(own := _at(data, "project.name") or _at(data, "tool.poetry.name"), str):
        reading.require(row(text, "name", own), own, why="it is this project's own code")
    return reading


def _unread(table: Table, above: str) -> Iterator[str]:
    """Dotted names below [tool] that sound like requirements and are not read."""
    for key, value in table.items():
        name = f"{above}{key}"
        if any(re.fullmatch(known, name) for known in READ):
            continue
        if NAMING.search(key):
            yield name
        elif isinstance(value, dict):
            yield from _unread(value, f"{name}.")


def _overridden(lines: Iterator[Any], text: str, sources: Table, reading: Reading) -> None:
    """uv's overrides: what is required besides of the same distribution does not count."""
    part = Reading(reading.file, reading.repositories, reading.opened, reading.above)
    _requirements(lines, text, sources, part)
    names = {each.name for each in part.required}
    reading.required = [each for each in reading.required if each.name not in names]
    reading.take(part)


def _at(data: Table, dotted: str) -> Any:
    value: Any = data
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _table(data: Table, dotted: str) -> Table:
    value = _at(data, dotted)
    return value if isinstance(value, dict) else {}


def _flat(value: object) -> Iterator[Any]:
    """The lines of a list, or of a table of lists."""
    for each in value.values() if isinstance(value, dict) else [value] if value is not None else []:
        yield from each if isinstance(each, list) else [each]


def _grouped(data: Table, text: str, reading: Reading) -> list[str]:
    """The lines of all dependency groups, included groups once each."""
    groups = data.get("dependency-groups") or {}
    try:
        return sorted({line for group in groups for line in resolve_dependency_groups(groups, group)})
    except (ValueError, TypeError, LookupError, AttributeError, ExceptionGroup) as error:
        reading.miss(row(text, "[dependency-groups]"), "dependency-groups", f"no dependency groups: {error}")
        return []


def _requirements(lines: Any, text: str, sources: Table, reading: Reading, limits: bool = False) -> None:
    for line in lines:
        place = row(text, str(line))
        try:
            required = Requirement(line)
        except (InvalidRequirement, TypeError) as error:
            reading.miss(place, str(line), str(error).split("\n")[0])
            continue
        if str(line) not in text:  # a group's, which is written anew where it is resolved
            place = row(text, required.name, *(each.version for each in required.specifier))
        before = len(reading.required)
        _one(required, place, sources.get(str(canonicalize_name(required.name))), reading)
        if limits:
            reading.required[before:] = [replace(each, constraint=True) for each in reading.required[before:]]


def _one(required: Requirement, line: int, source: object, reading: Reading) -> None:
    """``source``: where uv takes it from in place of the index: a table, or a list of them by marker."""
    marker, spec = str(required.marker or ""), str(required.specifier)
    for each in source if isinstance(source, list) else [source]:
        if isinstance(each, dict) and not each.keys() <= {"index", "marker", "extra", "group"}:
            _sourced(required.name, each, line, reading, str(each.get("marker") or marker))
        elif required.url:
            located(required.url, required.name, line, str(required), reading, marker=marker)
        else:
            reading.require(line, required.name, version=exact(spec), spec=spec, marker=marker)


def _sourced(name: str, source: Table, line: int, reading: Reading, marker: str) -> None:
    """Poetry's and uv's tables name a repository, a URL or a folder alike."""
    if "git" in source:
        ref = source.get("rev") or source.get("tag") or source.get("branch") or ""
        url = str(source["git"])
        return located(
            f"{'' if url.startswith('git+') else 'git+'}{url}@{ref}", name, line, name, reading, marker=marker
        )
    if isinstance(place := source.get("url") or source.get("path") or source.get("file"), str):
        if "://" not in place and not place.endswith((".whl", ".tar.gz", ".zip")):
            reading.miss(line, f"{name}: {place}", "what that folder's project requires is not read")
        return located(place, name, line, name, reading, marker=marker)
    return reading.require(line, name, marker=marker, why="it comes from this workspace or another place")


def _poetry(data: Table, text: str, reading: Reading) -> None:
    """Poetry's tables: {name: version, table or list of tables}."""
    groups = [f"tool.poetry.group.{name}.dependencies" for name in _table(data, "tool.poetry.group")]
    for place in ["tool.poetry.dependencies", "tool.poetry.dev-dependencies", *groups]:
        for name, asked in _table(data, place).items():
            for each in asked if isinstance(asked, list) else [asked]:
                if name != "python":
                    _poetry_one(name, each, row(text, name), reading)


def _poetry_one(name: str, asked: object, line: int, reading: Reading) -> None:
    table: Table = asked if isinstance(asked, dict) else {"version": asked}
    marker, version = str(table.get("markers") or ""), table.get("version")
    if not isinstance(version, str):
        if table.keys() & {"git", "url", "path", "file"}:
            return _sourced(name, table, line, reading, marker)
        return reading.miss(line, f"{name} = {asked}", "a dependency without a version")
    plain = version.strip().removeprefix("===").removeprefix("==").strip()
    pinned = plain if POETRY_VERSION.fullmatch(plain) and "*" not in plain else None
    return reading.require(line, name, version=pinned, spec=version, marker=marker)


def _dynamic(data: Table, text: str, reading: Reading) -> None:
    """Requirements that the build system makes: setuptools names the files, any other way is a program."""
    dynamic = _at(data, "project.dynamic")
    for name in [
        each for each in ("dependencies", "optional-dependencies") if isinstance(dynamic, list) and each in dynamic
    ]:
        files = [each for table in _flat(_at(data, f"tool.setuptools.dynamic.{name}")) for each in _files(table)]
        for file in files:
            reading.follow(row(text, file), file, file)
        if not files:
            reading.miss(row(text, "dynamic"), f"dynamic: {name}", f"a program makes the {name}")


def _files(table: object) -> list[str]:
    value = table.get("file") if isinstance(table, dict) else table
    return (
        [value]
        if isinstance(value, str)
        else [each for each in value if isinstance(each, str)]
        if isinstance(value, list)
        else []
    )
