"""Two arms in, one verdict out."""

import pytest

from reproducers.verdicts import EXIT_MEANING, VERDICT_MEANING, Exit, Verdict, rule, rule_pristine


def arm(outcome, *guards, reason="seen", **more):
    """An arm with one bug check and guards given as (name, state)."""
    checks = [{"name": "bug", "role": "bug", "state": outcome}]
    checks += [{"name": name, "role": "guard", "state": state} for name, state in guards]
    return {"outcome": outcome, "reason": reason, "checks": checks, **more}


HOLDS, BROKEN = ("near", "passed"), ("near", "failed")


@pytest.mark.parametrize(
    ("pristine", "verdict"),
    [
        (arm("bug", HOLDS), Verdict.REPRODUCED),
        (arm("bug", BROKEN), Verdict.INCONCLUSIVE),
        (arm("healthy", HOLDS), Verdict.FIXED_UPSTREAM),
        (arm("healthy", BROKEN), Verdict.INCONCLUSIVE),
        (arm("different", HOLDS), Verdict.DIFFERENT_FAILURE),
        (arm("different", BROKEN), Verdict.DIFFERENT_FAILURE),
        (arm("cannot_test", remedy="do"), Verdict.UNTESTABLE),
    ],
)
def test_pristine_alone(pristine, verdict):
    assert rule_pristine(pristine).verdict is verdict


@pytest.mark.parametrize(
    ("patched", "unexecuted", "verdict"),
    [
        (arm("healthy", HOLDS), [], Verdict.REPRODUCED_AND_FIXED),
        (arm("healthy", HOLDS), ["a.py hunk 1"], Verdict.INCONCLUSIVE),
        (arm("bug", HOLDS), [], Verdict.FIX_INEFFECTIVE),
        (arm("bug", BROKEN), [], Verdict.FIX_INEFFECTIVE),
        (arm("healthy", BROKEN), [], Verdict.FIX_REGRESSES),
        (arm("healthy"), [], Verdict.FIX_REGRESSES),
        (arm("different"), [], Verdict.FIX_REGRESSES),
        (arm("different", HOLDS), [], Verdict.DIFFERENT_FAILURE),
        ({"outcome": "different", "reason": "died", "checks": []}, [], Verdict.DIFFERENT_FAILURE),
        (arm("cannot_test"), [], Verdict.UNTESTABLE),
    ],
)
def test_both_arms(patched, unexecuted, verdict):
    assert rule(arm("bug", HOLDS), patched, unexecuted).verdict is verdict


@pytest.mark.parametrize("outcome", ["healthy", "different", "cannot_test"])
def test_a_pristine_arm_without_the_bug_decides_alone(outcome):
    pristine = arm(outcome, HOLDS)
    assert rule(pristine, arm("healthy", HOLDS), []) == rule_pristine(pristine)


def test_a_lost_guard_is_named():
    assert "near" in rule(arm("bug", HOLDS, ("far", "passed")), arm("healthy", ("far", "passed")), []).reason


def test_every_word_and_code_is_explained():
    assert set(VERDICT_MEANING) == set(Verdict)
    assert set(EXIT_MEANING) == set(Exit)
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 77, 125, 130]
