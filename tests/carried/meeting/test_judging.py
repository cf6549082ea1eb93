"""Hunks on files: each word, and that git agrees with it, on made patches and trees."""

import hashlib
import random

import pytest
from toy import CORE, FIRST, TOTAL, diff, edited, git, write_tree

from reproducers.carried.meeting import judging
from reproducers.carried.meeting.judging import APPLIES, CANNOT, CONFLICTS, GONE, IN, OFFSET, PARTLY
from reproducers.carried.patches.reader import parse

CORE_FILE = "toyup/core.py"


def met(patch, tree):
    """{path: FileMet} and the tree after the patch."""
    content, after, found = {name: text.encode() for name, text in tree.items()}, {}, {}
    for file in parse(patch.encode() if isinstance(patch, str) else patch, "p").files:
        found[file.path], changes = judging.meet(file, (content | after).get)
        after |= changes
    return found, {name: data for name, data in {**content, **after}.items() if data is not None}


@pytest.fixture
def patch(tmp_path):
    return diff(tmp_path, edited(), edited(TOTAL, FIRST))


def word(patch, core):
    one = met(patch, edited(core=core))[0][CORE_FILE]
    return one.word, [hunk.word for hunk in one.hunks]


def test_each_word(patch):
    both = edited(TOTAL, FIRST)[CORE_FILE]
    assert word(patch, CORE) == (APPLIES, [APPLIES, APPLIES])
    assert word(patch, "# a\n# b\n" + CORE) == (OFFSET, [OFFSET, OFFSET])
    assert word(patch, both) == (IN, [IN, IN])
    assert word(patch, edited(TOTAL)[CORE_FILE]) == (PARTLY, [IN, APPLIES])
    assert word(patch, CORE.replace("result = 0.0", "result = 0")) == (CONFLICTS, [CONFLICTS, APPLIES])
    assert met(patch, {})[0][CORE_FILE].word == GONE


def test_where_and_what(patch):
    moved = met(patch, edited(core="# a\n# b\n" + CORE))[0][CORE_FILE]
    assert [(hunk.offset, hunk.at, hunk.line) for hunk in moved.hunks] == [(2, 6, 5), (2, 39, 14)]
    first = met(patch, edited(core=CORE.replace("result = 0.0", "result = 0")))[0][CORE_FILE].hunks[0]
    assert first.differs == (6, "    result = 0.0", "    result = 0")
    for core, why in ((CORE.replace("\n", "\r\n"), "ends of lines"), (CORE.replace("    ", "\t"), "white space")):
        assert why in met(patch, edited(core=core))[0][CORE_FILE].hunks[0].why
    assert "none of the lines" in met(patch, edited(core="pass\n" * 50))[0][CORE_FILE].hunks[0].why


def test_files_that_come_go_and_move(tmp_path):
    old = {"gone.py": "a\nb\n", "old.py": CORE, "kept.py": "k\n"}
    patch = diff(tmp_path, old, {"fresh.py": "f\n", "new.py": CORE.replace(*TOTAL), "kept.py": "k\n"})
    words, after = met(patch, old)
    assert {name: one.word for name, one in words.items()} == dict.fromkeys(["fresh.py", "gone.py", "new.py"], APPLIES)
    assert set(after) == {"fresh.py", "new.py", "kept.py"}
    again = met(patch, {name: data.decode() for name, data in after.items()})[0]
    assert {one.word for one in again.values()} == {IN}
    other = met(patch, {"fresh.py": "other\n", "gone.py": "other\n", "new.py": "x\n", "old.py": CORE})[0]
    assert {one.word for one in other.values()} == {CONFLICTS}
    assert met(patch, {"new.py": "x\n"})[0]["new.py"].word == CONFLICTS


def test_binaries_by_their_sha_and_links_not_at_all(tmp_path):
    data = bytes(range(256))
    sha = hashlib.sha1(b"blob 256\0" + data).hexdigest()
    head = f"diff --git a/b.bin b/b.bin\nindex {sha}..{'1' * 40} 100644\n"
    patch = parse(head.encode() + b"GIT binary patch\nliteral 1\nIcmZ\n\n", "p").files[0]
    assert judging.meet(patch, lambda _: data)[0].word == APPLIES
    assert judging.meet(patch, lambda _: b"other")[0].word == CONFLICTS
    assert judging.meet(patch, lambda _: None)[0].word == GONE
    link = parse(b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+x\n", "p").files[0]
    assert judging.meet(link, lambda _: None)[0].word == CANNOT


def test_the_worst_word_of_parts():
    assert judging.worst([APPLIES, OFFSET]) == OFFSET
    assert judging.worst([APPLIES, IN]) == PARTLY
    assert judging.worst([IN, PARTLY, GONE]) == GONE


@pytest.mark.parametrize(
    ("tree", "word"),
    [("a\nb\nc\n", APPLIES), ("top\na\nb\nc\n", CONFLICTS), ("a\nb\nc\nbelow\n", CONFLICTS)],
)
def test_a_hunk_at_an_end_of_the_file_stays_there(tmp_path, tree, word):
    """As git has it: without context above or below it is of the file's begin or end."""
    patch = "--- a/f.txt\n+++ b/f.txt\n@@ -1,3 +1,3 @@\n a\n b\n-c\n+C\n"
    assert met(patch, {"f.txt": tree})[0]["f.txt"].word == word
    place = write_tree(tmp_path / "tree", {"f.txt": tree, "p.patch": patch})
    assert _fails("apply", "--check", "p.patch", cwd=place) == (word == CONFLICTS)


def test_a_hunk_is_not_found_in_what_an_earlier_one_brought():
    patch = "--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n a\n+z\n b\n@@ -8,2 +9,2 @@\n z\n-b\n+c\n"
    one = met(patch, {"f": "a\nb\n"})[0]["f"]
    assert [hunk.word for hunk in one.hunks] == [APPLIES, CONFLICTS]


@pytest.mark.parametrize("seed", range(24))
def test_git_agrees(tmp_path, seed):
    """Of a patch between two versions of a file, on a third: git takes it where all hunks apply, with the same text."""
    draw = random.Random(seed)
    base = [f"line {draw.randrange(6)}\n" for _ in range(60)]

    def version():
        rows = list(base)
        for _ in range(draw.randrange(1, 5)):
            at = draw.randrange(len(rows))
            rows[at : at + draw.randrange(3)] = [f"new {draw.randrange(4)}\n"] * draw.randrange(3)
        return {"f.txt": "".join(rows)}

    patch, tree = diff(tmp_path, {"f.txt": "".join(base)}, version()), version()
    if draw.random() < 0.3:
        tree = {"f.txt": "".join(base[:20] + ["far\n"] * 7 + base[20:])}
    if not patch:
        return
    found, after = met(patch, tree)
    place = write_tree(tmp_path / "tree", tree)
    (tmp_path / "p.patch").write_text(patch)
    git("init", "-q", cwd=place)
    takes = not _fails("apply", "--check", "../p.patch", cwd=place)
    one = found["f.txt"]
    assert takes == all(hunk.word in judging.FITS for hunk in one.hunks), one
    if takes:
        git("apply", "../p.patch", cwd=place)
        assert (place / "f.txt").read_bytes() == after["f.txt"]
    elif one.word == IN:
        git("apply", "--check", "--reverse", "../p.patch", cwd=place)


def _fails(*args, cwd):
    try:
        git(*args, cwd=cwd)
    except Exception:
        return True
    return False
