"""Ranks of one arm, on the toy upstream: their checks and executed lines are the arm's."""

import pytest
from toy import TOTAL, body, edited

from reproducers.base.verdicts import Verdict

WORK = """
    def work(rank):
        core = p.upstream("toyup.core")
        {first}
        if rank == 0:
            p.error("total", abs(core.total([1, 2, 3]) - 6), 1e-9, reference="6", bug_above=0.5)
        else:
            p.guard("mean", abs(core.mean([1, 2, 3]) - 2), 1e-9, reference="2")

    p.ranks(2, work)
"""


def run(toy, first="pass", **request):
    return toy.run(toy.pack(toy.patch(edited(TOTAL)), body(WORK.format(first=first))), **request)


def test_checks_and_executed_lines_join_the_arm(toy):
    ranked = run(toy)
    assert ranked.ruling.verdict is Verdict.REPRODUCED_AND_FIXED, ranked.ruling
    assert [c.name for c in ranked.pristine[0].checks] == ["total", "mean"]
    assert ranked.hunks == {"toyup/core.py hunk 1": True}  # ran in the children only


@pytest.mark.parametrize(
    ("first", "verdict", "cause"),
    [
        ("if rank: raise ValueError('no luck')", Verdict.DIFFERENT_FAILURE, "ValueError: no luck"),
        ("if rank: os._exit(3)", Verdict.DIFFERENT_FAILURE, "rank 1"),
        ("if rank: raise probe.CannotTest('no second GPU')", Verdict.UNTESTABLE, "no second GPU"),
    ],
)
def test_a_rank_that_fails_ends_the_others(toy, first, verdict, cause):
    waiting = f"{first}\n        else: time.sleep(60)"
    failed = run(toy, waiting, arm="pristine")
    assert (failed.ruling.verdict, cause in failed.ruling.reason) == (verdict, True), failed.ruling
    assert failed.pristine[0].seconds < 25
