"""Words for two outcomes, and the verdict over all of them."""

import pytest

from reproducers.base.verdicts import Verdict
from reproducers.record.upstream_tests import Compare, FileRun, Side
from reproducers.studies.suites.comparing import compared, ruling


def side(outcome):
    return Side(outcome=outcome)


@pytest.mark.parametrize(
    ("pristine", "patched", "again", "word"),
    [
        ("passed", "passed", None, "passed both"),
        ("failed", "error", None, "failed both"),
        ("skipped", "skipped", None, "skipped both"),
        ("crashed", "crashed", None, "not compared"),
        ("timed out", "timed out", None, "not compared"),
        ("passed", "failed", None, "not compared"),
        ("passed", "failed", ("passed", "failed"), "broken"),
        ("passed", "error", ("passed", "failed"), "broken"),
        ("passed", "failed", ("passed", "passed"), "flaky"),
        ("passed", "failed", ("failed", "failed"), "flaky"),
        ("passed", "failed", ("passed", "timed out"), "not compared"),
        ("failed", "passed", ("failed", "passed"), "mended"),
        ("failed", "passed", ("passed", "passed"), "flaky"),
        ("passed", "skipped", None, "not compared"),
        ("passed", "crashed", None, "not compared"),
        ("passed", "not run", None, "not compared"),
    ],
)
def test_a_word_for_every_pair(pristine, patched, again, word):
    assert compared(side(pristine), side(patched), again and (side(again[0]), side(again[1]))) == word


def rows(*words):
    return [
        Compare(test=f"t/test_a.py::test_{number}", pristine=side("passed"), patched=side("passed"), compared=word)
        for number, word in enumerate(words)
    ]


def ran(*imported, arm="patched"):
    return [FileRun(path="t/test_a.py", arm=arm, tests=1, ended="finished", imported=imported, seconds=1, peak_gib=1)]


@pytest.mark.parametrize(
    ("words", "runs", "verdict", "said"),
    [
        (["passed both"], ran("x.py"), None, "1 test of upstream's pass with the patch, 0 of them only with it"),
        (["passed both", "mended"], ran("x.py"), None, "2 tests of upstream's pass with the patch, 1 of them"),
        (
            ["passed both", "broken"],
            ran("x.py"),
            Verdict.FIX_REGRESSES,
            "breaks 1 test of upstream's: test_a.py::test_1",
        ),
        (["broken"] * 5, ran(), Verdict.FIX_REGRESSES, "and 2 more"),
        (
            ["failed both", "skipped both", "not compared", "flaky"],
            ran("x.py"),
            Verdict.UNTESTABLE,
            "passed here on both",
        ),
        (["passed both"], ran(), Verdict.UNTESTABLE, "imported code of the patch"),
        (["passed both"], ran("x.py", arm="pristine"), Verdict.UNTESTABLE, "imported code of the patch"),
        ([], [], Verdict.UNTESTABLE, "passed here on both"),
    ],
)
def test_what_all_of_them_say(words, runs, verdict, said):
    found = ruling(rows(*words), runs)
    assert found[0] is verdict and said in found[1]
