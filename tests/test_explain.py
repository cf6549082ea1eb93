"""explain: complete tables, one source for every word, docs/exit-codes.md generated from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from reproducers import explain
from reproducers.errors import PatchlaneError
from reproducers.observe import SENTINELS
from reproducers.schema import ROOT
from reproducers.verdicts import (
    EXIT_MEANING,
    EXIT_REMEDY,
    SENTINEL_MEANING,
    SENTINEL_REMEDY,
    VERDICT_MEANING,
    VERDICT_REMEDY,
    Exit,
    Verdict,
)


def run(*args):
    return subprocess.run(
        [sys.executable, "-m", "reproducers.explain", *args], cwd=ROOT, capture_output=True, text=True
    )


def test_every_code_has_a_meaning_and_a_next_step():
    assert set(EXIT_MEANING) == set(EXIT_REMEDY) == set(Exit)
    assert set(VERDICT_MEANING) == set(VERDICT_REMEDY) == set(Verdict)
    assert set(SENTINEL_MEANING) == set(SENTINEL_REMEDY) == set(SENTINELS)
    rows = explain.entries()
    assert all(row.meaning and row.next_step for row in rows)
    assert len({row.code for row in rows}) == len(rows) == len(Exit) + len(Verdict) + len(SENTINELS)


@pytest.mark.parametrize("code", [row.code for row in explain.entries()])
def test_each_code_is_found_in_any_case(code):
    (row,) = explain.find(f" {code.lower()} ")
    assert row.code == code
    assert row.meaning in explain.text([row])


def test_the_page_is_what_the_verb_prints():
    page = (ROOT / "docs/exit-codes.md").read_text()
    assert page == explain.markdown(explain.entries()), "python -m reproducers.explain --markdown > docs/exit-codes.md"


def test_markdown_keeps_bars_inside_their_cells():
    row = explain.Entry("verdict", "X", "a|b", "c")
    assert "| `X` | a\\|b | c |" in explain.markdown([row])


def test_command_line():
    one, page, unknown = run("77"), run("--markdown"), run("78")
    assert one.returncode == 0 and EXIT_MEANING[Exit.CANNOT_TEST] in one.stdout and "doctor" in one.stdout
    assert page.returncode == 0 and page.stdout == (ROOT / "docs/exit-codes.md").read_text()
    assert unknown.returncode == Exit.USAGE and "'78'" in unknown.stderr
    assert all(row.code in unknown.stderr for row in explain.entries())
    assert "Traceback" not in unknown.stderr


def test_unknown_code_is_refused_even_when_empty():
    with pytest.raises(PatchlaneError, match="unknown code ''"):
        explain.find("")
