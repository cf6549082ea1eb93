"""Patches on large wheels, commits and named trees: what is read, what is refused, what receipts know already."""

import json
import os

import many_releases
import pytest
import ranges
from toy import SOURCE, git, write_tree
from typer.testing import CliRunner

from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.exits import Exit
from reproducers import applies, sweep
from reproducers.studies.versions import applying

BALLAST = {f"toyup/ballast_{number}.txt": os.urandom(300_000).hex() for number in range(4)}  # 2.4 MB
ADDED = (
    "diff --git a/toyup/more.py b/toyup/more.py\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/toyup/more.py\n@@ -0,0 +1 @@\n+X = 1\n"
)


def told(*args):
    done = CliRunner().invoke(applies.app, ["--json", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def large(released, monkeypatch):
    """The toy with a release 3.0 that is large beside the limit, in which fix.patch applies."""
    many_releases.wheel(released.root / "index", "toyup", "3.0", {**SOURCE, **BALLAST})
    many_releases.page(released.root / "index", "toyup")
    monkeypatch.setattr(applying, "LARGE", 1_000_000)
    return released


def asked(monkeypatch, url):
    monkeypatch.setenv("PIP_INDEX_URL", url)


def test_of_a_large_wheel_only_the_files_of_the_patch_are_read(large, monkeypatch):
    with (large.folder / "fix.patch").open("a") as patch:
        patch.write(ADDED)
    with ranges.serving(large.root / "index") as (url, sent):
        asked(monkeypatch, url)
        (row,) = told("pack07", "--newest", "1")["rows"]
    assert (row["release"], row["word"]) == ("3.0", "applies")
    assert sent.whole == 0 and sent.parts and sent.bytes < 200_000
    assert "CRC" in row["read"] and "3.0" in row["read"]
    assert not list((large.root / "store" / "artifacts").iterdir())


def test_the_answer_is_that_of_the_whole_wheel(large, monkeypatch):
    beside = ADDED.replace("toyup/more.py", "toymore.py")  # would be importable under a new name
    for extra in ("", ADDED, beside):
        patch = (large.folder / "fix.patch").read_text().partition("diff --git a/toyup/more")[0].partition(ADDED)[0]
        (large.folder / "fix.patch").write_text(patch + extra)
        with ranges.serving(large.root / "index") as (url, sent):
            asked(monkeypatch, url)
            parts = _words(("pack07", "--at", "3.0"))
            whole = _words(("pack07", "--at", "3.0", "--download"))
        assert parts == whole and sent.parts
        for path in (large.root / "store").rglob("*.json"):
            path.unlink()
        for path in (large.root / "store" / "artifacts").rglob("*.whl"):
            path.unlink()
        (large.folder / "fix.patch").write_text(patch)


def _words(args):
    try:
        return [(row["release"], row["word"], row["patch"]) for row in told(*args)["rows"]]
    except CannotTestHere as error:
        return error.what


def test_an_index_without_ranges_is_refused_with_the_size(large, monkeypatch):
    with ranges.serving(large.root / "index", ranges=False) as (url, sent):
        asked(monkeypatch, url)
        row = told("pack07", "--newest", "2")["rows"][-1]
        assert (row["release"], row["word"]) == ("3.0", "cannot test")
        assert "2.3 MiB" in row["why"] and "--download" in row["why"]
        before = sent.bytes
        (row,) = told("pack07", "--newest", "1", "--download")["rows"]
        assert (row["word"], row["read"]) == ("applies", "") and sent.bytes - before > 2_400_000


def test_a_file_of_unknown_size_is_read_by_parts_or_refused(large, monkeypatch):
    monkeypatch.setattr(applying.index, "size", lambda *asked: None)
    with ranges.serving(large.root / "index") as (url, sent):
        asked(monkeypatch, url)
        (row,) = told("pack07", "--newest", "1")["rows"]
    assert row["word"] == "applies" and row["read"] and sent.whole == 0
    with ranges.serving(large.root / "index", ranges=False) as (url, sent):
        asked(monkeypatch, url)
        with pytest.raises(CannotTestHere, match="unknown size"):
            told("pack07", "--newest", "1")


def test_a_member_that_is_spoilt_on_its_way_is_no_answer(large, monkeypatch):
    def spoil(data):  # the file's bytes, not the wheel's table
        return data.replace(b"result += value", b"result -= value") if b"PK\5\6" not in data else data

    with ranges.serving(large.root / "index", spoil=spoil) as (url, _):
        asked(monkeypatch, url)
        with pytest.raises(CannotTestHere, match="CRC"):
            told("pack07", "--newest", "1")


def test_commits_and_named_trees(released):
    clone = released.root / "clone"
    write_tree(clone, SOURCE)
    git("init", "-q", cwd=clone)
    for text in ("", "# a line\n"):
        (clone / "toyup/core.py").write_text(text + SOURCE["toyup/core.py"])
        git("add", "-A", cwd=clone)
        git("commit", "-qm", "one", cwd=clone)
    new, old = git("log", "--format=%H", cwd=clone).split()
    git("tag", "v9.0", new, cwd=clone)
    rows = told("pack07", "--commits", f"{old[:9]},v9.0", "--upstream", str(clone))["rows"]
    assert [(row["release"], row["word"]) for row in rows] == [(old, "applies"), (new, "offset")]
    for args in (["--at", new], ["--at", "v9.0"], []):
        (row,) = told("pack07", *args, "--upstream", str(clone))["rows"]
        assert row["word"] == "offset", args
    (row,) = told("pack07", "--at", "1.4")["rows"]
    assert (row["release"], row["word"]) == ("1.4", "already in")
    (row,) = told("pack07", "--at", "live")["rows"]
    assert (row["release"], row["word"]) == ("1.0", "applies")
    for args in (["--commits", old], ["--commits", "gone", "--upstream", str(clone)]):
        with pytest.raises(PatchlaneError) as refused:
            told("pack07", *args)
        assert refused.value.exit_code == Exit.USAGE and refused.value.remedy


def test_a_patch_without_a_diff_is_no_patch_that_applies(released):
    (released.folder / "fix.patch").write_text("Subject: <write it>\n\n<write the diff>\n")
    assert told("pack07", "--newest", "2") == {"rows": [], "proposed": []}


def test_what_a_sweep_found_is_used(released):
    other = {
        **many_releases.GOOD,
        "toyup/core.py": many_releases.GOOD["toyup/core.py"].replace("result = 0.0", "result = 0"),
    }
    many_releases.wheel(released.root / "index", "toyup", "3.0", other)
    many_releases.page(released.root / "index", "toyup")
    (proposed,) = told("pack07", "--newest", "1")["proposed"]
    assert "python -m reproducers.sweep pack07 --newest 1" in proposed
    done = CliRunner().invoke(sweep.app, ["pack07", "--newest", "1"], catch_exceptions=False)
    assert "healthy" in done.output, done.output
    found = told("pack07", "--newest", "1")
    (row,), (proposed,) = found["rows"], found["proposed"]
    assert (row["word"], row["known"]) == ("conflicts", "healthy") and row["receipt"] in proposed
    assert "rebase" not in proposed and "3.0" in proposed
