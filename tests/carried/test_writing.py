"""The files of a moved queue: git am and git apply take them, each with its own words."""

import subprocess

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried import moving, writing
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.meeting.trees import Tree

MAIL = (
    "From 1234567890123456789012345678901234567890 Mon Sep 17 00:00:00 2001\nFrom: Ann <ann@example.org>\n"
    "Date: Mon, 2 Mar 2026 10:00:00 +0000\nSubject: [PATCH] sum all\n\nWhy it is so.\n---\n core.py | 99 +\n\n"
)
TARGET = edited(core="# a line\n" + CORE)


def tree(files):
    content = {name: text.encode() for name, text in files.items()}
    return Tree("9.9", content, frozenset(content))


def carried(tmp_path, text, name="01_one"):
    folder = write_tree(tmp_path / "q" / name, {"carried.patch": text})
    upstream = Upstream(repo="toy/toyup", distribution="toyup")
    return Carried(upstream=upstream, base=Base(release="1.0"), subject=name, source="p", folder=folder)


def series(entries, target=TARGET):
    return writing.series(moving.move(entries, tree(SOURCE), tree(target), {}), tree(target))


def test_mails_go_by_git_am(tmp_path):
    first = edited(TOTAL)
    second = {**first, "run.sh": "x\n"}
    entries = [
        carried(tmp_path, MAIL + diff(tmp_path, SOURCE, first)),
        carried(
            tmp_path, MAIL.replace("sum", "run") + diff(tmp_path, first, second).replace("100644", "100755"), "02_two"
        ),
    ]
    files, left = series(entries)
    assert left == {} and files["series"].decode().splitlines()[1:] == ["0001-01_one.patch", "0002-02_two.patch"]
    assert "git am" in files["series"].decode() and b" 99 +" not in files["0001-01_one.patch"]
    repo = write_tree(tmp_path / "repo", TARGET)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "upstream"]):
        git(*command, cwd=repo)
    for name in ("0001-01_one.patch", "0002-02_two.patch"):
        (tmp_path / name).write_bytes(files[name])
        git("am", "-q", str(tmp_path / name), cwd=repo)
    assert (repo / "toyup/core.py").read_text() == "# a line\n" + first["toyup/core.py"]
    assert (repo / "run.sh").stat().st_mode & 0o111
    said = git("log", "-2", "--format=%an %s %b", cwd=repo).splitlines()
    assert said[0] == "Ann run all Why it is so."


def test_plain_diffs_and_what_is_left(tmp_path):
    entry = carried(tmp_path, "Some words.\n" + diff(tmp_path, SOURCE, edited(TOTAL, FIRST)))
    files, left = series([entry], edited(("values[1:]:", "values[2:]:")))
    assert files["0001-01_one.patch"].startswith(b"Some words.\ndiff --git")
    assert b"values[1:]" in left["0001-01_one.patch"] and b"return None" not in left["0001-01_one.patch"]
    assert "git apply" in files["series"].decode()
    assert set(series([entry], edited(TOTAL, FIRST))[0]) == {"series"}


def test_a_change_of_mode_goes_along(tmp_path):
    text = "diff --git a/toyup/core.py b/toyup/core.py\nold mode 100644\nnew mode 100755\n"
    files, left = series([carried(tmp_path, text)])
    assert files["0001-01_one.patch"].decode() == text and not left


def test_git_has_to_agree(tmp_path, monkeypatch):
    """A merge that git does not make of the patch that was written is refused."""
    entry = carried(tmp_path, diff(tmp_path, SOURCE, edited(TOTAL)))
    monkeypatch.setattr(writing, "_read", lambda path: b"another")
    with pytest.raises(PatchlaneError, match="01_one"):
        series([entry])


def test_a_packed_mail_is_written_plain(tmp_path):
    text = diff(tmp_path, SOURCE, edited(TOTAL))
    packed = MAIL.replace("\n\nWhy", "\nContent-Transfer-Encoding: quoted-printable\n\nWhy", 1) + text.replace(
        "=", "=3D"
    )
    files, _ = series([carried(tmp_path, packed)])
    place = write_tree(tmp_path / "place", TARGET)
    (tmp_path / "p.patch").write_bytes(files["0001-01_one.patch"])
    assert b"Transfer-Encoding: 8bit" in files["0001-01_one.patch"]
    subprocess.run(["patch", "-p1", "-i", str(tmp_path / "p.patch")], cwd=place, check=True, capture_output=True)
    assert (place / "toyup/core.py").read_text() == "# a line\n" + edited(TOTAL)["toyup/core.py"]
