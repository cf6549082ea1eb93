"""Each pack's answer: buggy, patched, fixed, absent, or unknown with what decides."""

import pytest
from toy import SOURCE, edited, write_tree
from toy_environment import BUGGY, FIXED, HEALTHY, MENDED, PATCHED, code, installed, known, tree

from reproducers.base.verdicts import Exit
from reproducers.studies.installed.environment import of_python, of_requirements
from reproducers.studies.installed.judgement import audit, exit_code

REFORMATTED = {**SOURCE, "toyup/core.py": SOURCE["toyup/core.py"].replace("result = 0.0", "result = (0.0)  # zero")}
STRANGE = edited(("values[1:]:", "values[2:]:"))
MIXED = edited(("values[1:]:", "values:"))


@pytest.fixture
def answer(toy, tmp_path):
    """The toy's answer for an installation with these files, by these fingerprints."""
    pack = toy.pack()

    def ask(files, fingerprints=None, **more):
        folder = installed(tmp_path / "site", files, **more)
        (result,) = audit([pack], fingerprints or known(), of_python(folder, fingerprints or known()))
        return result

    return ask


@pytest.mark.parametrize(
    ("files", "state", "code"),
    [
        (SOURCE, "buggy", 1),
        (REFORMATTED, "buggy", 1),
        (PATCHED, "patched", 0),
        (FIXED, "fixed", 0),
        (STRANGE, "unknown", 77),
        (MIXED, "unknown", 77),
        ({**SOURCE, "toyup/core.py": "def broken(:"}, "unknown", 77),
        ({"toyup/__init__.py": ""}, "absent", 77),
        ({"toyup/__init__.py": "", "toyup/core.py": "x = 1\n"}, "unknown", 77),
        ({"other/__init__.py": ""}, "absent", 77),
    ],
)
def test_the_code_decides_whatever_the_version_says(answer, files, state, code):
    for version in ("1.0", "2.0", None):
        found = answer(files, version=version)
        assert (found.state, exit_code([found])) == (state, code), found
        assert found.by == ("code" if state in ("buggy", "patched", "fixed") else "")


def test_a_bug_names_its_place_and_both_ways_out(answer, tmp_path):
    found = answer(SOURCE)
    assert [(place.function, place.line) for place in found.places] == [("first", 37), ("total", 4)]
    assert found.remedy.startswith("pip install toyup==2.0 or patch -F0 -p1 -d ") and found.cost
    assert str(tmp_path / "site") in found.remedy and found.remedy.endswith("07_toy/fix.patch")


def test_a_patch_that_does_not_apply_is_not_offered_as_a_command(answer):
    moved = {**SOURCE, "toyup/core.py": "LIMIT = 1\n" + SOURCE["toyup/core.py"]}
    found = answer(moved, known(BUGGY, MENDED))
    assert found.state == "buggy" and found.remedy.startswith("rebase ") and "patch -F0" not in found.remedy


def test_a_bug_without_a_way_out_says_so(answer):
    found = answer(SOURCE, known(BUGGY.model_copy(update={"patch": None}), MENDED))
    assert found.remedy.startswith("none is known") and "notes.md" in found.remedy


def test_unknown_code_names_the_functions_and_what_decides(answer, tmp_path):
    found = answer(STRANGE)
    assert "total" in found.reason and "first" not in found.reason
    assert found.remedy == f"python -m reproducers.audit pack07 --python {tmp_path / 'site'} --run"
    assert answer(MIXED).measurable


def test_one_code_in_two_states_is_unknown(answer):
    assert answer(SOURCE, known(BUGGY, tree("1.1", "fixed", SOURCE))).state == "unknown"


@pytest.mark.parametrize(
    ("versions", "state"),
    [
        ({}, "unknown"),
        ({"aside": "2.13.0"}, "buggy"),
        ({"aside": "2.13"}, "buggy"),
        ({"aside": "2.20.2"}, "fixed"),
        ({"aside": "2.14.0"}, "unknown"),
        ({"aside": "2.13.0", "aside-more": "2.20.2"}, "unknown"),
    ],
)
def test_what_is_installed_beside_decides_where_receipts_say_so(answer, tmp_path, versions, state):
    for name, version in versions.items():
        installed(tmp_path / "site", {}, version, name)
    old, new = ({"aside": release, "aside-more": release} for release in ("2.13.0", "2.20.2"))
    found = answer(SOURCE, known(BUGGY.model_copy(update={"beside": old}), tree("1.1", "fixed", SOURCE, beside=new)))
    assert found.state == state
    assert not found.measurable and (found.remedy != "" or state == "fixed")


BY_RELEASE = known(tree("1.0", "buggy"), tree("2.0", "fixed"), tree("0.9", "fixed"))


@pytest.mark.parametrize(
    ("version", "state"),
    [("1.0", "buggy"), ("1.0.0", "buggy"), ("2.0", "fixed"), ("3.0", "unknown"), (None, "unknown")],
)
def test_without_a_patch_the_release_decides(answer, version, state):
    found = answer(SOURCE, BY_RELEASE, version=version)
    assert (found.state, found.by) == (state, "release" if state != "unknown" else "")
    if version == "3.0":
        assert found.remedy == "python -m reproducers.run pack07 --at 3.0"
    if state == "buggy":
        assert found.remedy == "pip install toyup==2.0"


def test_a_package_that_hides_the_installed_one_has_no_release(answer, toy, tmp_path, monkeypatch):
    installed(tmp_path / "site")
    hiding = write_tree(tmp_path / "checkout", SOURCE)
    monkeypatch.setenv("PYTHONPATH", f"{hiding}:{tmp_path / 'site'}")
    (found,) = audit([toy.pack()], BY_RELEASE, of_python(None, BY_RELEASE))
    assert found.state == "unknown" and str(hiding) in found.reason


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("toyup==1.0", "buggy"),
        ("toyup==2.0", "fixed"),
        ("toyup==3.0", "unknown"),
        ("toyup>=1.0", "unknown"),
        ("other==1", "absent"),
    ],
)
def test_requirements_are_judged_by_release(toy, tmp_path, line, state):
    (tmp_path / "r.txt").write_text(f"first==1\n{line}\n")
    for fingerprints in (known(), BY_RELEASE):
        (found,) = audit([toy.pack()], fingerprints, of_requirements(tmp_path / "r.txt"))
        assert found.state == state and "--run" not in found.remedy
        assert [place.line for place in found.places] == ([] if state == "absent" else [2])


def test_exit_codes():
    assert exit_code([]) == Exit.CANNOT_TEST
    assert MENDED.code != code(SOURCE) and HEALTHY.code != BUGGY.code
