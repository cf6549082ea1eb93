"""Patches on the newest releases of the toy: no arm runs, and each of the three answers is given."""

import json
import os

import many_releases
import pytest
from toy import FIRST, SOURCE, TOTAL, diff, edited, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers import applies
from reproducers.carried import entry, importing
from reproducers.carried.patches import mails
from reproducers.trial import experiment


def told(*args):
    done = CliRunner().invoke(applies.app, ["--json", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_each_answer(released, monkeypatch):
    monkeypatch.setattr(experiment, "run_arm", lambda *args: pytest.fail("an arm ran"))
    moved = {**SOURCE, "toyup/core.py": "# a line\n" + SOURCE["toyup/core.py"]}
    many_releases.wheel(released.root / "index", "toyup", "1.3", moved)
    many_releases.page(released.root / "index", "toyup")
    found, said = told()
    assert {row["release"]: row["word"] for row in found["rows"]} == {
        "1.0": "applies",
        "1.1": "conflicts",
        "1.2": "applies",
        "1.3": "offset",
        "1.4": "already in",
        "1.10": "already in",
    }
    assert found["proposed"] == ["pack07: retire it from 1.4 on: the patch is already in 1.10"]
    assert "already in" in said and "toyup" in said
    assert [row["release"] for row in told("pack07", "--newest", "2")[0]["rows"]] == ["1.4", "1.10"]


def test_the_best_of_several_patches(released):
    narrow = released.patch(edited(TOTAL, core=many_releases.SOURCE["toyup/core.py"]))
    (released.folder / "other.patch").write_text(narrow)
    record = (released.folder / "pack.yaml").read_text()
    pin = f"pins:\n  main:\n    sha: {'c' * 40}\n    patch: other.patch\n"
    (released.folder / "pack.yaml").write_text(record.replace("pins:\n", pin))
    (released.folder / "fix.patch").write_text("Subject: no\n\n" + narrow.replace("toyup/core", "toyup/gone"))
    rows = {row["release"]: row for row in told()[0]["rows"]}
    assert (rows["1.0"]["word"], rows["1.0"]["patch"]) == ("applies", "other.patch")
    assert rows["1.4"]["word"] == "already in"


def test_a_release_that_cannot_be_had_is_said(released):
    (released.root / "index" / "toyup-1.4-py3-none-any.whl").write_bytes(b"another")
    rows = {row["release"]: row for row in told()[0]["rows"]}
    assert (rows["1.4"]["word"], rows["1.10"]["word"]) == ("cannot test", "already in")


def test_offline(released, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(CannotTestHere):
        told("--offline")


@pytest.fixture
def queue(released):
    """A carried queue of two patches for release 1.0: one of a file that no wheel has, one of total."""
    old = {**SOURCE, "CMakeLists.txt": "a\n"}
    (released.root / "1.patch").write_text(diff(released.root, old, {**old, "CMakeLists.txt": "b\n"}))
    (released.root / "2.patch").write_text(diff(released.root, SOURCE, edited(TOTAL, FIRST)))
    given = importing.subject("toy/toyup", "1.0", None, "toyup", None)
    taken, _ = importing.entries(
        mails.files([released.root / "1.patch", released.root / "2.patch"]), given, "theirs", None, False
    )
    entry.write(released.root, "q", taken)
    return str(released.root / "q")


def words(rows):
    return {(row["entry"], row["tree"]): row["word"] for row in rows}


def test_a_queue_on_releases(queue):
    found, said = told(queue, "--newest", "2")
    assert words(found["rows"]) == {
        ("01_1", "1.0"): "in no wheel",
        ("02_2", "1.0"): "applies",
        ("01_1", "1.4"): "in no wheel",
        ("02_2", "1.4"): "already in",
        ("01_1", "1.10"): "in no wheel",
        ("02_2", "1.10"): "already in",
    }
    assert "--upstream CLONE" in said and "CMakeLists.txt" in said
    (file,) = found["rows"][-1]["files"]
    assert [(hunk["number"], hunk["word"]) for hunk in file["hunks"]] == [(1, "already in"), (2, "already in")]


def test_a_queue_on_one_release_that_conflicts(queue):
    found, said = told(queue, "--at", "1.1")
    assert words(found["rows"])["02_2", "1.1"] == "conflicts"
    hunk = found["rows"][-1]["files"][0]["hunks"][0]
    assert (hunk["word"], hunk["differs"]) == ("conflicts", None) and hunk["why"] in said


def test_a_queue_in_a_clone(queue, tmp_path):
    clone = write_tree(tmp_path / "clone", {**SOURCE, "CMakeLists.txt": "a\n"})
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"], ["tag", "core_v1.0"]):
        git(*command, cwd=clone)
    write_tree(clone, edited(TOTAL))
    for command in (["commit", "-qam", "sums all"], ["tag", "core_v1.5"]):
        git(*command, cwd=clone)
    found, said = told(queue, "--at", "1.5", "--upstream", str(clone))
    assert words(found["rows"]) == {
        ("01_1", "1.0"): "applies",
        ("02_2", "1.0"): "applies",
        ("01_1", "1.5"): "applies",
        ("02_2", "1.5"): "partly in",
    }
    span, said = told(queue, "--commits", "core_v1.0..core_v1.5", "--upstream", str(clone))
    assert [row["word"] for row in span["rows"]] == ["applies", "applies", "applies", "partly in"]
    assert "applies -> partly in" in said
    with pytest.raises(CannotTestHere):
        told(queue, "--at", "f" * 40)
    with pytest.raises(PatchlaneError):
        told(queue, "pack07")


def test_a_release_that_a_queue_cannot_have(queue, tmp_path):
    (tmp_path / "index/toyup-1.10-py3-none-any.whl").write_bytes(b"another")
    found, said = told(queue, "--newest", "2")
    assert words(found["rows"])["02_2", "1.4"] == "already in" and words(found["rows"])["02_2", "1.10"] == "cannot test"
    assert "toyup-1.10" in said
