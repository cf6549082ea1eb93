"""Patches in the forms in which people keep them; each is what git itself would take of it."""

import base64

import pytest
from toy import SOURCE, TOTAL, edited, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried.patches import mails
from reproducers.carried.patches.mails import Given
from reproducers.carried.patches.reader import parse

DIFF = b"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-two\n+three\n"
MAIL = (
    b"From 1234567890123456789012345678901234567890 Mon Sep 17 00:00:00 2001\nFrom: Ann <ann@example.org>\n"
    b"Subject: [PATCH 1/2] core:\n count to three\n\nWhy.\n\nUpstream-Status: Pending [soon]\n---\n x.py | 2 +-\n\n"
    + DIFF
    + b"-- \n2.39.5\n\n"
)


def read(one):
    return mails.said(one, parse(mails.body(one.data), one.name))


def named(folder, files):
    return [(one.name, one.strip) for one in mails.files([write_tree(folder, files)])]


@pytest.fixture
def clone(tmp_path):
    """A repository with the toy and, on the branch ``ours``, two commits and a merge."""
    repo = write_tree(tmp_path / "clone", SOURCE)
    git("init", "-q", "-b", "main", cwd=repo)
    for command in (["add", "-A"], ["commit", "-qm", "upstream"], ["checkout", "-qb", "side"]):
        git(*command, cwd=repo)
    write_tree(repo, {"side.py": "x\n"})
    for command in (["add", "-A"], ["commit", "-qm", "side"], ["checkout", "-qb", "ours", "main"]):
        git(*command, cwd=repo)
    write_tree(repo, edited(TOTAL))
    for command in (["commit", "-qam", "sum all"], ["merge", "-q", "--no-ff", "-m", "joined", "side"]):
        git(*command, cwd=repo)
    return repo


def test_a_mail_says_whose_it_is():
    assert read(Given("0001.patch", MAIL)) == ("core: count to three", "Ann <ann@example.org>", "Pending [soon]")
    assert read(Given("0001.patch", DIFF)).subject == "0001"
    assert read(Given("p", b"Description: of Debian\nAuthor: Bo\n\n" + DIFF))[:2] == ("of Debian", "Bo")
    assert read(Given("p", b"Fix the count\n\nmore\n" + DIFF)).subject == "Fix the count"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (b"=?utf-8?q?Zo=C3=AB?= <z@x.org>", "Zoë <z@x.org>"),
        ("Zoë".encode("latin-1"), "Zoë"),
        ("Zoë".encode(), "Zoë"),
        (b"=?\x9ax?q?Z?=\x1b[2J", "=?\N{REPLACEMENT CHARACTER}x?q?Z?=\N{SYMBOL FOR ESCAPE}[2J"),
    ],
)
def test_names_in_any_encoding(header, name):
    one = Given("p", MAIL.replace(b"Ann <ann@example.org>", header))
    assert read(one).author == name
    told = mails.remarks(one, parse(one.data, "p"))
    assert bool(told) == (b"\xeb" in header or b"\x9a" in header)


def test_a_mailbox_is_its_mails(tmp_path):
    (tmp_path / "all.mbox").write_bytes(MAIL + MAIL.replace(b"count", b"run") + b"From here on it is text\n")
    one, two = mails.files([tmp_path / "all.mbox"])
    assert one.data + two.data == (tmp_path / "all.mbox").read_bytes()
    assert [read(one).subject, read(two).subject] == ["core: count to three", "core: run to three"]


def test_a_packed_mail_is_read_as_git_am_reads_it():
    head, _, text = MAIL.partition(b"\n\n")
    packed = head + b"\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(text)
    (file,) = parse(mails.body(packed), "p").files
    assert file.hunks[0].after == [b"three\n"]
    assert mails.remarks(Given("p", packed), parse(mails.body(packed), "p"))[0].line == 1
    assert mails.body(MAIL) is MAIL


def test_diff_text_in_a_message_is_named_with_its_line():
    shown = MAIL.replace(b"Why.\n", b"Why:\n  --- a/y\n  +++ b/y\n  @@ -1 +1 @@\n")
    assert mails.remarks(Given("p", shown), parse(shown, "p")) == []
    bare = MAIL.replace(b"Why.\n", DIFF)
    (remark,) = mails.remarks(Given("p", bare), parse(bare, "p"))
    assert remark.line == 1 + bare[: bare.index(b"--- a/")].count(b"\n")


def test_a_quilt_series(tmp_path):
    files = {"one.patch": DIFF.decode(), "sub/two.diff": DIFF.decode()}
    order = "# ours\nsub/two.diff -p0\n\none.patch   # why\n"
    assert named(tmp_path / "q", {**files, "series": order}) == [("sub/two.diff", 0), ("one.patch", None)]
    for row, place in (("gone.patch", "series:1"), ("one.patch -R", "series:1"), ("", "series:1")):
        with pytest.raises(PatchlaneError, match=place):
            named(tmp_path / "q", {"series": row + "\n"})
    with pytest.raises(PatchlaneError, match="no file series"):
        mails.files([write_tree(tmp_path / "empty", {"x": ""})])
    with pytest.raises(PatchlaneError, match="nowhere"):
        mails.files([tmp_path / "nowhere"])


def test_a_patch_by_file(tmp_path):
    both = MAIL.replace(DIFF, DIFF + DIFF.replace(b"x.py", b"y.py"))
    one, two = mails.parts(Given("p", both))
    assert (one.part, two.part) == ("x.py", "y.py")
    assert [file.path for file in parse(two.data, "p").files] == ["y.py"]
    assert read(two) == read(Given("p", MAIL))


def test_a_branch_is_its_commits_and_its_merges_are_named(clone):
    base = git("rev-parse", "main", cwd=clone).strip()
    given, left = mails.branch(clone, base, "ours")
    assert sorted(read(one).subject for one in given) == ["side", "sum all"]
    assert len(left) == 1 and git("rev-parse", "--short=12", "ours", cwd=clone).strip() in left[0]
    with pytest.raises(PatchlaneError, match="does not come from"):
        mails.branch(clone, git("rev-parse", "ours", cwd=clone).strip(), "side")
