"""Two arms in, one verdict out."""

import made
import pytest

from patchlane.base.exits import Exit
from reproducers.base.verdicts import EXIT_MEANING, VERDICT_MEANING, Verdict
from reproducers.trial.rulings import rule, rule_guard, rule_pristine, sentinels


def arm(outcome, *guards, **more):
    """An arm with one bug check and guards given as (name, state)."""
    state = "different" if outcome == "cannot_test" else outcome
    checks = [made.check("bug", state), *(made.check(name, state, "guard") for name, state in guards)]
    return made.arm(outcome, *checks, **more)


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
        (made.arm("different", reason="died"), [], Verdict.DIFFERENT_FAILURE),
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
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 70, 75, 77, 125, 130]


def digest(value, name="gradients"):
    return made.check(name, "noted", "digest", measured=value)


def peak(state, value):
    return made.check("peak", state, measured=value, unit="GiB")


def extended(outcome, *checks):
    plain = arm(outcome)
    sentinel = "BUG_REPRODUCED" if outcome == "bug" else None
    return plain.model_copy(update={"checks": [*plain.checks, *checks], "sentinel": sentinel})


@pytest.mark.parametrize("kind", ["bug", "refactor"])
def test_a_tensor_that_changed_is_a_regression(kind):
    before = extended("bug", digest("a"), digest("b", "outputs"))
    same, other = extended("healthy", digest("a"), digest("b", "outputs")), extended("healthy", digest("a"))
    assert rule(before, same, [], kind).verdict is Verdict.REPRODUCED_AND_FIXED
    ruling = rule(before, other, [], kind)
    assert (ruling.verdict, "outputs" in ruling.reason) == (Verdict.FIX_REGRESSES, True)
    assert rule(before, extended("healthy", digest("x"), digest("b", "outputs")), []).verdict is Verdict.FIX_REGRESSES


def test_a_refactor_and_a_performance_pack_owe_a_comparison_and_a_memory_pack_a_peak():
    plain = extended("bug"), extended("healthy")
    assert rule(*plain, [], "refactor").verdict is Verdict.INCONCLUSIVE
    assert rule(*plain, [], "memory").verdict is Verdict.INCONCLUSIVE
    assert rule(*plain, [], "performance").verdict is Verdict.INCONCLUSIVE
    compared = extended("bug", digest("a")), extended("healthy", digest("a"))
    assert rule(*compared, [], "performance").verdict is Verdict.REPRODUCED_AND_FIXED
    saving = extended("bug", peak("bug", 32.0)), extended("healthy", peak("healthy", 2.0))  # GiB
    assert rule(*saving, [], "memory").verdict is Verdict.REPRODUCED_AND_FIXED


def test_a_guard_needs_both_releases():
    bug, healthy = extended("bug"), extended("healthy")
    assert rule_guard(bug, healthy).verdict is Verdict.REPRODUCED
    assert rule_guard(bug, bug).verdict is Verdict.FIX_INEFFECTIVE
    assert rule_guard(healthy, healthy).verdict is Verdict.FIXED_UPSTREAM
    assert rule_guard(bug, extended("different")).verdict is Verdict.DIFFERENT_FAILURE
    assert rule_guard(bug, extended("cannot_test")).verdict is Verdict.UNTESTABLE


def test_sentinels():
    arms = {"pristine": [extended("bug", digest("a"))], "patched": [extended("healthy", digest("a"))]}
    fixed = ["BUG_REPRODUCED", "FIX_VALIDATED"]
    assert sentinels("refactor", Verdict.REPRODUCED_AND_FIXED, arms) == [*fixed, "BITWISE_IDENTICAL"]
    assert sentinels("memory", Verdict.REPRODUCED_AND_FIXED, {"pristine": [extended("bug")]}) == [
        *fixed,
        "MEMORY_SAVE_VERIFIED",
    ]
    assert sentinels("refactor", Verdict.FIX_REGRESSES, arms) == ["BUG_REPRODUCED"]
    guard = {"pristine": [extended("bug")], "fixed": [extended("healthy")]}
    assert sentinels("guard", Verdict.REPRODUCED, guard) == ["BUG_REPRODUCED", "REGRESSION_GUARD_PASSED"]


def test_a_bug_check_that_the_patched_arm_skips_proves_nothing():
    before, after = extended("bug", peak("bug", 32.0)), extended("healthy")
    ruling = rule(before, after, [])
    assert (ruling.verdict, "peak" in ruling.reason) == (Verdict.INCONCLUSIVE, True)
