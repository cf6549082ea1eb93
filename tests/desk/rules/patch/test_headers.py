"""What the rules on headers cannot look at, and what they say of a pin that is known by its artefact only."""

from reproducers.base.files import file_sha256
from reproducers.evidence.receipts import read


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
    made.edit("pack.yaml", f"    sha: {made.case().pack.pins['live'].sha}\n", "")

    def lacking():
        return [fault.what.split()[-1] for fault in made.lint().faults if fault.rule == "header-grammar"]

    assert lacking() == []
    made.edit("fix.patch", "liger_kernel 0.7.0 (", "liger_kernel 0.7 (")
    assert lacking() == ["0.7.0"]
