"""Defects planted in copies of real packs: each is caught by the rule meant for it, and by no other."""

import datetime

import pytest
from defects import BODY, HARMLESS, NOTES, PLANTED, RANDOM

from reproducers.desk.rules.engine import EXEMPTION, meanings
from reproducers.record.schema import load_packs

TREES = (
    "patch-clean",
    "patch-scope",
    "patch-minimal",
    "format-upstream",
    "header-python",
)  # decided on the pinned tree
TEXT = [edit for edit in HARMLESS if edit.file in (BODY, NOTES) and edit.base == 1]  # all of them fit into one copy
REST = [edit for edit in HARMLESS if edit not in TEXT]


@pytest.mark.parametrize("number", [pack.number for pack in load_packs()])
def test_no_real_pack_is_flagged(number, desk):
    made = desk(number)
    assert [str(fault) for fault in made.lint().faults] == []


@pytest.mark.parametrize("edit", PLANTED, ids=str)
def test_a_planted_defect_is_caught_by_its_rule_alone(edit, desk):
    made = desk(edit.base, tree=edit.rule in TREES)
    made.edit(edit.file, edit.old, edit.new, edit.fresh)
    faults = made.lint().faults
    assert {fault.rule for fault in faults} == {edit.rule}, [str(fault) for fault in faults]
    assert all(fault.remedy and fault.line >= 1 and not fault.file.startswith("/") for fault in faults)


@pytest.mark.parametrize("edit", [edit for edit in PLANTED if edit.rule == "private-token"], ids=str)
def test_a_secret_is_not_repeated(edit, desk):
    made = desk(1)
    made.edit(edit.file, edit.old, edit.new)
    assert all(len(fault.what) < 30 and RANDOM[:9] not in fault.what for fault in made.lint().faults)


def test_harmless_text_is_left_alone(desk):
    made = desk(1)
    for edit in TEXT:
        made.edit(edit.file, edit.old, edit.new)
    assert [str(fault) for fault in made.lint().faults] == []


@pytest.mark.parametrize("edit", REST, ids=str)
def test_a_harmless_neighbour_is_left_alone(edit, desk):
    made = desk(edit.base, tree=edit.rule in TREES)
    made.edit(edit.file, edit.old, edit.new, edit.fresh)
    assert [str(fault) for fault in made.lint().faults] == []


@pytest.mark.parametrize(("days", "rules"), [(0, set()), (1, {"receipt-age"})])
def test_a_receipt_is_valid_through_its_last_day(days, rules, desk):
    made = desk(1)
    lanes = made.case().entry.lanes.values()
    last = min(lane.valid_until for lane in lanes)
    assert {fault.rule for fault in made.lint(last + datetime.timedelta(days=days)).faults} == rules


def test_every_rule_has_a_defect_and_a_neighbour():
    elsewhere = {"receipt-age", "minimal-quoted", EXEMPTION}  # the test above, test_minimal, test_exemptions
    assert set(meanings()) - elsewhere <= {edit.rule for edit in PLANTED}
    assert set(meanings()) - elsewhere <= {edit.rule for edit in HARMLESS}
    assert len(PLANTED) >= 40
