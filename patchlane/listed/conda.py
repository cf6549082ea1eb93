"""Conda's ``environment.yml``: match specifications, and pip's lines under ``pip:``."""

from __future__ import annotations

import re
from typing import Any

from patchlane.listed import lines
from patchlane.listed.locks import CONDA
from patchlane.listed.reading import Reading, row

SPEC = re.compile(r"(?:[\w./-]+::)?(?P<name>[\w.-]+)\s*(?P<rest>.*)")
EXACT = re.compile(r"(?:==\s*(?P<two>\d[\w.!+]*)|=?(?P<one>\d[\w.!+]*)=[\w.*]+)")  # NAME==VERSION, NAME=VERSION=BUILD


def is_environment(data: object) -> bool:
    return isinstance(data, dict) and isinstance(data.get("dependencies"), list)


def read(data: dict[str, Any], text: str, reading: Reading) -> Reading:
    for each in data["dependencies"]:
        if isinstance(each, str):
            required(each, row(text, each), reading)
        elif isinstance(each, dict) and isinstance(each.get("pip"), list) and len(each) == 1:
            for line in each["pip"]:
                _pip(str(line), row(text, str(line)), reading)
        else:
            reading.miss(row(text, str(each)), str(each), "neither a specification nor pip's lines")
    return reading


def required(spec: str, line: int, reading: Reading) -> None:
    """Take one match specification. ``NAME=1.2`` allows 1.2 and all of 1.2.*, and so names no one version."""
    found = SPEC.fullmatch(spec.strip())
    if found is None or "[" in spec:
        return reading.miss(line, spec, "not a specification NAME, NAME=VERSION or NAME=VERSION=BUILD")
    name, rest = CONDA.get(found["name"], found["name"]), found["rest"].strip()
    pinned = EXACT.fullmatch(rest)
    version = (pinned["two"] or pinned["one"]) if pinned else None
    return reading.require(line, name, version=version, spec=rest)


def _pip(text: str, number: int, reading: Reading) -> None:
    """Take one of pip's lines."""
    lines.argument(text, number, reading)
