"""Carried patches found in what is installed, by their functions."""

from itertools import pairwise

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, write_tree

from reproducers.carried.changed import changed, installed
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.meeting.trees import Tree

LATER = ("in values:", "in list(values):")
NAME = "toyup/core.py"


@pytest.fixture
def found(tmp_path):
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
    content = {f"src/{name}": text.encode() for name, text in SOURCE.items()}
    return changed(entries, Tree("1.0", content, frozenset(content)))


def states(found, core):
    return list(installed(found, {NAME: core.encode()}.get).values())


def test_the_functions_of_each(found):
    assert [sorted(one.after) for one in found] == [[f"{NAME}:first", f"{NAME}:total"], [f"{NAME}:total"], []]
    assert found[1].before[f"{NAME}:total"] == found[0].after[f"{NAME}:total"]


def test_what_is_installed(found):
    first = edited(TOTAL, FIRST)[NAME]
    assert states(found, CORE) == ["not patched", "unknown", "unknown"]
    assert states(found, first) == ["patched", "not patched", "unknown"]
    assert states(found, "# above\n" + first.replace(*LATER)) == ["patched", "patched", "unknown"]
    assert states(found, edited(FIRST)[NAME])[0] == "unknown"
    assert states(found, "def total(:\n")[0] == "unknown"
