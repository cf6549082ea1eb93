"""The functions that carried patches change."""

from itertools import pairwise

import pytest
from toy import FIRST, SOURCE, TOTAL, diff, edited, write_tree

from reproducers.carried.changed import changed, note
from reproducers.carried.entry import Base, Carried, Upstream, load
from reproducers.carried.meeting.trees import Tree

LATER = ("in values:", "in list(values):")
NAME = "toyup/core.py"


@pytest.fixture
def entries(tmp_path):
    """What three patches change: total, total again, and a file that is no Python."""
    first = edited(TOTAL, FIRST)
    second = {**first, NAME: first[NAME].replace(*LATER)}
    steps = [SOURCE, first, second, {**second, "CMakeLists.txt": "x\n"}]
    entries = []
    for number, (old, new) in enumerate(pairwise(steps), 1):
        old, new = ({f"src/{name}": text for name, text in files.items()} for files in (old, new))
        folder = write_tree(tmp_path / f"q/{number:02d}", {"carried.patch": diff(tmp_path, old, new)})
        upstream = Upstream(repo="toy/toyup", distribution="toyup", source_root="src")
        entries.append(Carried(upstream=upstream, base=Base(release="1.0"), subject="x", source="p", folder=folder))
    return entries


@pytest.fixture
def base():
    content = {f"src/{name}": text.encode() for name, text in SOURCE.items()}
    return Tree("1.0", content, frozenset(content))


@pytest.fixture
def found(entries, base):
    return changed(entries, base)


def test_the_functions_of_each(found):
    assert [sorted(one.after) for one in found] == [[f"{NAME}:first", f"{NAME}:total"], [f"{NAME}:total"], []]
    assert found[1].before[f"{NAME}:total"] == found[0].after[f"{NAME}:total"]


def test_they_are_kept_in_the_records(entries, base, found):
    noted = note(entries, base)
    assert load(str(entries[0].folder.parent)) == noted
    assert noted[1].functions == {f"{NAME}:total": (found[1].before[f"{NAME}:total"], found[1].after[f"{NAME}:total"])}
