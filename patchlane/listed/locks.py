"""Lock files: uv.lock, poetry.lock, pdm.lock, pylock.toml (PEP 751), Pipfile.lock, conda-lock.yml, pixi.lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from packaging.pylock import Package, Pylock, PylockValidationError

from patchlane.base.errors import PatchlaneError
from patchlane.listed.lines import exact, located
from patchlane.listed.reading import Reading, row

Table = dict[str, Any]
COMMIT_OF = re.compile(r"[?#&]")


def form(data: object) -> str:
    """The kind of lock that parsed TOML, JSON or YAML is; "" where it is none."""
    if not isinstance(data, dict):
        return ""
    packages = data.get("package")
    if isinstance(packages, list):
        if isinstance(data.get("metadata"), dict):
            inner = data["metadata"]
            return (
                "poetry.lock"
                if "content-hash" in inner and "lock-version" in inner
                else ("pdm.lock" if "lock_version" in inner else "conda-lock" if "platforms" in inner else "")
            )
        known = "requires-python" in data or any(isinstance(_get(each, "source"), dict) for each in packages)
        return "uv.lock" if "version" in data and known else ""
    if "lock-version" in data and isinstance(data.get("packages"), list):
        return "pylock"
    if "_meta" in data and ("default" in data or "develop" in data):
        return "Pipfile.lock"
    return "pixi.lock" if isinstance(data.get("packages"), list) and "environments" in data else ""


def read(kind: str, data: Table, text: str, reading: Reading) -> Reading:
    """Read a lock of this kind, parsed from ``text``; an entry in no known form is not understood."""
    reading.whole = True
    if kind == "pylock":
        _pylock(data, text, reading)
    elif kind == "Pipfile.lock":
        for group, table in data.items():  # default, develop, and categories of one's own
            if group != "_meta" and isinstance(table, dict):
                _each(iter(table.items()), _pipfile, text, reading)
            elif group != "_meta":
                reading.miss(row(text, group), group, "no table of packages")
    else:
        entries: list[Any] = data["packages" if kind == "pixi.lock" else "package"]
        _each(((str(_get(each, "name")), each) for each in entries), ENTRIES[kind], text, reading)
    return reading


def _get(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _each(
    entries: Iterator[tuple[str, Any]], take: Callable[[str, Table, int, Reading], bool], text: str, reading: Reading
) -> None:
    for name, entry in entries:
        line = row(text, f'"{name}"') if f'"{name}"' in text else row(text, name)
        if not isinstance(entry, dict) or not take(name, entry, line, reading):
            reading.miss(line, str(entry), "a package without a name, version and source in a known form")


def _uv(name: str, entry: Table, line: int, reading: Reading) -> bool:
    source = entry.get("source") or {}
    if not isinstance(source, dict) or not isinstance(entry.get("name"), str):
        return False
    markers = entry.get("resolution-markers") or []
    marker = " or ".join(f"({each})" for each in markers) if isinstance(markers, list) else ""
    if "git" in source:
        place, _, commit = str(source["git"]).rpartition("#")
        located(f"git+{COMMIT_OF.split(place)[0]}@{commit}", name, line, name, reading, marker=marker)
        return True
    for own in ("editable", "virtual", "directory", "path"):
        if own in source and not str(source[own]).endswith((".whl", ".tar.gz", ".zip")):
            reading.require(line, name, marker=marker, why=f"it is the code in {source[own]}")
            return True
    return _versioned(name, entry.get("version"), line, reading, marker)


def _poetry(name: str, entry: Table, line: int, reading: Reading) -> bool:
    source, marker = entry.get("source") or {}, entry.get("markers") or ""
    if not isinstance(source, dict) or not isinstance(entry.get("name"), str):
        return False
    if isinstance(marker, dict):  # by group
        marker = " or ".join(f"({each})" for each in marker.values())
    if source.get("type") == "git":
        commit = source.get("resolved_reference") or source.get("reference") or ""
        located(f"git+{source.get('url')}@{commit}", name, line, name, reading, marker=str(marker))
        return True
    if source.get("type") == "directory":
        reading.require(line, name, marker=str(marker), why=f"it is the code in {source.get('url')}")
        return True
    return _versioned(name, entry.get("version"), line, reading, str(marker))


def _pdm(name: str, entry: Table, line: int, reading: Reading) -> bool:
    marker = str(entry.get("marker") or "")
    if entry.get("git"):
        commit = entry.get("revision") or entry.get("ref") or ""
        located(f"git+{entry['git']}@{commit}", name, line, name, reading, marker=marker)
        return True
    if entry.get("path") and not str(entry["path"]).endswith((".whl", ".tar.gz", ".zip")):
        reading.require(line, name, marker=marker, why=f"it is the code in {entry['path']}")
        return True
    return isinstance(entry.get("name"), str) and _versioned(name, entry.get("version"), line, reading, marker)


def _pipfile(name: str, entry: Table, line: int, reading: Reading) -> bool:
    marker = str(entry.get("markers") or "")
    if entry.get("git"):
        located(f"git+{entry['git']}@{entry.get('ref') or ''}", name, line, name, reading, marker=marker)
        return True
    if entry.get("path") or entry.get("file"):
        located(str(entry.get("path") or entry.get("file")), name, line, name, reading, marker=marker)
        return True
    version = entry.get("version")
    return isinstance(version, str) and _versioned(name, exact(version), line, reading, marker, version)


def _conda_lock(name: str, entry: Table, line: int, reading: Reading) -> bool:
    return isinstance(entry.get("name"), str) and _versioned(CONDA.get(name, name), entry.get("version"), line, reading)


def _pixi(name: str, entry: Table, line: int, reading: Reading) -> bool:
    """Entries name a ``pypi`` or ``conda`` URL; conda's file name is name, version and build."""
    if isinstance(entry.get("pypi"), str):
        if isinstance(entry.get("version"), str) and not entry["pypi"].startswith("git+"):
            return isinstance(entry.get("name"), str) and _versioned(name, entry["version"], line, reading)
        located(entry["pypi"], name, line, entry["pypi"], reading)
        return True
    parts = str(entry.get("conda") or "").rpartition("/")[2].rsplit("-", 2)
    return len(parts) == 3 and _versioned(CONDA.get(parts[0], parts[0]), parts[1], line, reading)


def _versioned(name: str, version: object, line: int, reading: Reading, marker: str = "", spec: str = "") -> bool:
    if not isinstance(version, str) or not version:
        return False
    reading.require(line, name, version=version, marker=marker, spec=spec)
    return True


def _pylock(data: Table, text: str, reading: Reading) -> None:
    try:
        lock = Pylock.from_dict(data)
    except PylockValidationError as error:
        raise PatchlaneError(
            f"{reading.file}: not a pylock file: {error}", "lock again: uv export --format pylock.toml"
        ) from error
    for package in lock.packages:
        _locked(package, row(text, f'"{package.name}"'), reading)


def _locked(package: Package, line: int, reading: Reading) -> None:
    marker = str(package.marker or "")
    if package.vcs:
        url = f"git+{package.vcs.url or package.vcs.path}@{package.vcs.commit_id}"
        return located(url, package.name, line, package.name, reading, marker=marker)
    if package.directory:
        return reading.require(line, package.name, marker=marker, why=f"it is the code in {package.directory.path}")
    if package.archive and not package.version:
        url = str(package.archive.url or package.archive.path)
        return located(url, package.name, line, package.name, reading, marker=marker)
    if package.version is None:
        return reading.require(line, package.name, marker=marker, why="the lock has no version of it")
    return reading.require(line, package.name, version=str(package.version), marker=marker)


CONDA = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cpu": "torch"}  # names that differ from the index's
ENTRIES = {"uv.lock": _uv, "poetry.lock": _poetry, "pdm.lock": _pdm, "conda-lock": _conda_lock, "pixi.lock": _pixi}
