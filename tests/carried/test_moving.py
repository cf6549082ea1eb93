"""A queue on a new base: three-way where the whole merges, by hunk where it does not, and nothing lost."""

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, write_tree

from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.meeting.judging import CONFLICTS, GONE
from reproducers.carried.meeting.trees import Tree
from reproducers.carried.moving import move
from reproducers.carried.patches.reader import parse

LATER = ("values:", "list(values):")
NAME = "toyup/core.py"


@pytest.fixture
def carried(tmp_path):
    """Makes an entry of two trees."""

    def make(old, new, name="01_one"):
        folder = write_tree(tmp_path / "q" / name, {"carried.patch": diff(tmp_path, old, new)})
        upstream = Upstream(repo="toy/toyup", distribution="toyup")
        return Carried(upstream=upstream, base=Base(release="1.0"), subject=name, source="p", folder=folder)

    return make


def tree(files):
    content = {name: text.encode() for name, text in files.items()}
    return Tree("t", content, frozenset(content))


def moved(entries, target, base=SOURCE, renamed=None):
    return move(entries, tree(base), tree(target), renamed or {})


def test_a_queue_stacks_on_the_new_base(carried):
    first = edited(TOTAL)
    second = {**SOURCE, NAME: first[NAME].replace(*LATER)}
    queue = [carried(SOURCE, first), carried(first, second, "02_two")]
    one, two = moved(queue, edited(core="# a line\n" + CORE))
    assert one.after[NAME].decode() == "# a line\n" + first[NAME] and one.before[NAME].decode() == "# a line\n" + CORE
    assert two.before == one.after and two.after[NAME].decode() == "# a line\n" + second[NAME]
    assert one.left == two.left == []


def test_what_git_apply_refuses_is_merged(carried):
    """A neighbour of the changed line is another: the context differs, the change does not overlap."""
    entry = carried(SOURCE, edited(TOTAL))
    (one,) = moved([entry], edited(('    """The sum."""\n', '    """All of them."""\n')))
    assert one.left == [] and b"All of them" in one.after[NAME] and b"in values:" in one.after[NAME]


def test_what_is_in_upstream_is_left_out(carried):
    entry = carried(SOURCE, edited(TOTAL, FIRST))
    (one,) = moved([entry], edited(TOTAL, FIRST))
    assert (one.after, one.left, one.verbatim) == ({}, [], [])
    (half,) = moved([entry], edited(TOTAL))
    assert half.after[NAME].decode() == edited(TOTAL, FIRST)[NAME] and not half.left


def test_a_hunk_that_conflicts_is_left_and_the_others_move(carried):
    entry = carried(SOURCE, edited(TOTAL, FIRST))
    (one,) = moved([entry], edited(("values[1:]:", "values[2:]:")))
    assert one.after[NAME].decode() == edited(("values[1:]:", "values[2:]:"), FIRST)[NAME]
    (left,) = one.left
    assert left.met.word == CONFLICTS and [hunk.number for hunk in left.met.hunks] == [1]
    (file,) = parse(left.raw, "left").files
    assert [hunk.rows for hunk in file.hunks] == [entry.diff.files[0].hunks[0].rows]


def test_files_that_went_or_came(carried):
    old = {**SOURCE, "a.py": "a\n" * 9}
    entry = carried(old, {**SOURCE, "a.py": "a\n" * 8 + "b\n", "new.py": "x\n"})
    (one,) = moved([entry], SOURCE, old)
    assert (one.after, [left.met.word for left in one.left]) == ({"new.py": b"x\n"}, [GONE])
    (one,) = moved([entry], {**SOURCE, "b.py": "top\n" + "a\n" * 9}, old, {"a.py": "b.py"})
    assert one.after == {"new.py": b"x\n", "b.py": b"top\n" + b"a\n" * 8 + b"b\n"} and not one.left
    (one,) = moved([entry], {**old, "new.py": "other\n"}, old)
    assert set(one.after) == {"a.py"} and one.left[0].met.path == "new.py"
    (one,) = moved([entry], {**old, "new.py": "x\n"}, old)
    assert set(one.after) == {"a.py"} and not one.left


def test_lines_that_come_again_are_told_apart_by_their_place(carried):
    """Of equal lines a hunk changes that which it changed at its base, wherever the new base has it."""
    old = {"f.py": "start\n" * 4 + "same\n" * 30, "g.py": "x\n"}
    new = {**old, "f.py": "start\n" * 3 + "more\n" * 9 + "start\n" + "same\n" * 14 + "other\n" + "same\n" * 16}
    (one,) = moved([carried(old, new)], {**old, "f.py": "above\n" * 5 + old["f.py"]}, old)
    assert one.after["f.py"].decode() == "above\n" * 5 + new["f.py"] and not one.left
