"""Carried patches found in what is installed, by their functions."""

from itertools import pairwise

import pytest
from toy import CORE, FIRST, SOURCE, TOTAL, diff, edited, write_tree

from reproducers.carried import present
from reproducers.carried.changed import changed, note
from reproducers.carried.entry import Base, Carried, Upstream
from reproducers.carried.meeting.trees import Tree

LATER = ("in values:", "in list(values):")
NAME = "toyup/core.py"
FIRST_TWO = edited(TOTAL, FIRST)[NAME]
BASE = Tree("1.0", {name: text.encode() for name, text in SOURCE.items()}, frozenset(SOURCE))


@pytest.fixture
def entries(tmp_path):
    """Three patches: of total and first, of total again, of a file that is no Python."""
    first = edited(TOTAL, FIRST)
    second = {**first, NAME: first[NAME].replace(*LATER)}
    made = []
    for number, (old, new) in enumerate(pairwise([SOURCE, first, second, {**second, "CMakeLists.txt": "x\n"}]), 1):
        folder = write_tree(tmp_path / f"q/{number:02d}", {"carried.patch": diff(tmp_path, old, new)})
        upstream = Upstream(repo="toy/toyup", distribution="toyup")
        made.append(Carried(upstream=upstream, base=Base(release="1.0"), subject="x", source="p", folder=folder))
    return made


@pytest.mark.parametrize(
    ("core", "states"),
    [
        (CORE, ["not patched", "unknown", "unknown"]),
        (FIRST_TWO, ["patched", "not patched", "unknown"]),
        ("# above\n" + FIRST_TWO.replace(*LATER), ["patched", "patched", "unknown"]),
        (edited(FIRST)[NAME], ["unknown", "unknown", "unknown"]),
        ("def total(:\n", ["unknown", "unknown", "unknown"]),
    ],
)
def test_what_is_installed(tmp_path, entries, core, states):
    found = changed(entries, BASE)
    assert list(present.installed(found, {NAME: core.encode()}.get).values()) == states
    site = write_tree(tmp_path / "site", {**SOURCE, NAME: core})
    said = present.said(note(entries, BASE), site).splitlines()
    assert said[0] == f"patched: theirs {states.count('patched')} of 3, q"
    assert [row.split()[-1] for row in said[1:]] == [f"{n:02d}" for n, s in enumerate(states, 1) if s != "patched"]
