"""A queue on trees: on top and alone, what no wheel has, what a clone's history says, and where a word changes."""

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, git, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.meeting import queues
from reproducers.carried.meeting.judging import APPLIES, CONFLICTS, GONE, IN, NOT_THERE, OFFSET
from reproducers.carried.meeting.trees import Tree

LATER = ("values:", "list(values):")


@pytest.fixture
def carried(tmp_path):
    """Makes an entry of a patch's text."""

    def make(text, name="01_one"):
        folder = write_tree(tmp_path / "q" / name, {"carried.patch": text})
        upstream = Upstream(repo="toy/toyup", distribution="toyup")
        return Carried(upstream=upstream, base=Base(release="1.0"), subject=name, source="p", folder=folder)

    return make


@pytest.fixture
def queue(tmp_path, carried):
    """Two patches: the second changes the line that the first brings."""
    first = edited(TOTAL)
    second = {**SOURCE, "toyup/core.py": first["toyup/core.py"].replace(*LATER)}
    return [carried(diff(tmp_path, SOURCE, first)), carried(diff(tmp_path, first, second), "02_two")]


def tree(files, **more):
    content = {name: text.encode() for name, text in files.items()}
    return Tree("t", content, frozenset(content), **more)


def test_alone_and_on_top(queue):
    one, two = queues.meet(queue, tree(SOURCE))
    assert (one.word, one.alone) == (APPLIES, "")
    assert (two.word, two.alone) == (APPLIES, CONFLICTS)
    assert [(file.path, file.word) for file in two.alone_files] == [("toyup/core.py", CONFLICTS)]


def test_what_conflicts_is_not_below_the_next(queue):
    one, two = queues.meet(queue, tree(edited(("result = 0.0", "result = 0"))))
    assert (one.word, two.word, two.alone) == (CONFLICTS, CONFLICTS, "")
    one, two = queues.meet(queue, tree(edited(TOTAL)))
    assert (one.word, two.word) == (IN, APPLIES)


def test_what_no_wheel_has(tmp_path, carried):
    old = {**SOURCE, "CMakeLists.txt": "a\n", "csrc/x.cpp": "b\n", "toyup/gone.py": "c\n", "tests/test_x.py": "d\n"}
    entry = carried(diff(tmp_path, old, {name: text + "more\n" for name, text in old.items()}))
    (row,) = queues.meet([entry], tree(SOURCE, wheel=True))
    words = {file.path: file.word for file in row.files}
    assert words == {
        "CMakeLists.txt": NOT_THERE,
        "csrc/x.cpp": NOT_THERE,
        "tests/test_x.py": NOT_THERE,
        "toyup/__init__.py": APPLIES,
        "toyup/core.py": APPLIES,
        "toyup/gone.py": GONE,
    }
    assert row.word == GONE and "--upstream" in row.files[0].why
    assert queues.meet([entry], tree(SOURCE))[0].files[0].word == GONE


def test_only_what_no_wheel_has(tmp_path, carried):
    entry = carried(diff(tmp_path, {"CMakeLists.txt": "a\n"}, {"CMakeLists.txt": "b\n"}))
    assert queues.meet([entry], tree(SOURCE, wheel=True))[0].word == NOT_THERE


@pytest.fixture
def clone(tmp_path):
    """A repository whose commits take the first patch's context away, bring it back, and move a file."""
    repo = write_tree(tmp_path / "clone", {**SOURCE, "toyup/old_name.py": "x = 1\n" * 9})
    git("init", "-q", "-b", "main", cwd=repo)
    steps = [
        ("first", {}),
        ("no float", edited(("result = 0.0", "result = 0"))),
        ("float again", edited()),
        ("above", edited(core="# a line\n" + CORE)),
    ]
    for subject, files in steps:
        write_tree(repo, files)
        git("add", "-A", cwd=repo)
        git("commit", "-qm", subject, cwd=repo)
    (repo / "toyup/old_name.py").rename(repo / "toyup/new_name.py")
    git("add", "-A", cwd=repo)
    git("commit", "-qm", "a better name", cwd=repo)
    return repo


def sha(clone, name):
    return git("rev-parse", name, cwd=clone).strip()


def test_each_commit_where_a_word_changes(queue, clone):
    span = f"{sha(clone, 'main~4')}..{sha(clone, 'main')}"
    found = [(found.sha, [row.word for row in rows]) for found, rows in queues.changes_between(queue[:1], clone, span)]
    assert found == [
        (sha(clone, "main~4"), [APPLIES]),
        (sha(clone, "main~3"), [CONFLICTS]),
        (sha(clone, "main~2"), [APPLIES]),
        (sha(clone, "main"), [OFFSET]),
    ]
    for span in ("main", "..main", "main..nowhere"):
        with pytest.raises(PatchlaneError):
            list(queues.changes_between(queue, clone, span))


def test_history_names_what_is_in_the_way(tmp_path, queue, clone, carried):
    base, there = sha(clone, "main~4"), sha(clone, "main~3")
    at = tree(edited(("result = 0.0", "result = 0")), sha=there)
    row = queues.explained(queues.meet(queue, at)[0], queue[0].diff.files, at, clone, base)
    assert "no float" in row.files[0].hunks[0].by and there.startswith(row.files[0].hunks[0].by.split()[0])
    moved = carried(diff(tmp_path, {"toyup/old_name.py": "x = 1\n" * 9}, {"toyup/old_name.py": "x = 2\n" * 9}))
    at = tree({"toyup/new_name.py": "", "other/old_name.py": ""}, sha=sha(clone, "main"))
    (row,) = queues.meet([moved], at)
    assert "moved it to toyup/new_name.py" in queues.explained(row, moved.diff.files, at, clone, base).files[0].why
    assert "other/old_name.py" in queues.explained(row, moved.diff.files, at, None, None).files[0].why


def test_patches_of_two_fixes_of_one_file(tmp_path, carried):
    entries = [carried(diff(tmp_path, SOURCE, edited(TOTAL))), carried(diff(tmp_path, SOURCE, edited(FIRST)), "02_two")]
    assert [row.word for row in queues.meet(entries, tree(edited(FIRST)))] == [APPLIES, IN]
