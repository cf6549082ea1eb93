"""Patches on the newest releases of the toy: no arm runs, and each of the three answers is given."""

import json
import os

import many_releases
import pytest
from toy import SOURCE, TOTAL, edited
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere
from reproducers import applies
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
