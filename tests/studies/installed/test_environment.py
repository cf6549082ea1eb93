"""What is installed is read without importing it, from interpreters, folders and requirements."""

import subprocess
import sys
import venv

import pytest
from toy import SOURCE, write_tree
from toy_environment import installed, known

from reproducers.base.errors import PatchlaneError
from reproducers.studies.installed import environment
from reproducers.studies.installed.environment import of_python, of_requirements

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
    finder = (
        "import sys, importlib.util as u\n"
        "class F:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        at = {str(tmp_path / 'other' / 'late')!r}\n"
        "        found = u.spec_from_file_location(name, at + '/__init__.py', submodule_search_locations=[at])\n"
        "        return found if name == 'late' else None\n"
        "sys.meta_path.append(F)\n"
    )
    write_tree(packages, {"late.pth": "import late_finder\n", "late_finder.py": finder})
    answer = environment._asked(folder / "bin" / "python", ["late"], [])
    assert answer["packages"] == {"late": [str(tmp_path / "other" / "late")]}


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


def test_what_an_interpreter_prints_beside_its_answer_does_no_harm(made_venv):
    folder, packages = made_venv
    write_tree(packages, {"loud.pth": "import sys; print('hello')\n"})
    assert of_python(folder, known()).distribution("toyup").version == "1.5"


def test_an_old_python_can_be_asked():
    old = next((place for place in (environment.Path.home() / ".pyenv/versions").glob("3.8.*/bin/python")), None)
    if old is None:
        pytest.skip("no Python 3.8 here")
    assert of_python(old, known()).label == str(old)


LINES = """\
# a comment
--index-url https://example.org
ToyUp[extra] == 1.0 --hash=sha256:aa \\
    --hash=sha256:bb
other>=2  # later
third==1.*
fourth==1.0; python_version < "3.12"
fifth @ git+https://example.org/x
sixth==1.0
sixth==1.1
-r more/inner.txt
seventh==3
"""


def test_requirements(tmp_path):
    write_tree(tmp_path, {"r.txt": LINES, "more/inner.txt": "eighth===2.0\n-r ../r.txt\n"})
    seen = of_requirements(tmp_path / "r.txt")
    versions = {name: each.version for name, each in seen.distributions.items()}
    assert versions == {
        "toyup": "1.0", "other": None, "third": None, "fourth": None, "fifth": None, "sixth": None,
        "seventh": "3", "eighth": "2.0",
    }  # fmt: skip
    lines = {name: each.line for name, each in seen.distributions.items()}
    assert (lines["toyup"], lines["other"], lines["seventh"], lines["eighth"]) == (3, 5, 12, 1)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_requirements_that_cannot_be_read(tmp_path, content):
    if content:
        (tmp_path / "r.txt").write_bytes(content)
    with pytest.raises(PatchlaneError) as refused:
        of_requirements(tmp_path / "r.txt")
    assert refused.value.remedy


def test_the_question_needs_the_standard_library_only():
    code = (
        f"import runpy, sys; runpy.run_path({environment.ask.__file__!r}); print({{'reproducers'}} & {{*sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
