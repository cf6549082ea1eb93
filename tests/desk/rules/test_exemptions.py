"""An exemption keeps one fault back, and only while it does."""

import datetime

import pytest
from defects import EXEMPTIONS, HERE

from patchlane.base.errors import PatchlaneError
from reproducers.desk.rules.engine import EXEMPTION
from reproducers.desk.rules.exemptions import read

ENTRY = "- {rule: english-emoji, pack: pack01, match: '✅', reason: a test, until: 2099-01-01}\n"


def test_it_keeps_its_fault_back_and_no_other(desk):
    made = desk(1)
    made.edit("body.md.j2", HERE, f"{HERE} ✅ is one.\n\n❌ is another.\n\n")
    made.edit(EXEMPTIONS, "", ENTRY)
    report = made.lint()
    assert [fault.what.split("'")[1] for fault in report.exempted if fault.rule == "english-emoji"] == ["✅"]
    assert [fault.what.split("'")[1] for fault in report.faults] == ["❌"]


def test_it_fails_once_it_is_idle(desk):
    made = desk(1)
    made.edit(EXEMPTIONS, "", "# why\n" + ENTRY)
    line = 1 + made.path(EXEMPTIONS).read_text().splitlines().index(ENTRY.strip())
    (fault,) = made.lint().faults
    assert (fault.file, fault.line, fault.rule) == ("packs/lint-exemptions.yaml", line, EXEMPTION)
    assert "english-emoji" in fault.what


def test_it_is_not_idle_where_its_rule_could_not_look(desk, tmp_path):
    made = desk(1)
    made.store = tmp_path
    made.edit(EXEMPTIONS, "", "- {rule: patch-clean, pack: pack01, match: x, reason: a test, until: 2099-01-01}\n")
    assert made.lint().faults == []


def test_it_fails_after_its_last_day(desk):
    made = desk(1)
    made.edit("body.md.j2", HERE, f"{HERE} ✅ is one.\n\n")
    made.edit(EXEMPTIONS, "", ENTRY)
    last = datetime.date(2099, 1, 1)
    on, after = (made.lint(day).faults for day in (last, last + datetime.timedelta(days=1)))
    assert [fault for fault in on if fault.rule == EXEMPTION] == []
    (fault,) = [fault for fault in after if fault.rule == EXEMPTION]
    line = made.path(EXEMPTIONS).read_text().splitlines().index(ENTRY.splitlines()[0]) + 1
    assert (fault.file, fault.line) == ("packs/lint-exemptions.yaml", line) and str(last) in fault.what


@pytest.mark.parametrize(
    "text",
    [
        "- {rule: x}",
        "rule: x",
        "- {rule: x, pack: y, match: '', reason: z, until: 2099-01-01}",
        "- {rule: x, pack: y, match: a, reason: z}",
        "- {rule: x, pack: y, match: a, reason: z, until: soon}",
        "]",
    ],
)
def test_a_malformed_list_is_refused_with_its_place(text, tmp_path):
    (tmp_path / EXEMPTIONS).write_text(text)
    with pytest.raises(PatchlaneError, match=r"lint-exemptions\.yaml:1"):
        read(tmp_path)


def test_none_is_fine(tmp_path):
    assert read(tmp_path) == []
