"""What is installed, without running any of it: of an interpreter, of a folder of packages, or as a file requires."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.known.index import Known
from patchlane.listed.reading import Line, Reading, Required
from patchlane.present import ask

ANSWER_S = 15.0  # seconds that an interpreter may take to list what it has


@dataclass(frozen=True)
class Distribution:
    """A distribution's version, the folder of its files, and the versions of further metadata of it."""

    version: str
    folder: Path | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Environment:
    """``label``: what was looked at; ``option``: how the audit is told to look at it again.

    ``packages`` has the folders of each importable package, several of a namespace package. ``reading``: a file was
    read, and only what it requires is known. ``startup``: lines that run when the interpreter starts, not understood.
    """

    label: str
    option: str
    distributions: dict[str, Distribution] = field(default_factory=dict)
    packages: dict[str, list[Path]] = field(default_factory=dict)
    reading: Reading | None = None
    startup: tuple[Line, ...] = ()

    @property
    def unread(self) -> list[Line]:
        """The lines that are not understood, any of which may bring what else is not found."""
        return [*self.startup, *(self.reading.unread if self.reading else [])]

    @property
    def whole(self) -> bool:
        """Whether all that is there is known by name, what others require in turn included."""
        return self.reading is None or self.reading.whole

    def distribution(self, name: str) -> Distribution | None:
        return self.distributions.get(canonicalize_name(name))

    def required(self, name: str) -> list[Required]:
        """The lines that require a distribution."""
        wanted = canonicalize_name(name)
        return [each for each in (self.reading.required if self.reading else []) if each.name == wanted]

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
        return next((place / name for place in places if (place / name).exists()), None)


def wanted(known: Known) -> tuple[list[str], list[str]]:
    """(packages, distributions) that the index speaks of, those beside them included."""
    packages = sorted({each.package for each in known.packs.values()})
    beside = {name for each in known.packs.values() for tree in each.trees for name in tree.beside}
    return packages, sorted({each.distribution for each in known.packs.values()} | beside)


def of_python(place: Path | None, known: Known) -> Environment:
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
            return _environment(str(place), option, ask.described(*wanted(known), ask.of_folder(str(place.resolve()))))
    return _environment(str(interpreter), option, _asked(interpreter, *wanted(known)))


def of_this_process(known: Known) -> Environment:
    """What an import here would take, by ``sys.path`` and the finders of this process as they are now."""
    packages, distributions = wanted(known)
    search = ask.Search()
    search.path = [place or str(Path.cwd()) for place in sys.path]
    answer = ask.described([], distributions, search)
    for name in packages:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.submodule_search_locations is not None:
            answer["packages"][name] = [str(Path(place).resolve()) for place in spec.submodule_search_locations]
    return _environment(sys.executable, "", answer)


def _asked(interpreter: Path, packages: list[str], distributions: list[str]) -> dict[str, Any]:
    """What an interpreter says of itself; nothing but this module's script and the standard library runs there."""
    first = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    user = "PYTHONNOUSERSITE" not in os.environ
    given = json.dumps({"packages": packages, "distributions": distributions, "first": first, "user": user})
    remedy = "--python PATH names a Python of 3.8 or later, a virtual environment or a folder of packages"
    command = [str(interpreter), "-I", "-S", "-B", ask.__file__, given]
    try:
        if not interpreter.is_file():
            raise PatchlaneError(f"--python {interpreter}: no such file", remedy)
        done = clock.run(command, ANSWER_S, capture_output=True, text=True, errors="replace")
        answer = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except CannotTestHere as error:
        raise PatchlaneError(f"--python {interpreter}: no answer in {ANSWER_S:.0f} s", remedy) from error
    except OSError as error:
        raise PatchlaneError(f"--python {interpreter}: {error.strerror or error}", remedy) from error
    except (ValueError, RecursionError) as error:
        said = (done.stderr.strip().splitlines() or ["it printed no answer"])[-1]
        raise PatchlaneError(f"--python {interpreter}: {said}", remedy) from error
    if not isinstance(answer, dict) or answer.keys() != {"packages", "distributions", "unread"}:
        raise PatchlaneError(f"--python {interpreter}: its answer is none of ours", remedy)
    return answer


def _environment(label: str, option: str, answer: dict[str, Any]) -> Environment:
    installed = {
        str(canonicalize_name(name)): Distribution(
            found[0][0], Path(found[0][1]), tuple(dict.fromkeys(v for v, _ in found[1:] if v != found[0][0]))
        )
        for name, found in answer["distributions"].items()
    }
    packages = {name: [Path(place) for place in places] for name, places in answer["packages"].items()}
    startup = tuple(Line(file, line, text, why) for file, line, text, why in answer["unread"])
    return Environment(label, option, installed, packages, startup=startup)


def of_requirements(file: Path, repositories: dict[str, str]) -> Environment:
    """What a file requires. PatchlaneError where it is in no format that is read, or requires nothing."""
    from patchlane.listed import formats

    return of_reading(formats.read(file, repositories))


def of_reading(reading: Reading) -> Environment:
    """What a file requires; of distributions that other packs' answers hang on, the one version that is required."""
    versions: dict[str, set[str]] = {}
    for each in reading.required:
        if each.version and not each.constraint:
            versions.setdefault(each.name, set()).add(each.version)
    named = {name: Distribution(next(iter(found))) for name, found in versions.items() if len(found) == 1}
    option = f" --requirements {shlex.quote(str(reading.file))}"
    return Environment(str(reading.file), option, named, reading=reading)
