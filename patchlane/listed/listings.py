"""Lists that tools print of an environment: ``pip list``, ``conda list``, and JSON of pip's verbs."""

from __future__ import annotations

import re
from typing import Any

from patchlane.listed.lines import located
from patchlane.listed.locks import CONDA
from patchlane.listed.reading import Reading, row

RULE = re.compile(r"-+(\s+-+)+")
CONDA_EXPORT = re.compile(r"([\w.-]+)=([^=\s]+)=(\S+)")


def is_pip_list(text: str) -> bool:
    lines = text.split("\n", 2)
    return len(lines) > 1 and lines[0].split()[:2] == ["Package", "Version"] and bool(RULE.fullmatch(lines[1].strip()))


def pip_list(text: str, reading: Reading) -> Reading:
    """Two columns, a third with the folder of an editable install, of which the version says nothing."""
    reading.whole = True
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if number <= 2 or not parts:
            reading.skip(number, line, "a heading or nothing")
        elif len(parts) == 2:
            reading.require(number, parts[0], version=parts[1])
        elif len(parts) >= 3 and "/" in line + "\\":
            reading.require(number, parts[0], why=f"it is the code in {parts[2]}, whose metadata said {parts[1]}")
        else:
            reading.miss(number, line, "not a name and a version")
    return reading


def is_conda_list(text: str) -> bool:
    start = text[:4096]
    return (
        "# packages in environment at" in start or "# This file may be used to create" in start or "@EXPLICIT" in start
    )


def conda_list(text: str, reading: Reading) -> Reading:
    """``conda list``: name, version, build, channel; ``--export``: name=version=build; ``--explicit``: URLs."""
    reading.whole = True
    for number, line in enumerate(text.splitlines(), 1):
        parts, export = line.split(), CONDA_EXPORT.fullmatch(line.strip())
        file = line.strip().rpartition("/")[2].split("#")[0].rsplit("-", 2)
        if not parts or line.startswith(("#", "@")):
            reading.skip(number, line, "a comment or nothing")
        elif "://" in line and len(file) == 3:
            reading.require(number, CONDA.get(file[0], file[0]), version=file[1])
        elif export:
            reading.require(number, CONDA.get(export[1], export[1]), version=export[2])
        elif "<develop>" in parts or (len(parts) > 2 and parts[2] == "dev_0"):
            reading.require(number, parts[0], why=f"it is the code in a folder, whose metadata said {parts[1]}")
        elif 2 <= len(parts) <= 4 and "://" not in line:
            reading.require(number, CONDA.get(parts[0], parts[0]), version=parts[1])
        else:
            reading.miss(number, line, "not a name, a version, a build and a channel")
    return reading


def pip_json(data: Any) -> list[Any]:
    """The entries of what pip prints as JSON; none where the data is something else."""
    if isinstance(data, list):
        return (
            data if data and all(isinstance(each, dict) and {"name", "version"} <= each.keys() for each in data) else []
        )
    inner = (data.get("installed") or data.get("install") or []) if isinstance(data, dict) else []
    return inner if isinstance(inner, list) and ("pip_version" in data or "environment" in data) else []


def read_json(entries: list[Any], text: str, reading: Reading) -> Reading:
    reading.whole = True
    for entry in entries:
        metadata = entry.get("metadata", entry) if isinstance(entry, dict) else {}
        name, version = (metadata.get("name"), metadata.get("version")) if isinstance(metadata, dict) else (None, None)
        line = row(text, f'"{name}"')
        if not isinstance(name, str) or not isinstance(version, str):
            reading.miss(line, str(entry), "an entry without a name and a version")
            continue
        url = entry.get("direct_url") or entry.get("download_info")
        url = url if isinstance(url, dict) else {}
        commit = url["vcs_info"].get("commit_id") if isinstance(url.get("vcs_info"), dict) else None
        place = entry.get("editable_project_location") or (url.get("url") if "dir_info" in url else None)
        develop = entry.get("channel") == "<develop>" or entry.get("build_string") == "dev_0"
        if commit:
            located(f"git+{url.get('url')}@{commit}", name, line, name, reading)
        elif place or develop:
            reading.require(line, name, why=f"it is the code in {place or 'a folder'}, whose metadata said {version}")
        else:
            reading.require(line, name, version=version)
    return reading
