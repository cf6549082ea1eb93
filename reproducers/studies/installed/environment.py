"""What is installed, without importing it: of an interpreter, of a folder of packages, or as requirements say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from reproducers.base.errors import PatchlaneError
from reproducers.record.fingerprint import Fingerprints
from reproducers.studies.installed import ask

ANSWER_S = 15.0  # seconds that an interpreter may take to list what it has


@dataclass(frozen=True)
class Distribution:
    """A distribution's version and the folder of its files; of a requirement the line that names it.

    ``version`` None: a requirement that is no ``name==version``.
    """

    version: str | None
    folder: Path | None = None
    file: Path | None = None
    line: int = 1


@dataclass(frozen=True)
class Environment:
    """``label``: what was looked at; ``option``: how the audit is told to look at it again.

    ``packages`` has the folders of each importable package, several of a namespace package. ``requirements``: only
    versions are known.
    """

    label: str
    option: str
    requirements: bool = False
    distributions: dict[str, Distribution] = field(default_factory=dict)
    packages: dict[str, list[Path]] = field(default_factory=dict)

    def distribution(self, name: str) -> Distribution | None:
        return self.distributions.get(canonicalize_name(name))

    def file(self, path: str) -> Path | None:
        """The file that an import of ``megatron/core/x.py`` would read, None where it would read none.

        A folder with an ``__init__.py`` hides folders of its name further back; without it they are one namespace.
        """
        package, *folders, name = path.split("/")
        places = self.packages.get(package, [])
        for folder in [None, *folders]:
            inner = places if folder is None else [place / folder for place in places if (place / folder).is_dir()]
            regular = [place for place in inner if (place / "__init__.py").is_file()]
            places = regular[:1] or inner
        return next((place / name for place in places if (place / name).is_file()), None)


def wanted(known: Fingerprints) -> tuple[list[str], list[str]]:
    """(packages, distributions) that the fingerprints speak of, those beside them included."""
    packages = sorted({each.package for each in known.packs.values()})
    beside = {name for each in known.packs.values() for tree in each.trees for name in tree.beside}
    return packages, sorted({each.distribution for each in known.packs.values()} | beside)


def of_python(place: Path | None, known: Fingerprints) -> Environment:
    """What an interpreter, a virtual environment or a folder of packages has; None: this interpreter.

    PatchlaneError where ``place`` is none of these, or the interpreter does not answer.
    """
    option = f" --python {shlex.quote(str(place))}" if place else ""
    interpreter = Path(sys.executable) if place is None else place
    if place is not None and place.is_dir():
        inner = [place / "bin" / "python", place / "Scripts" / "python.exe"]
        interpreter = next((path for path in inner if path.is_file()), place)
        if interpreter == place:
            if (place / "pyvenv.cfg").is_file():
                raise PatchlaneError(f"--python {place}: a virtual environment without its python", "make it anew")
            return _environment(str(place), option, ask.described(*wanted(known), [str(place.resolve())]))
    return _environment(str(interpreter), option, _asked(interpreter, *wanted(known)))


def of_this_process(known: Fingerprints) -> Environment:
    """What an import here would take, by ``sys.path`` as it is now."""
    return _environment(sys.executable, "", ask.described(*wanted(known)))


def _asked(interpreter: Path, packages: list[str], distributions: list[str]) -> dict[str, dict[str, list[str]]]:
    given = json.dumps({"packages": packages, "distributions": distributions})
    remedy = "--python PATH names a Python of 3.8 or later, a virtual environment or a folder of packages"
    quiet = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [str(interpreter), ask.__file__, given], env=quiet, capture_output=True, text=True, timeout=ANSWER_S
        )
        answer = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except subprocess.TimeoutExpired as error:
        raise PatchlaneError(f"--python {interpreter}: no answer in {ANSWER_S:.0f} s", remedy) from error
    except OSError as error:
        raise PatchlaneError(f"--python {interpreter}: {error.strerror or error}", remedy) from error
    except ValueError as error:
        said = (done.stderr.strip().splitlines() or ["it printed no answer"])[-1]
        raise PatchlaneError(f"--python {interpreter}: {said}", remedy) from error
    if not isinstance(answer, dict) or answer.keys() != {"packages", "distributions"}:
        raise PatchlaneError(f"--python {interpreter}: its answer is none of ours", remedy)
    return answer


def _environment(label: str, option: str, answer: dict[str, dict[str, list[str]]]) -> Environment:
    installed: dict[str, Distribution] = {
        canonicalize_name(name): Distribution(version, Path(folder))
        for name, (version, folder) in answer["distributions"].items()
    }
    packages = {name: [Path(place) for place in places] for name, places in answer["packages"].items()}
    return Environment(label, option, distributions=installed, packages=packages)


def of_requirements(file: Path) -> Environment:
    """The versions that a requirements file pins, ``-r`` followed; PatchlaneError where it cannot be read."""
    named = dict[str, Distribution]()
    for name, each in _required(file, ()):
        before = named.get(name)
        same = before is None or before.version == each.version
        named[name] = each if same else Distribution(None, file=each.file, line=each.line)
    return Environment(str(file), f" --requirements {shlex.quote(str(file))}", True, named)


def _required(file: Path, above: Sequence[Path]) -> list[tuple[str, Distribution]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "not UTF-8"
        raise PatchlaneError(f"{file}: {said}", "--requirements FILE names a pip requirements file") from error
    rows = list[tuple[str, Distribution]]()
    joined = re.sub(r"\\\n", "\x00", text)  # a continued line counts as its first
    number = 1
    for row in joined.split("\n"):
        line = re.sub(r"(^|\s)#.*", "", row.replace("\x00", " ")).strip()
        inner = re.match(r"(?:-r|--requirement)[\s=]*(\S+)", line)
        if inner and (file.parent / inner[1]).resolve() not in (*above, file.resolve()):
            rows += _required(file.parent / inner[1], (*above, file.resolve()))
        elif line and not line.startswith("-"):
            rows += _pinned(line, file, number)
        number += 1 + row.count("\x00")
    return rows


def _pinned(line: str, file: Path, number: int) -> list[tuple[str, Distribution]]:
    try:
        requirement = Requirement(re.split(r"\s--\w", line)[0])
    except InvalidRequirement:
        return []
    exact = re.fullmatch(r"===?\s*([^*,]+)", str(requirement.specifier))
    version = exact[1] if exact and requirement.marker is None else None
    return [(canonicalize_name(requirement.name), Distribution(version, file=file, line=number))]
