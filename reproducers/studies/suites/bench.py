"""One test file of upstream's in a process of its own beside one tree: started as an arm is, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchlane.base.files import parsed_json, temporary
from reproducers.record.schema import Lane
from reproducers.record.upstream_tests import Ended, Listed, Side
from reproducers.trial.arms import ArmResult, ArmSpec, run_arm
from reproducers.upstream.store import Store, Tree

CHILD = Path(__file__).with_name("child.py")
LONGEST = 400


@dataclass(frozen=True)
class Bench:
    """One tree with all that its tests run beside; ``patched``: the patch's files, relative to ``root``."""

    root: Path
    package: str
    tests: Tree
    needs: list[Tree]
    patched: list[str]
    lane: str
    limits: Lane
    store: Store
    threads: int
    source_root: str
    redact: Callable[[str], str]


@dataclass
class Told:
    """What one process said: each test's outcome, or, where the file could not be collected, that (``whole``)."""

    ended: Ended
    reason: str
    seconds: float
    peak_gib: float
    output: list[str]
    sides: dict[str, Side] = field(default_factory=dict)
    whole: Side | None = None
    imported: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)

    def side(self, test: str) -> Side:
        """What it says of a test; of all tests of a file that could not be collected, why."""
        if test in self.sides:
            return self.sides[test]
        return self.whole or Side(outcome="not run", error=self.reason or "not collected on this tree")


def modules(root: Path, package: str) -> list[str]:
    """The regular packages of the tree that are, or lie at the top of, the package: ``megatron`` itself is none."""
    if (root / package / "__init__.py").is_file():
        return [package]
    inner = sorted((root / package).glob("*/__init__.py"))
    return [f"{package}.{path.parent.name}" for path in inner]


def run_file(bench: Bench, listed: Listed, tests: list[str] | None = None) -> Told:
    """Run a file's tests, or those named, and read what they did. Whatever goes wrong there becomes an outcome."""
    regular = modules(bench.root, bench.package)
    folders = [name.replace(".", "/") for name in regular]
    with temporary() as scratch:
        rows = Path(scratch) / "rows.jsonl"
        rows.touch()
        task = {
            "tests": str(bench.tests.path),
            "leave_out": [*folders, *(f"{bench.source_root}/{name}" for name in folders)],
            "ask": tests or [listed.path, *(["-k", listed.select] if listed.select else [])],
            "rows": str(rows),
            "modules": regular,
            "patched": bench.patched,
            "environment": listed.environment,
            "stand_ins": listed.stand_ins,
        }
        spec = ArmSpec(
            reproducer=CHILD,
            tree=bench.root,
            needs=[need.path for need in bench.needs],
            lane=bench.lane,
            seed=0,
            label=json.dumps(task),
            watch={},
            timeout_s=bench.limits.timeout_s,
            memory_gib=bench.limits.memory_gib,
            cache=bench.store.root / "cache",
            threads=bench.threads,
        )
        arm = run_arm(spec, lambda line: None)
        told = _told(arm, [_parsed(line) for line in rows.read_text(encoding="utf-8").splitlines()])
    return _redacted(told, bench.redact)


def _parsed(line: str) -> dict[str, Any]:
    """A row; a line that a killed process left unfinished is an empty one."""
    try:
        message = parsed_json(line) if line.startswith('{"') else {}
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def _told(arm: ArmResult, rows: list[dict[str, Any]]) -> Told:
    last = next((row for row in rows if "finished" in row), None)
    ended, reason = _ended(arm, last)
    told = Told(ended, reason, arm.seconds, arm.peak_gib, arm.output, imported=last["imported"] if last else [])
    told.stand_ins = [name for row in rows for name in row.get("stood_in", [])]
    collected = [test for row in rows for test in row.get("collected", [])]
    for test in collected:
        told.sides[test] = _side(test, rows, told)
    for row in rows:
        if "collecting" in row:
            told.whole = Side(outcome="skipped" if row["outcome"] == "skipped" else "error", error=row["error"])
    if not collected and told.whole is None:
        outcome = "error" if ended == "finished" else "not run" if ended == "another tree" else ended
        told.whole = Side(outcome=outcome, error=reason or _last_error(arm.output))
    if ended == "another tree":
        told.sides, told.whole = {}, Side(outcome="not run", error=reason)
    return told


def _ended(arm: ArmResult, last: dict[str, Any] | None) -> tuple[Ended, str]:
    """How the process ended. An arm's outcome is cannot_test only where the engine or this host stopped it."""
    if arm.outcome == "cannot_test":
        return "timed out", arm.reason
    if last and last["foreign"]:
        return "another tree", f"{last['foreign'][0]} was imported from another place than the tree under test"
    if arm.exit_code < 0:
        return "crashed", arm.reason
    if last is None and arm.exit_code not in (2, 4):  # pytest's codes for what stops it before the first test
        return "crashed", f"exit status {arm.exit_code} before the tests had ended"
    return "finished", ""


def _side(test: str, rows: list[dict[str, Any]], told: Told) -> Side:
    phases = {row["when"]: row for row in rows if row.get("test") == test}
    for when, outcome in (("setup", "error"), ("call", "failed"), ("teardown", "error")):
        if phases.get(when, {}).get("outcome") == "failed":
            return Side.model_validate({"outcome": outcome, "error": phases[when]["error"]})
    if skipped := next((row for row in phases.values() if row["outcome"] == "skipped"), None):
        return Side(outcome="skipped", error=skipped["error"])
    if "teardown" in phases:
        return Side(outcome="passed")
    if any(row.get("started") == test for row in rows):
        return Side(outcome="timed out" if told.ended == "timed out" else "crashed", error=told.reason)
    return Side(outcome="not run", error=told.reason or "not reached")


def _last_error(output: list[str]) -> str:
    """The last error that pytest printed before it had a test to report on."""
    errors = [line for line in output if line.startswith("E  ") or line.startswith("ERROR")]
    lines = errors or [line for line in output if line.strip()] or ["nothing was printed"]
    return lines[-1].removeprefix("E").strip()[:LONGEST]


def _redacted(told: Told, redact: Callable[[str], str]) -> Told:
    """The same without paths of this machine, and with what UTF-8 cannot write replaced."""

    def clean(side: Side) -> Side:
        return Side(outcome=side.outcome, error=redact(side.error.encode("utf-8", "replace").decode()))

    told.sides = {test: clean(side) for test, side in told.sides.items()}
    told.whole = clean(told.whole) if told.whole else None
    told.reason = redact(told.reason)
    return told
