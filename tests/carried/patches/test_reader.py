"""Patches byte for byte: what git reads we read, and what is odd in one is named with its line."""

import pytest
from toy import SOURCE, TOTAL, diff, edited, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried.patches.reader import parse

PLAIN = b"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"


def files(data, strip=None):
    return [(file.source, file.target) for file in parse(data, "p", strip).files]


def said(data):
    return [(remark.line, remark.what) for remark in parse(data, "p").remarks]


def test_a_patch_of_git(tmp_path):
    new = {**edited(TOTAL), "toyup/new.py": "x = 1\n"}
    text = diff(tmp_path, {**SOURCE, "toyup/gone.py": "y\n"}, new)
    made = parse(b"words above\n" + text.encode(), "p")
    assert [(file.source, file.target, file.line) for file in made.files] == [
        ("toyup/core.py", "toyup/core.py", 2),
        ("toyup/gone.py", None, 2 + text[: text.index("diff --git a/toyup/gone")].count("\n")),
        (None, "toyup/new.py", 2 + text[: text.index("diff --git a/toyup/new")].count("\n")),
    ]
    assert made.start == len(b"words above\n")
    assert b"".join(file.raw for file in made.files) == text.encode()
    (hunk,) = made.files[0].hunks
    assert (hunk.number, hunk.line, hunk.old, hunk.new) == (1, 6, 4, 4)
    assert b"".join(hunk.before).count(b"values[1:]") == 1 and b"values[1:]" not in b"".join(hunk.after)
    assert not made.remarks


@pytest.mark.parametrize(
    ("data", "strip", "names"),
    [
        (PLAIN, None, ("x.py", "x.py")),
        (
            PLAIN.replace(b"a/x.py", b"toy-1.0.orig/x.py\t2020-01-01").replace(b"b/x.py", b"toy-1.0/x.py"),
            None,
            ("x.py", "x.py"),
        ),
        (PLAIN.replace(b"a/x.py", b"src/x.py").replace(b"b/x.py", b"src/x.py"), None, ("src/x.py", "src/x.py")),
        (PLAIN.replace(b"a/x.py", b"src/x.py").replace(b"b/x.py", b"src/x.py"), 1, ("x.py", "x.py")),
        (
            PLAIN.replace(b"a/x.py", b'"a/\\303\\251.py"').replace(b"b/x.py", b'"b/\\303\\251.py"'),
            None,
            ("é.py", "é.py"),
        ),
        (PLAIN.replace(b"\n", b"\r\n"), None, ("x.py", "x.py")),
    ],
)
def test_paths(data, strip, names):
    assert files(data, strip) == [names]


def test_kinds_without_hunks(tmp_path):
    repo = write_tree(tmp_path / "repo", {"a.sh": "x\n" * 9, "old.py": "y\n" * 9})
    (repo / "blob").write_bytes(bytes(range(256)))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        git(*command, cwd=repo)
    (repo / "a.sh").chmod(0o755)
    (repo / "old.py").rename(repo / "new.py")
    (repo / "blob").write_bytes(bytes(255))
    (repo / "link").symlink_to("a.sh")
    git("add", "-A", cwd=repo)
    made = parse(git("diff", "--cached", "--binary", "-M", cwd=repo).encode(), "p")
    found = {file.path: file for file in made.files}
    assert found["a.sh"].modes == ("100644", "100755") and found["blob"].binary and found["new.py"].renamed
    assert (found["new.py"].source, found["new.py"].hunks) == ("old.py", ())
    words = " ".join(remark.what for remark in made.remarks)
    assert all(word in words for word in ("100644 to 100755", "binary", "renames old.py to new.py", "a link"))
    whole = parse(git("diff", "--cached", "-M", cwd=repo).encode(), "p")
    assert any("without its content" in remark.what for remark in whole.remarks)


@pytest.mark.parametrize(
    ("data", "line", "word"),
    [
        (PLAIN.replace(b"+three", b"+-Wl,@flags@"), 6, "@flags@"),
        (PLAIN.replace(b"+three", b"+caf\xe9"), 3, "UTF-8"),
        (PLAIN.replace(b"one\n", b"one\r\n"), 3, "CR LF"),
        (PLAIN.replace(b"\n", b"\r\n"), 1, "CR LF"),
        (PLAIN.replace(b" one\n", b"").replace(b"1,2", b"2"), 3, "--unidiff-zero"),
    ],
)
def test_what_is_odd_is_named(data, line, word):
    (found,) = said(data)
    assert found[0] == line and word in found[1]


def test_an_added_decorator_is_no_template():
    assert said(PLAIN.replace(b"+three", b"+@cached_property")) == []
    assert said(PLAIN.replace(b"+three", b"+me@example.org@home")) == []


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (PLAIN.replace(b"b/x.py", b"b/../../x.py"), "p:1:"),
        (b"text\n" + PLAIN[: PLAIN.index(b"-two")], "p:4:"),
        (b"text\n" + PLAIN[PLAIN.index(b"@@") :], "p:2:"),
        (PLAIN.replace(b"1,2 @@", b"1,3 @@"), "p:3:"),
        (PLAIN.replace(b" one", b"?one"), "p:3:"),
        (b"diff --git a/x b/y\n", "p:1:"),
        (b"diff --git a/x b/y\nrename from x\nold mode 100644\n", "p:1:"),
        (b"*** a/x\n--- b/x\n***************\n*** 1 ****\n", "p:1:"),
    ],
)
def test_what_is_refused_has_its_line(data, place):
    with pytest.raises(PatchlaneError) as caught:
        parse(data, "p")
    assert caught.value.what.startswith(place) and caught.value.remedy


def test_a_blank_line_that_a_mailer_stripped_is_context():
    (file,) = parse(PLAIN.replace(b" one\n", b"\n"), "p").files
    assert file.hunks[0].before == [b"\n", b"two\n"]


def test_no_line_end_at_the_end():
    (file,) = parse(PLAIN + b"\\ No newline at end of file\n", "p").files
    assert file.hunks[0].after == [b"one\n", b"three"]
