"""What a test's two outcomes say of the patch, and what all of them say together. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from patchlane.base.wording import count
from reproducers.base.verdicts import Verdict
from reproducers.record.upstream_tests import Compare, Compared, FileRun, Side

BAD = ("failed", "error")
BOTH: dict[str, Compared] = {"passed": "passed both", "failed": "failed both", "skipped": "skipped both"}
WORDS: tuple[Compared, ...] = (
    "passed both",
    "failed both",
    "skipped both",
    "mended",
    "broken",
    "flaky",
    "not compared",
)
SHOWN = 3  # names in a reason


def kind(side: Side) -> str:
    """An outcome with errors counted as failures."""
    return "failed" if side.outcome in BAD else side.outcome


def differs(pristine: Side, patched: Side) -> bool:
    """Whether the test passed on one tree and failed on the other, and so has to be run again alone."""
    return {kind(pristine), kind(patched)} == {"passed", "failed"}


def compared(pristine: Side, patched: Side, again: tuple[Side, Side] | None = None) -> Compared:
    """The word for a test. Broken and mended are only what a run of the test alone shows again."""
    before, after = kind(pristine), kind(patched)
    if before == after:
        return BOTH.get(before, "not compared")
    if not differs(pristine, patched) or again is None:
        return "not compared"
    repeated = kind(again[0]), kind(again[1])
    if repeated == (before, after):
        return "broken" if after == "failed" else "mended"
    return "flaky" if {*repeated} <= {"passed", "failed"} else "not compared"


def ruling(outcomes: Iterable[Compare], runs: Iterable[FileRun]) -> tuple[Verdict | None, str]:
    """(FIX_REGRESSES, UNTESTABLE or None, why): None where a test could tell and none was broken.

    A test could tell where it passed with the patch, in a process that had imported code of the patch.
    """
    rows = list(outcomes)
    broken = [row.test for row in rows if row.compared == "broken"]
    telling = {run.path for run in runs if run.arm == "patched" and run.imported}
    passed = [row for row in rows if row.compared in ("passed both", "mended")]
    told = sum(row.test.partition("::")[0] in telling for row in passed)
    if broken:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        return (
            Verdict.FIX_REGRESSES,
            f"the patch breaks {count(len(broken), 'test')} of upstream's: {names(broken)}{more}",
        )
    if not passed:
        return Verdict.UNTESTABLE, "no test of upstream's passed here on both trees, so that none says anything"
    if not told:
        return Verdict.UNTESTABLE, "no process in which tests of upstream's passed had imported code of the patch"
    mended = sum(row.compared == "mended" for row in rows)
    return (
        None,
        f"{count(told, 'test')} of upstream's pass with the patch, {mended} of them only with it; none is broken",
    )


def uncounted(outcomes: Iterable[Compare], runs: Iterable[FileRun]) -> Iterator[str]:
    """The files of which there are fewer or more tests than their runs counted, and tests that are told twice."""
    names = [row.test for row in outcomes]
    yield from (f"it tells {name} twice" for name, times in Counter(names).items() if times > 1)
    told, counted = Counter(name.partition("::")[0] for name in names if "::" in name), dict[str, list[int]]()
    for run in runs:
        counted.setdefault(run.path, []).append(run.tests)
    for path in sorted({*told, *counted}):
        arms = counted.get(path, [0])
        most = max(arms) if len(set(arms)) == 1 else sum(arms)
        if not max(arms) <= told[path] <= most:
            yield f"it tells of {count(told[path], 'test')} in {path}, its runs counted {' and '.join(map(str, arms))}"


def names(tests: list[str]) -> str:
    """The first tests without their folders."""
    return ", ".join(test.rpartition("/")[2] for test in tests[:SHOWN])
