"""A patch on the files that it touches, from a store that is only read."""

import datetime

import pytest
from toy import RECORD, SOURCE, TOTAL, edited, write_tree

from reproducers.desk.rules.case import Case
from reproducers.desk.rules.patch.trees import applied
from reproducers.upstream.patching import ApplyClass

TODAY = datetime.date(2026, 11, 22)
LISTED = edited(("values[1:]:", "list(values):"))
BESIDE = """  beside:
    release: "1.0"
    patch: fix.patch
    stacked_on: [7]
lanes:
"""


@pytest.fixture
def case(toy):
    """Pack 08, whose patch fits only on what pack 07's leaves."""
    toy.pack(toy.patch(edited(TOTAL)))
    record = RECORD.replace("number: 7", "number: 8").replace("lanes:\n", BESIDE, 1)
    pack = toy.pack(toy.patch(LISTED, edited(TOTAL)), record=record, folder="08_toy")
    write_tree(toy.root / "store" / "trees" / ("b" * 64), SOURCE)
    write_tree(toy.root / "store" / "trees", {"b" * 64 + ".json": "{}"})
    return Case(pack, toy.root / "receipts", toy.root / "store", TODAY)


def test_before_and_after_of_the_touched_files(case):
    images = applied(case, "beside")
    assert images.kind is ApplyClass.CLEAN
    assert images.before == {"toyup/core.py": edited(TOTAL)["toyup/core.py"]}
    assert images.after == {"toyup/core.py": LISTED["toyup/core.py"]}


def test_without_the_patch_beneath_it_conflicts(case):
    images = applied(case, "live")
    assert images.kind is ApplyClass.CONFLICT and images.after == {} and images.message


def test_the_store_is_left_alone_and_asked_once(case):
    before = {path: path.stat().st_mtime_ns for path in case.store.rglob("*")}
    assert applied(case, "beside") is applied(case, "beside")
    assert {path: path.stat().st_mtime_ns for path in case.store.rglob("*")} == before


def test_an_absent_tree_is_said_with_the_command(case, tmp_path):
    case.store = tmp_path
    assert applied(case, "live").endswith(": python -m reproducers.run pack08 --lane cpu")
