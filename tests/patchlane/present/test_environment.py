"""What is installed is read without importing it, from interpreters, folders and requirements."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from toy import SOURCE, write_tree
from toy_environment import installed, known

from patchlane.base.errors import PatchlaneError
from patchlane.present import environment
from patchlane.present.environment import of_python

LOUD = {"toyup/__init__.py": "raise SystemExit('imported')", "toyup/core.py": "x = 1\n"}


@pytest.fixture(scope="module")
def made_venv(tmp_path_factory):
    """A virtual environment without pip, and its folder of packages."""
    folder = tmp_path_factory.mktemp("venv") / "env"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    return folder, installed(packages, LOUD, "1.5")


def test_a_virtual_environment_by_folder_and_by_python(made_venv):
    folder, packages = made_venv
    for place in (folder, folder / "bin" / "python"):
        seen = of_python(place, known())
        assert seen.distribution("Toyup").version == "1.5"
        assert seen.file("toyup/core.py") == packages.resolve() / "toyup" / "core.py"
        assert seen.option == f" --python {place}"


def test_the_import_path_and_editable_installs_count(made_venv, tmp_path, monkeypatch):
    folder, packages = made_venv
    write_tree(tmp_path / "checkout", SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "checkout"))
    assert of_python(folder, known()).file("toyup/core.py") == tmp_path / "checkout" / "toyup" / "core.py"
    monkeypatch.delenv("PYTHONPATH")
    write_tree(tmp_path / "other", {"late/__init__.py": "", "late/core.py": ""})
    place = str(tmp_path / "other" / "late")
    finder = f"MAPPING: dict[str, str] = {{'late': {place!r}}}\ndef install(): raise SystemExit\n"
    pth = "import __editable___late_1_finder; __editable___late_1_finder.install()\n"
    write_tree(packages, {"__editable__.late.pth": pth, "__editable___late_1_finder.py": finder, "p.pth": "../inner\n"})
    write_tree(packages.parent / "inner", {"near/__init__.py": ""})
    answer = environment._asked(folder / "bin" / "python", ["late", "near"], [])
    assert answer["packages"] == {"late": [place], "near": [str(packages.parent.resolve() / "inner" / "near")]}
    assert answer["unread"] == []


DISTUTILS = "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'\n"


@pytest.mark.parametrize("name", ["odd.pth", "sitecustomize.py", "usercustomize.py", "__editable__.x.pth"])
def test_nothing_of_the_environment_runs_and_what_would_is_named(tmp_path, name):
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    installed(packages, LOUD)
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    write_tree(packages, {name: trap, "distutils-precedence.pth": DISTUTILS})
    if name != "usercustomize.py":  # which a virtual environment does not take
        subprocess.run([tmp_path / "env" / "bin" / "python", "-c", ""], capture_output=True)
        (tmp_path / "ran").unlink()  # the trap works
    seen = of_python(tmp_path / "env", known())
    assert not (tmp_path / "ran").exists()
    assert [(Path(line.file).name, line.line) for line in seen.unread] == [(name, 1)]
    assert seen.distribution("toyup").version == "1.0"


def test_metadata_that_is_no_file_is_not_waited_for(tmp_path):
    installed(tmp_path, LOUD)
    (tmp_path / "toyup-1.0.dist-info" / "METADATA").unlink()
    os.mkfifo(tmp_path / "toyup-1.0.dist-info" / "METADATA")
    assert of_python(tmp_path, known()).distribution("toyup").version == "1.0"


def test_further_metadata_of_a_distribution_is_told(tmp_path):
    installed(tmp_path, LOUD, "1.0")
    installed(tmp_path, {}, "2.0")
    seen = of_python(tmp_path, known()).distribution("toyup")
    assert {seen.version, *seen.others} == {"1.0", "2.0"}


def test_a_folder_of_packages(tmp_path):
    seen = of_python(installed(tmp_path, LOUD), known())
    assert seen.distribution("toyup").version == "1.0" and seen.file("toyup/core.py") == tmp_path / "toyup" / "core.py"
    assert seen.file("toyup/absent.py") is None and seen.file("absent/core.py") is None


def test_an_empty_folder_has_nothing_of_this_interpreters_own(tmp_path):
    assert of_python(tmp_path, known()).packages == {}


def test_a_namespace_is_searched_as_an_import_would(tmp_path, monkeypatch):
    """A folder with __init__.py hides those of its name behind it; namespace folders are one."""
    one = write_tree(tmp_path / "one", {"toyup/inner/__init__.py": "", "toyup/left/x.py": ""})
    two = write_tree(tmp_path / "two", {"toyup/inner/x.py": "", "toyup/left/y.py": ""})
    seen = environment.Environment("", "", packages={"toyup": [one / "toyup", two / "toyup"]})
    assert seen.file("toyup/left/y.py") == two / "toyup/left/y.py"
    assert seen.file("toyup/inner/x.py") is None


@pytest.mark.parametrize("place", ["absent/python", "/bin/true", "README", "broken", "slow"])
def test_what_is_no_python_is_refused_with_the_remedy(place, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "ANSWER_S", 0.5)
    (tmp_path / "README").write_text("text")
    for name, script in (("broken", "echo '{\"a\": 1}'"), ("slow", "exec sleep 9")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(PatchlaneError) as refused:
        of_python(tmp_path / place, known())
    assert "--python" in refused.value.what and refused.value.remedy


def test_an_old_python_can_be_asked():
    old = next((place for place in (Path.home() / ".pyenv/versions").glob("3.8.*/bin/python")), None)
    if old is None:
        pytest.skip("no Python 3.8 here")
    assert of_python(old, known()).label == str(old)


def test_the_question_needs_the_standard_library_only():
    code = (
        f"import runpy, sys; runpy.run_path({environment.ask.__file__!r}); print({{'reproducers'}} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
