"""The locks that set-up installs by: they agree with pyproject.toml and each other, and every file has a digest."""

import re
import tomllib

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reproducers.host import facts
from reproducers.record.schema import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {"setup": ["engine", *facts.SETUP], "train": ["engine", *facts.SETUP, "train", "data"]}
ENTRY = re.compile(r"^([a-z0-9-]+)==([^ ;]+)(?: ; (.*?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)


def locked(name, python):
    """{distribution: release} that a lock gives an interpreter on Linux."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = ENTRY.findall(text)
    assert "".join(line for line in ENTRY.sub("", text).splitlines() if not line.startswith("#")) == ""
    here = default_environment() | {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    here |= {"sys_platform": "linux", "platform_machine": "x86_64"}
    chosen = [(one, release) for one, release, marker, _ in entries if not marker or Marker(marker).evaluate(here)]
    assert len(dict(chosen)) == len(chosen) > 60
    return dict(chosen)


@pytest.mark.parametrize("python", ["3.11.4", "3.12.1"])
@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_all_that_the_project_asks_for_but_torch(name, python):
    found = locked(name, python)
    listed = PROJECT["optional-dependencies"]
    asked = map(Requirement, [*PROJECT["dependencies"], *(line for extra in EXTRAS[name] for line in listed[extra])])
    wrong = [
        f"{one}: {found.get(canonicalize_name(one.name))}"
        for one in asked
        if one.name not in ("torch", PROJECT["name"])
        and found.get(canonicalize_name(one.name), "") not in one.specifier
    ]
    assert wrong == [], "make lock"
    assert {one for one in found if re.match(r"torch$|cuda-|nvidia-", one)} == set()
    assert "setuptools" in found  # set-up builds the project by it, without isolation


def test_the_locks_agree_and_are_those_of_the_makefile():
    small, large = (locked(name, "3.11.4") for name in EXTRAS)
    assert small.items() < large.items()
    text = (ROOT / "Makefile").read_text()
    assert re.findall(r"\$\(call (?:install|COMPILE),(\w+),\$\(SETUP\)", text) == ["setup", "train", "setup", "train"]
