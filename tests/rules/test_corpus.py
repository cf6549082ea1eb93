"""Defects planted in copies of real packs: each is caught by the rule meant for it, and by no other."""

import datetime
import json

import pytest
from defects import EXEMPTIONS, HARMLESS, PATCH, PLANTED, Edit, commented, paragraph

from reproducers.rules.engine import EXEMPTION, meanings
from reproducers.schema import ROOT, load_packs, read_yaml

TREES = ("patch-clean", "patch-scope", "format-upstream")  # decided on the pinned tree


@pytest.mark.parametrize("number", [pack.number for pack in load_packs()])
def test_no_real_pack_is_flagged(number, desk):
    made = desk(number)
    listed = read_yaml(ROOT / "packs" / EXEMPTIONS)[1]
    made.edit(EXEMPTIONS, "", json.dumps([entry for entry in listed if entry["pack"] == f"pack{number:02d}"]))
    assert [str(fault) for fault in made.lint().faults] == []


@pytest.mark.parametrize("edit", PLANTED, ids=str)
def test_a_planted_defect_is_caught_by_its_rule_alone(edit, desk):
    made = desk(edit.base, tree=edit.rule in TREES)
    made.edit(edit.file, edit.old, edit.new, edit.fresh)
    faults = made.lint().faults
    assert {fault.rule for fault in faults} == {edit.rule} | edit.also, [str(fault) for fault in faults]
    assert all(fault.mend and fault.line >= 1 and not fault.file.startswith("/") for fault in faults)


@pytest.mark.parametrize("edit", HARMLESS, ids=str)
def test_a_harmless_neighbour_is_left_alone(edit, desk):
    made = desk(edit.base, tree=edit.rule in TREES)
    made.edit(edit.file, edit.old, edit.new, edit.fresh)
    assert [str(fault) for fault in made.lint().faults] == []


def test_every_rule_has_a_defect_and_a_neighbour():
    elsewhere = {"receipt-age", "patch-minimal", EXEMPTION}  # below
    assert set(meanings()) - elsewhere <= {edit.rule for edit in PLANTED}
    assert set(meanings()) - elsewhere <= {edit.rule for edit in HARMLESS}
    assert len(PLANTED) >= 40
