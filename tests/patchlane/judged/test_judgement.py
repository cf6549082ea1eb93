"""Each pack's answer: buggy, patched, fixed, absent, or unknown with what decides."""

import os
from dataclasses import replace

import pytest
from toy import SOURCE, edited, write_tree
from toy_environment import BUGGY, FIXED, HEALTHY, MENDED, PATCHED, code, installed, known, known_of, tree

from patchlane.base.exits import Exit
from patchlane.judged import judgement
from patchlane.judged.answers import exit_code
from patchlane.judged.judgement import audit
from patchlane.listed import formats
from patchlane.present.environment import of_python, of_reading

REFORMATTED = {**SOURCE, "toyup/core.py": SOURCE["toyup/core.py"].replace("result = 0.0", "result = (0.0)  # zero")}
STRANGE = edited(("values[1:]:", "values[2:]:"))
MIXED = edited(("values[1:]:", "values:"))


@pytest.fixture
def answer(tmp_path):
    """The toy's answer for an installation with these files, by this index."""

    def ask(files, fingerprints=None, **more):
        folder = installed(tmp_path / "site", files, **more)
        (result,) = audit(fingerprints or known(), of_python(folder, fingerprints or known()))
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
        assert (found.state, exit_code([found], [])) == (state, code), found
        assert found.by == ("code" if state in ("buggy", "patched", "fixed") else "")


def test_a_bug_names_its_place_and_the_patch_for_its_code(answer, tmp_path):
    found = answer(SOURCE)
    assert [(place.function, place.line) for place in found.places] == [("first", 37), ("total", 4)]
    assert (found.patch, found.root, found.label) == ("fix.patch", str(tmp_path / "site"), "1.0") and found.cost


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
    found = answer(SOURCE, known(replace(BUGGY, beside=old), tree("1.1", "fixed", SOURCE, beside=new)))
    assert found.state == state
    assert not found.measurable and (found.remedy != "" or state in ("fixed", "buggy"))


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


def test_a_package_that_hides_the_installed_one_has_no_release(answer, toy, tmp_path, monkeypatch):
    installed(tmp_path / "site")
    hiding = write_tree(tmp_path / "checkout", SOURCE)
    monkeypatch.setenv("PYTHONPATH", f"{hiding}:{tmp_path / 'site'}")
    (found,) = audit(BY_RELEASE, of_python(None, BY_RELEASE))
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
        (found,) = audit(fingerprints, of_reading(formats.read(tmp_path / "r.txt", {})))
        assert found.state == state and "--run" not in found.remedy
        assert [place.line for place in found.places] == ([] if state == "absent" else [2])


WHOLE = {
    "r.txt": ("first==1\n", False),
    "pip_list.txt": ("Package Version\n------- -------\nfirst   1\n", True),
    "uv.lock": ('version = 1\n[[package]]\nname = "first"\nversion = "1"\nsource = { registry = "x" }\n', True),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_requirements_require_in_turn_is_not_followed_and_that_is_told(toy, tmp_path, name):
    text, whole = WHOLE[name]
    (tmp_path / name).write_text(text)
    seen = of_reading(formats.read(tmp_path / name, {}))
    (found,) = audit(known(), seen)
    assert (found.state, seen.whole, "in turn" in found.reason) == ("absent", whole, not whole)


def test_exit_codes():
    assert exit_code([], []) == Exit.CANNOT_TEST
    assert MENDED.code != code(SOURCE) and HEALTHY.code != BUGGY.code


@pytest.mark.parametrize("kind", ["fifo", "large", "deep"])
def test_a_file_that_no_source_can_be_is_unknown(answer, toy, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(judgement, "LARGEST", 10_000)
    answer(SOURCE)
    place = tmp_path / "site" / "toyup" / "core.py"
    place.unlink()
    if kind == "fifo":
        os.mkfifo(place)
    else:
        place.write_text("x = " + ("(" * 3000 if kind == "deep" else "1" * 20_000))
    (found,) = audit(known(), of_python(tmp_path / "site", known()))
    assert (found.state, found.measurable) == ("unknown", True)


SHA = "a1b2c3" * 6 + "abc1"
UNREAD = "two words\n"


@pytest.fixture
def required(toy, tmp_path):
    """The toy's answer for these lines of a requirements file, and the exit code."""

    def ask(text, *trees):
        (tmp_path / "r.txt").write_text(text)
        mine = known_of(toy.pack(), trees=trees)
        seen = of_reading(formats.read(tmp_path / "r.txt", mine.index.repositories))
        (found,) = audit(mine, seen)
        return found, exit_code([found], seen.unread)

    return ask


@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        (f"other==1\n{UNREAD}", "unknown", 77),
        (f"toyup==2.0\n{UNREAD}", "fixed", 77),
        (f"toyup==1.0\n{UNREAD}", "buggy", 1),
        ("toyup==1.0 ; python_version >= '3.10'", "buggy", 1),
        ("toyup==1.0; sys_platform == 'linux'\ntoyup==2.0; sys_platform != 'linux'", "unknown", 77),
        ("toyup==2.0; sys_platform == 'linux'\ntoyup==2.0.0; sys_platform != 'linux'", "fixed", 0),
        ("toyup==1.0\ntoyup==2.0", "unknown", 77),
        ("toyup==1.0\ntoyup>=2", "unknown", 77),
        ("toyup==1.0; python_version < '3'\nother==1", "absent", 77),
        ("toyup\n-c limits.txt", "buggy", 1),
        ("other==1\n-c limits.txt", "unknown", 77),
        ("toyup\n-c limits.txt\ntoyup==2.0", "unknown", 77),
        (f"toyup @ git+https://github.com/UP@{SHA}", "fixed", 0),
        (f"-e git+https://github.com/any/fork@{SHA[:12]}#egg=toyup", "fixed", 0),
        (f"toyup @ git+https://github.com/UP@{SHA[::-1]}", "unknown", 77),
        ("toyup @ git+https://github.com/UP@v1.0", "buggy", 1),
        ("toyup @ git+https://github.com/a/fork@v1.0", "unknown", 77),
        ("toyup @ git+https://github.com/UP@main", "unknown", 77),
        ("./toyup-1.0-py3-none-any.whl", "buggy", 1),
        ("toyup @ https://x/toyup-2.0-py3-none-any.whl", "fixed", 0),
        ("# Editable install with no version control (toyup==1.0)\n-e /opt/toy", "unknown", 77),
    ],
)
def test_what_lines_say_of_a_version(required, toy, tmp_path, text, state, code):
    (tmp_path / "limits.txt").write_text("toyup==1.0\n")
    found, ended = required(
        text.replace("UP@", f"{toy.pack().upstream.repo}@"), BUGGY, MENDED, HEALTHY, tree(SHA, "fixed", FIXED)
    )
    assert (found.state, ended) == (state, code), found


def test_the_commit_of_a_release_is_the_release(toy, tmp_path):
    pack = toy.pack()
    pin = pack.pins["live"].model_copy(update={"sha": SHA})
    other = pack.model_copy(update={"pins": {**pack.pins, "live": pin}})
    (tmp_path / "r.txt").write_text(f"git+https://github.com/x/y@{SHA}#egg=toyup\n")
    seen = of_reading(formats.read(tmp_path / "r.txt", {}))
    (found,) = audit(known_of(other), seen)
    assert (found.state, found.version) == ("buggy", SHA)
