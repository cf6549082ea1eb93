"""States, verdict and sentinels as pure functions of the arms' records; nothing else makes verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from typing import NamedTuple, cast

from reproducers.base.verdicts import VERDICT_REMEDY, Verdict
from reproducers.probe import checks as probe
from reproducers.probe.checks import State, judge, judge_error
from reproducers.record.mutation import HEALTHY, NOT_RUN
from reproducers.record.receipt import Arm, ArmName, Census, Check, is_number

BYTES = ("bytes", "GiB", "MiB")
GUARDS = "correct the reproducer: a guard holds without the patch, or its limit is too narrow for this host"
STRAYED = "correct the patch; what it changes on purpose goes to meant in pack.yaml, with the reason"
SHOWN = 3  # differences that a reason names
UNMADE = "correct fix.patch or the reproducer: with -v the run prints where the patched arm went another way"
UNSEEN = "add a check that runs these lines; a hunk without statements, say a docstring, joins the one beside it"


class Ruling(NamedTuple):
    """A verdict, its reason, and the command or step that mends it, "" if there is none."""

    verdict: Verdict
    reason: str
    remedy: str = ""


def by_number(role: str, measured: float, limit: float, bug_above: float | None) -> State:
    """The state of a bug or guard check on a number."""
    state = judge_error(measured, limit, inf if bug_above is None else bug_above)
    if role == "guard":
        return "passed" if state == "healthy" else "failed"
    return cast(State, state)


def recorded(value: object) -> object:
    """A measured value as records have it: the word for a number that is not finite."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def states(check: Check) -> tuple[State, ...]:
    """The states that the check's own values allow; none where they are no check's.

    A call that raised is the bug or a different failure: its record has not the frames that decide.
    """
    measured, limit = check.measured, check.limit
    if check.role in ("digest", "note"):
        return ("skipped",) if measured is None else ("noted",)
    if is_number(limit) and check.number is not None:
        return (by_number(check.role, check.number, float(limit), check.bug_above),)
    if not isinstance(limit, str) or not isinstance(measured, str):
        return ()
    if measured == "returned":
        return ("healthy",) if check.role == "bug" else ("passed",)
    if check.role == "guard":
        return ("failed",)
    return ("bug", "different") if check.signature else ("different",)


def misjudged(arm: Arm) -> Iterator[str]:
    """What an arm states of its checks and of itself that its measured values do not give."""
    names = [check.name for check in arm.checks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"states these checks twice: {', '.join(twice)}"
    for check in arm.checks:
        if check.state not in (allowed := states(check)):
            due = " or ".join(allowed) or "no state"
            yield f"calls {check.name} {check.state}, measured {check.measured} under limit {check.limit} is {due}"
    outcome, _ = judge([probe.Check(check.name, check.role, check.state) for check in arm.checks])
    if arm.outcome in ("bug", "healthy") and arm.outcome != outcome:
        yield f"ended as {arm.outcome}, its checks say {outcome}"
    if (arm.sentinel == "BUG_REPRODUCED") != (arm.outcome == "bug"):
        yield f"ended as {arm.outcome} with the sentinel {arm.sentinel}"


def failed_guards(arm: Arm) -> list[str]:
    return [c.name for c in arm.checks if c.role == "guard" and c.state == "failed"]


def _guard_names(arm: Arm) -> set[str]:
    return {c.name for c in arm.checks if c.role == "guard"}


def _digests(arm: Arm) -> dict[str, str]:
    return {c.name: str(c.measured) for c in arm.checks if c.role == "digest"}


def _broken(pristine: Arm, patched: Arm) -> list[str]:
    """Guards that the patched arm fails or lacks, and digests that differ from the pristine arm's."""
    after = _digests(patched)
    changed = {name for name, value in _digests(pristine).items() if after.get(name) != value}
    return sorted(set(failed_guards(patched)) | (_guard_names(pristine) - _guard_names(patched)) | changed)


def _unanswered(pristine: Arm, patched: Arm) -> list[str]:
    """Checks that showed the bug and that the patched arm did not make: silence is not health."""
    made = {c.name for c in patched.checks if c.role == "bug"}
    return [c.name for c in pristine.checks if c.state == "bug" and c.name not in made]


def _unproved_kind(kind: str, pristine: Arm, patched: Arm) -> str:
    """The proof that a refactor, memory or performance pack still lacks when both arms are as expected; "" if none."""
    if kind == "refactor" and not _digests(pristine):
        return "a refactor that compared no tensor bit for bit"
    if kind == "memory" and not saved(pristine, patched):
        return "a memory pack that measured no peak in bytes"
    if kind == "performance" and not _guard_names(patched) | _digests(patched).keys():
        return "a performance pack that compared no value"
    return ""


def saved(pristine: Arm, patched: Arm) -> dict[str, tuple[float, float]]:
    """{check: (peak before, peak after)} of the checks that showed the bug in a unit of BYTES."""
    after = {c.name: c.measured for c in patched.checks if c.state == "healthy"}
    pairs = {c.name: (c.measured, after.get(c.name)) for c in pristine.checks if c.state == "bug" and c.unit in BYTES}
    return {name: (old, new) for name, (old, new) in pairs.items() if is_number(old) and is_number(new)}


def rule_pristine(arm: Arm) -> Ruling:
    """The verdict of the pristine arm alone."""
    outcome, reason = arm.outcome, arm.reason
    if outcome == "cannot_test":
        return Ruling(Verdict.UNTESTABLE, reason, arm.remedy)
    if outcome == "different":
        return Ruling(Verdict.DIFFERENT_FAILURE, f"pristine: {reason}", VERDICT_REMEDY[Verdict.DIFFERENT_FAILURE])
    guards = failed_guards(arm)
    if guards:
        return Ruling(Verdict.INCONCLUSIVE, f"guards fail on the pristine tree: {', '.join(guards)}", GUARDS)
    if outcome == "healthy":
        return Ruling(Verdict.FIXED_UPSTREAM, f"the bug is not in this tree: {reason}")
    return Ruling(Verdict.REPRODUCED, f"bug observed: {reason}")


def rule(pristine: Arm, patched: Arm, unexecuted: list[str], kind: str = "bug") -> Ruling:
    """The verdict of both arms. ``unexecuted`` names the hunks of which no line was executed or compiled."""
    alone = rule_pristine(pristine)
    if alone.verdict is not Verdict.REPRODUCED:
        return alone
    broken = _broken(pristine, patched)
    if patched.outcome == "bug":
        return Ruling(Verdict.FIX_INEFFECTIVE, f"patched tree still shows: {patched.reason}")
    if patched.outcome == "cannot_test":
        return Ruling(Verdict.UNTESTABLE, f"patched: {patched.reason}", patched.remedy)
    if broken and (patched.checks or patched.executed):  # the arm lived long enough to report
        return Ruling(Verdict.FIX_REGRESSES, f"guards broken by the patch: {', '.join(broken)}")
    if patched.outcome == "different":
        remedy = VERDICT_REMEDY[Verdict.DIFFERENT_FAILURE]
        return Ruling(Verdict.DIFFERENT_FAILURE, f"patched: {patched.reason}", remedy)
    if gone := _unanswered(pristine, patched):
        return Ruling(Verdict.INCONCLUSIVE, f"bug checks that the patched arm did not make: {', '.join(gone)}", UNMADE)
    if unexecuted:
        return Ruling(Verdict.INCONCLUSIVE, f"{NOT_RUN}: {', '.join(unexecuted)}", UNSEEN)
    if owed := _unproved_kind(kind, pristine, patched):
        return Ruling(Verdict.INCONCLUSIVE, owed, VERDICT_REMEDY[Verdict.INCONCLUSIVE])
    return Ruling(Verdict.REPRODUCED_AND_FIXED, f"{pristine.reason}; {HEALTHY}")


def is_healthy(ruling: Ruling) -> bool:
    """Whether all checks are healthy with the patch: it is validated, or only lines of it did not run."""
    return ruling.verdict is Verdict.REPRODUCED_AND_FIXED or ruling.reason.startswith(NOT_RUN)


def rule_census(ruling: Ruling, census: Census) -> Ruling:
    """The verdict of a fix whose checks are healthy: a regression where its calls do otherwise than the pack means."""
    if not (strayed := census.strayed):
        return ruling
    more = f", and {len(strayed) - SHOWN} more" if len(strayed) > SHOWN else ""
    return Ruling(
        Verdict.FIX_REGRESSES, f"changed beside the bug: {'; '.join(map(str, strayed[:SHOWN]))}{more}", STRAYED
    )


def rule_ended(check: Check) -> Ruling:
    """The verdict of a patched arm that was ended at this check, which is not as it should be."""
    if check.role == "bug":
        if check.state == "bug":
            return Ruling(Verdict.FIX_INEFFECTIVE, f"patched tree still shows: {check.name}")
        return Ruling(Verdict.DIFFERENT_FAILURE, f"patched: {check.name}", VERDICT_REMEDY[Verdict.DIFFERENT_FAILURE])
    return Ruling(Verdict.FIX_REGRESSES, f"guards broken by the patch: {check.name}")


def rule_guard(broken: Arm, fixed: Arm) -> Ruling:
    """The verdict of a guard: the broken release must show the bug, the fixed release must be healthy."""
    alone = rule_pristine(broken)
    if alone.verdict is not Verdict.REPRODUCED:
        return alone
    after = rule_pristine(fixed)
    if after.verdict is Verdict.FIXED_UPSTREAM:
        return Ruling(Verdict.REPRODUCED, f"{alone.reason}; healthy in the fixed release")
    if after.verdict is Verdict.REPRODUCED:
        return Ruling(Verdict.FIX_INEFFECTIVE, f"the fixed release still shows: {fixed.reason}")
    return Ruling(after.verdict, f"fixed release: {after.reason}", after.remedy)


def sentinels(kind: str, verdict: Verdict, arms: dict[ArmName, list[Arm]]) -> list[str]:
    """The sentinels that a run earns: the pristine arm's own, and those that follow from the verdict."""
    earned = [arm.sentinel for arm in arms["pristine"][:1] if arm.sentinel]
    if verdict is Verdict.REPRODUCED_AND_FIXED:
        earned.append("FIX_VALIDATED")
        if kind == "memory":
            earned.append("MEMORY_SAVE_VERIFIED")
        if arms["pristine"] and _digests(arms["pristine"][-1]):
            earned.append("BITWISE_IDENTICAL")
    if verdict is Verdict.REPRODUCED and arms.get("fixed"):
        earned.append("REGRESSION_GUARD_PASSED")
    return earned
