"""Import by the command line: patches in, entries out, and what is no patch is named."""

import json

import pytest
from toy import SOURCE, TOTAL, diff, edited, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import PatchlaneError
from reproducers import carry
from reproducers.__main__ import VERBS
from reproducers.carried import entry
from reproducers.evidence import manifest
from reproducers.record.schema import load_packs

GIVEN = ["--upstream", "toy/toyup", "--base", "1.0"]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("PATCHLANE_OFFLINE", "1")
    monkeypatch.setenv("PATCHLANE_STORE", str(tmp_path / "store"))


@pytest.fixture
def patch(tmp_path):
    path = tmp_path / "ours.patch"
    path.write_text(diff(tmp_path, {**SOURCE, "a.py": ""}, {**edited(TOTAL), "a.py": "x = '@flag@'\n"}))
    return path


def told(*args):
    done = CliRunner().invoke(carry.app, ["--json", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_patch_becomes_an_entry(tmp_path, patch):
    found, said = told(patch, *GIVEN, "--into", tmp_path / "carried", "--origin", "https://example.org/q")
    (one,) = found["entries"]
    folder = tmp_path / "carried/ours/01_ours"
    assert (one["kind"], one["origin"], one["folder"]) == ("carry", "https://example.org/q", str(folder))
    assert (folder / "carried.patch").read_bytes() == patch.read_bytes()
    assert [word for _, word in one["remarks"] if "@flag@" in word] and f"applies {folder.parent}" in said


def test_by_file_and_what_is_no_patch(tmp_path, patch):
    (tmp_path / "0000-cover.patch").write_text("Subject: [PATCH 0/1] why\n\nwords\n")
    found, said = told(tmp_path / "0000-cover.patch", patch, *GIVEN, "--split", "file", "--into", tmp_path / "c")
    assert [(one["part"], len(one["subject"]) > 0) for one in found["entries"]] == [
        ("a.py", True),
        ("toyup/core.py", True),
    ]
    (digests, cover) = found["left_out"]
    assert cover.startswith("0000-cover.patch:1:") and "0000-cover" in said and "digests" in digests


def test_a_branch(tmp_path):
    clone = write_tree(tmp_path / "clone", SOURCE)
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "a"], ["checkout", "-qb", "ours"]):
        git(*command, cwd=clone)
    write_tree(clone, edited(TOTAL))
    git("commit", "-qam", "sum all values", cwd=clone)
    args = ["--branch", "ours", "--clone", clone, "--upstream", "toy/toyup", "--base", "main", "--into", tmp_path / "c"]
    (one,) = told(*args)[0]["entries"]
    assert (one["subject"], one["author"]) == ("sum all values", "toy <toy@example.org>")
    assert list(one["functions"]) == ["toyup/core.py:total"]
    assert one["base"]["sha"] == git("rev-parse", "main", cwd=clone).strip()


@pytest.mark.parametrize(
    "args",
    [
        ["ours.patch"],
        GIVEN,
        [*GIVEN, "--branch", "x"],
        ["ours.patch", *GIVEN, "--split", "hunk"],
        ["ours.patch", *GIVEN, "--queue", "../out"],
        ["nowhere.patch", *GIVEN],
        ["empty.patch", *GIVEN],
        ["out.patch", *GIVEN],
    ],
)
def test_what_is_refused_writes_nothing(tmp_path, patch, monkeypatch, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.patch").write_text("")
    (tmp_path / "out.patch").write_text("--- a/x\n+++ b/../../x\n@@ -1 +1 @@\n-a\n+b\n")
    with pytest.raises(PatchlaneError) as caught:
        CliRunner().invoke(carry.app, [*args, "--into", "c"], catch_exceptions=False)
    assert caught.value.remedy
    assert not list(tmp_path.glob("c/*"))


def test_it_is_the_verb_import_and_no_pack(tmp_path, patch, monkeypatch):
    assert VERBS["import"] == "reproducers.carry"
    monkeypatch.setattr(entry, "FOLDER", tmp_path / "packs/carried")
    told(patch, *GIVEN)
    assert entry.load("ours") and load_packs(tmp_path / "packs") == []
    assert manifest.build([], tmp_path / "receipts") == {}
