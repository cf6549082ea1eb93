"""What the rules on headers cannot look at, and what they say of a pin that is known by its artefact only."""

import dataclasses

import pytest

from patchlane.base.files import file_sha256
from reproducers.desk.patches import fields, header
from reproducers.desk.rules.patch import headers
from reproducers.evidence.receipts import read
from reproducers.record.schema import load_releases


def skipped(made, pin):
    """(pack, reason) of the skip of header-export at this pin."""
    (skip,) = [row for row in made.lint().skipped if row.rule == "header-export" and row.why.endswith(f" {pin}")]
    return skip.pack, skip.why


def test_a_pin_without_a_receipt_is_skipped_with_the_reason(desk):
    made = desk(16)
    for path in (made.root / "receipts").glob("16/[0-9]*.json"):
        if read(path).at == "main":
            path.unlink()
    pack, why = skipped(made, "main")
    assert pack == "pack16" and "reproducer" in why


def test_a_receipt_of_another_patch_is_left_to_the_rule_for_it(desk):
    made = desk(4)
    made.edit("fix.patch", "Licence: Apache", "Licence:  Apache", fresh=False)
    pack, why = skipped(made, "live")
    assert pack == "pack04" and "this patch" in why
    assert {fault.rule for fault in made.lint().faults} == {"receipt-stale"}


def test_one_lane_with_an_earlier_reproducer_is_enough_to_skip(desk):
    made = desk(4)
    receipt, digest = made.case().newest["cuda"], file_sha256(made.path("reproducer.py"))
    receipt.write_text(receipt.read_text().replace(digest, "0" * 64))
    pack, why = skipped(made, "live")
    assert pack == "pack04" and "reproducer" in why


def test_a_fix_that_is_not_proved_is_not_exported(desk):
    made = desk(4)
    for receipt in (made.root / "receipts" / "04").glob("*.json"):
        receipt.write_text(receipt.read_text().replace("REPRODUCED_AND_FIXED", "FIX_INEFFECTIVE"))
    pack, why = skipped(made, "live")
    assert pack == "pack04" and "not proved" in why


def test_a_release_without_a_known_commit_needs_its_number_only(desk):
    made = desk(9)
    made.edit("../releases.yaml", f"    sha: {made.case().pack.pins['live'].sha}\n", "")
    load_releases.cache_clear()

    def lacking():
        return [fault.what.split()[-1] for fault in made.lint().faults if fault.rule == "header-grammar"]

    assert lacking() == []
    made.edit("fix.patch", "liger_kernel 0.7.0 (", "liger_kernel 0.7 (")
    assert lacking() == ["0.7.0"]


SHA = "a" * 40


@pytest.mark.parametrize(
    ("origin", "legal"),
    [
        ("written for patchlane", True),
        (f"upstream, {SHA}", True),
        (f"upstream {SHA}, the tests left out", True),
        (f"upstream, https://github.com/a/b/commit/{SHA}", True),
        (f"THUDM/slime@{SHA} (Apache-2.0)", True),
        (f"https://github.com/THUDM/slime/blob/{SHA}/docker/patch/latest/megatron.patch (Apache-2.0)", True),
        (f"a/b@{SHA} docker/one.patch (BSD-3-Clause WITH x)", True),
        (f"THUDM/slime@{SHA}", False),
        ("https://github.com/THUDM/slime/blob/main/docker/one.patch (Apache-2.0)", False),
        (f"upstream, {SHA[:12]}", False),
        (SHA, False),
        ("by someone", False),
    ],
)
def test_one_grammar_of_origins(desk, origin, legal):
    """The lint and the exported header take the same ones."""
    made = desk(9)
    made.edit("fix.patch", "Origin: written for patchlane", f"Origin: {origin}", fresh=False)
    made.edit("fix.patch", "Upstream-Status: ", "Upstream-Status: Backport, was ", fresh=False)
    said = [fault.what for fault in made.lint().faults if fault.rule == "header-grammar" and "rigin" in fault.what]
    assert (said == []) == legal == (fields.origin_fault(origin) == "")
    case = made.case()
    faults = dict(header._unwritten(case.pack, origin, []))
    assert ("Origin" not in faults) == legal
    if fields.upstream_commit(origin):
        assert fields.status(case.pack, origin).startswith("Backport [https://github.com/")


@pytest.mark.parametrize(
    ("status", "decision", "threads", "origin"),
    [
        ("Backport", "issue", True, f"upstream, {SHA}"),
        ("Denied", "pr", True, "written for patchlane"),
        ("Inappropriate (ours)", "issue", True, "written for patchlane"),
        ("Backport", "none", False, f"upstream, {SHA}"),
        ("Pending", "none", True, f"upstream, {SHA}"),
        ("Submitted", "none", True, "written for patchlane"),
    ],
)
def test_a_status_that_contradicts_its_origin_or_the_record(desk, status, decision, threads, origin):
    case = desk(9).case()
    state = case.pack.upstream_state
    known = [thread for thread in state.threads if threads or thread.relation != "fixes it"]
    pack = case.pack.model_copy(
        update={
            "filing": case.pack.filing.model_copy(update={"decision": decision}),
            "upstream_state": state.model_copy(update={"threads": known, "filed_url": None}),
        }
    )
    said = list(headers._contradictions(dataclasses.replace(case, pack=pack), origin, status))
    assert len(said) == 1 and {name for name, *_ in said} == {"Upstream-Status"} and all(row[2] for row in said)
