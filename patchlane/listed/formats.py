"""Which format a file is in, by its content, and what reads it; any other file is refused with its format's name."""

from __future__ import annotations

import codecs
import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from patchlane.base import optional, place
from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import bytes_of
from patchlane.listed import conda, lines, listings, locks, projects
from patchlane.listed.reading import Reading
from patchlane.listed.scripts import dockerfile, installs

STDIN = Path("-")
LARGEST = 64 * 2**20  # bytes; the largest lock files have a few million
FREEZE = "python -m pip freeze > installed.txt in the environment, and --requirements installed.txt"
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".pbs")
REFUSED = {  # file name or suffix: (format, the command that makes of it what can be read)
    "setup.py": ("a setuptools script, which would have to run", FREEZE),
    "setup.cfg": ("a setuptools configuration", FREEZE),
    "Pipfile": ("a Pipfile", "pipenv lock, and --requirements Pipfile.lock"),
    "meta.yaml": ("a conda recipe", "conda list > installed.txt, and --requirements installed.txt"),
    ".ipynb": ("a Jupyter notebook", "jupyter nbconvert --to script FILE, and --requirements FILE.sh"),
    ".py": ("a Python program", FREEZE),
    ".md": ("Markdown", FREEZE),
    ".rst": ("reStructuredText", FREEZE),
    ".html": ("HTML", FREEZE),
    ".nix": ("a Nix expression", FREEZE),
    ".whl": ("a wheel", "unzip it to a folder, and --python FOLDER"),
    "pixi.toml": ("a pixi manifest", "pixi lock, and --requirements pixi.lock"),
    "METADATA": ("a distribution's metadata, which says what it needs and not what is installed", FREEZE),
    "Makefile": ("a makefile", FREEZE),
    "justfile": ("a justfile", FREEZE),
    "Jenkinsfile": ("a Jenkins pipeline", FREEZE),
    "Cargo.lock": ("Cargo's lock, of Rust", FREEZE),
    "yarn.lock": ("yarn's lock, of JavaScript", FREEZE),
    "flake.lock": ("Nix's lock", FREEZE),
    "go.mod": ("a Go module", FREEZE),
    "Singularity": ("an Apptainer definition", "apptainer exec IMAGE python -m pip freeze > installed.txt"),
    ".mk": ("a makefile", FREEZE),
    ".ini": ("an INI file, of tox perhaps", FREEZE),
    ".cfg": ("an INI file, of setuptools perhaps", FREEZE),
    ".ps1": ("a PowerShell script", FREEZE),
    ".bat": ("a batch file", FREEZE),
    ".csv": ("CSV", FREEZE),
    ".tsv": ("TSV", FREEZE),
    ".xml": ("XML", FREEZE),
    ".tf": ("a Terraform file", FREEZE),
    ".def": ("an Apptainer definition", "apptainer exec IMAGE python -m pip freeze > installed.txt"),
}


def read(file: Path, repositories: dict[str, str]) -> Reading:
    """What a file requires; "-" is standard input. ``repositories``: {"owner/name" in lower case: distribution}.

    PatchlaneError where it cannot be read, is in no format that is known, or requires nothing.
    """
    reading = _read(file, Reading(file, repositories))
    if not reading.required:
        if reading.unread:
            first = reading.unread[0]
            said = f"{file}: no line of it is a requirement; {first.place}: {first.text or '?'}: {first.why}"
        else:
            said = f"{file}: it requires nothing"
        raise PatchlaneError(said, f"--requirements FILE names what was installed: {FREEZE}")
    return reading


def _read(file: Path, above: Reading) -> Reading:
    """Read one file; also those that others name."""
    reading = Reading(file, above.repositories, _read, (*above.above, file.resolve()), above.constraint)
    text = _text(file)
    if not text.strip() and above.above:  # a file without a line requires nothing
        return reading
    if not text.strip():
        raise PatchlaneError(f"{file}: it is empty", f"--requirements FILE names what was installed: {FREEZE}")
    reader = _reader(file, text)
    try:
        return reader(text, reading)
    except (RecursionError, MemoryError) as error:
        raise PatchlaneError(f"{file}: nested too deeply to be what it seems", FREEZE) from error
    except (AttributeError, TypeError, LookupError, ValueError) as error:  # a table where a text should be, say
        raise PatchlaneError(f"{file}: in no form of its format that is known: {error}", FREEZE) from error


def _text(file: Path) -> str:
    """The file's text, by its byte order mark or as UTF-8; PatchlaneError where it is no regular file of text."""
    try:
        data = sys.stdin.buffer.read(LARGEST + 1) if file == STDIN else _bytes(file)
    except OSError as error:
        raise PatchlaneError(f"{file}: {error.strerror}", "--requirements FILE names what is required") from error
    if len(data) > LARGEST:
        raise PatchlaneError(f"{file}: larger than {LARGEST >> 20} MiB, which no such file is", FREEZE)
    mark, encoding = next((pair for pair in MARKS if data.startswith(pair[0])), (b"", "utf-8"))
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise PatchlaneError(f"{file}: a binary file", FREEZE) from error
        convert = f"iconv -f latin1 -t utf-8 {file} > FILE, or by the encoding that it is in, and --requirements FILE"
        raise PatchlaneError(f"{file}: not UTF-8", convert) from error
    if "\0" in text:
        raise PatchlaneError(f"{file}: a binary file", FREEZE)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _bytes(file: Path) -> bytes:
    try:
        return bytes_of(file, LARGEST)
    except StoreError as error:
        raise PatchlaneError(error.what, f"pip freeze | {place.AUDIT} --requirements -") from error


Reader = Callable[[str, Reading], Reading]


def _reader(file: Path, text: str) -> Reader:
    if file.name in REFUSED or file.suffix.lower() in REFUSED:
        form, remedy = REFUSED.get(file.name) or REFUSED[file.suffix.lower()]
        raise PatchlaneError(f"{file}: {form}, which is not read", remedy)
    if listings.is_pip_list(text):
        return listings.pip_list
    if listings.is_conda_list(text):
        return listings.conda_list
    if dockerfile.is_dockerfile(file.name, text):
        return dockerfile.read
    first = text.split("\n", 1)[0]
    if file.suffix in SHELL or (first.startswith("#!") and "sh" in first):
        return installs.read
    return _parsed(file, text) or lines.read


FORMS = {".toml": "TOML", ".lock": "TOML", ".json": "JSON", ".yml": "YAML", ".yaml": "YAML"}
OTHER = {"Pipfile.lock": "JSON", "pixi.lock": "YAML"}
KEYS = re.compile(r"^(dependencies|package|packages):\s*$", re.MULTILINE)  # of YAML without a name


def _parsed(file: Path, text: str) -> Reader | None:
    """What reads a file of TOML, JSON or YAML; None where it is none. PatchlaneError where its kind is not known."""
    told = OTHER.get(file.name) or FORMS.get(file.suffix.lower())
    for form in [told] if told else ["TOML", "JSON", *(["YAML"] if KEYS.search(text) else [])]:
        try:
            data: Any = PARSERS[form](text)
        except RecursionError as error:
            raise PatchlaneError(f"{file}: nested too deeply to be {form}", FREEZE) from error
        except ValueError as error:
            if told:
                raise PatchlaneError(f"{file}: no {form}: {' '.join(str(error).split())}", FREEZE) from error
            continue
        if told or (data and isinstance(data, dict | list)):
            return _structured(file, form, data)
    return None


def _structured(file: Path, form: str, data: Any) -> Reader:
    if kind := locks.form(data):
        return lambda text, reading: locks.read(kind, data, text, reading)
    if entries := listings.pip_json(data):
        return lambda text, reading: listings.read_json(entries, text, reading)
    if form == "YAML" and conda.is_environment(data):
        return lambda text, reading: conda.read(data, text, reading)
    if form == "TOML" and {"dependencies", "pypi-dependencies"} & data.keys():
        raise PatchlaneError(
            f"{file}: a pixi or Cargo manifest, which is not read", "pixi lock, and --requirements pixi.lock"
        )
    if form == "TOML" and projects.is_project(data):
        return lambda text, reading: projects.read(data, text, reading)
    known = {"TOML": ", no pyproject.toml", "YAML": ", no conda environment"}.get(form, "")
    raise PatchlaneError(f"{file}: {form}, but no lock file{known} and no list of an environment", FREEZE)


def _yaml(text: str) -> Any:
    """The value of a YAML text; ValueError where it is none. The library takes long to be imported."""
    yaml = optional.load("yaml", "PyYAML")
    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(error) from error


PARSERS: dict[str, Callable[[str], Any]] = {"TOML": tomllib.loads, "JSON": json.loads, "YAML": _yaml}
