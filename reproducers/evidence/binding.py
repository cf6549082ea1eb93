"""Compare a statement with its log, field by field.

The log's first entry, ``[run]``, holds the facts that no arm prints (pack, pin, digests, command, predecessor). The
runner writes it from the same run as the statement. Receipts of schema_version 1 have no such entry, so these facts are
not compared there. A forger who rewrites statement and log together, digests and names included, passes this check.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from typing import Any

from patchlane.base.files import record_json
from reproducers.record.receipt import (
    ARMS,
    HEADED,
    TYPED,
    Arm,
    ArmName,
    Details,
    Executed,
    Facts,
    Host,
    Stamp,
    Statement,
    record_of,
    stamp_of,
)
from reproducers.trial import census
from reproducers.trial.arms import EXPECTED_EXIT

ENTRY = re.compile(rf"^\[(run|{'|'.join(ARMS)}|needs|census|verdict)\] ", re.M)
ENDED = re.compile(r"-> (\w+) in ([\d.]+) s, peak ([\d.]+) GiB: (.*)", re.S)
PUBLISHED = re.compile(r"[0-9a-f]{40}|\d+(?:\.\w+)+")  # a commit or release, where ``at`` is no pin's name
OPTIONS = {"--at": "at", "--lane": "lane", "--arm": "arm"}
TESTS = {
    "passedTests": ("healthy", "passed"),
    "warnedTests": ("skipped",),
    "failedTests": ("bug", "different", "failed"),
}
SHOWN = 60  # characters of a value in a message


def head(body: Statement) -> dict[str, Any]:
    """The log's first entry: every field of the statement that neither an arm nor the verdict prints."""
    statement, printed = body.as_json(), {*ARMS, "census", "log_sha256", "verdict", "reason", "sentinels"}
    predicate = statement["predicate"]
    return {
        **{name: value for name, value in predicate["patchlane"].items() if name not in printed},
        "patchlane": "run",
        "subject": statement["subject"],
        "configuration": predicate["configuration"],
        "result": predicate["result"],
    }


def entries(log: str) -> list[tuple[str, str]]:
    """(name, text) of each entry of a log; a line without a name continues the entry before it."""
    before, *parts = ENTRY.split(log.removesuffix("\n"))
    named = [(name, text.removesuffix("\n")) for name, text in zip(parts[::2], parts[1::2], strict=True)]
    return [("", before), *named] if before else named


def tests(details: Details) -> dict[str, list[str]]:
    """The in-toto lists of check names, from the last repeat of each arm."""
    states = {f"{arm}: {check.name}": check.state for arm, check in details.every_check()}
    return {title: sorted(name for name in states if states[name] in listed) for title, listed in TESTS.items()}


def faults(body: Statement, log: str) -> Iterator[str]:
    """Differences between statement and log, a sentence each. Raises LookupError or ValueError if one is malformed."""
    details, logged = body.details, entries(log)
    yield from _head(body, logged)
    for tree in body.subject if details.schema_version >= TYPED else ():
        if tree.annotations is not None and tree.name != str(tree.annotations):
            yield f"the tree's name is {_short(tree.name)}, its origin is {tree.annotations}"
    first: Stamp | None = None
    for name, stated in details.arms.items():
        repeats, rest = _repeats(stated, [text for who, text in logged if who == name])
        for seed, (arm, lines) in enumerate(zip(stated, repeats, strict=False)):
            stamp = stamp_of(lines[0]) if lines else None
            first = first or (stamp if name != "fixed" else None)
            rows = [*_arm(arm, lines, details.schema_version), *(_stamp(body, name, seed, stamp) if stamp else [])]
            yield from (f"the {name} arm's {row}" for row in rows)
        if len(repeats) < len(stated):
            arm = stated[len(repeats)]
            took = f"{arm.outcome} in {arm.seconds:.1f} s, peak {arm.peak_gib:.2f} GiB"
            yield f"the log has no such end of the {name} arm as the statement: {took}: {_short(arm.reason)}"
        elif any(ENDED.match(row) or record_of(row, details.schema_version) for row in rest):
            yield f"the log has more of the {name} arm than the statement"
    if _capability(details) != (first.host if first else Host()):
        yield "its host's capability differs from its log"
    if details.versions != (first.versions if first else {}):
        yield "its versions differ from its log"
    lines = [text for who, text in logged if who == "verdict"]
    due = [f"{word}: {details.reason}" for word in [*details.sentinels, details.verdict]]
    due = [line for line in due if not line.startswith("BUG_REPRODUCED: ")]  # the arm prints this itself
    if lines[-len(due) :] != due:
        yield f"its log does not end with its verdict and sentinels: {_short('; '.join(due))}"
    yield from _census(details, [text for who, text in logged if who == "census"])
    for title, names in tests(details).items():
        if getattr(body.predicate, title) != names:
            yield f"its {title} differ from its arms"


def _census(details: Details, entries: list[str]) -> Iterator[str]:
    """Differences between the stated census and the facts in the log."""
    if details.census is None:
        if entries:
            yield "its log has a census, the statement has none"
        return
    facts: dict[str, Facts] = {}
    for entry in entries:
        told = record_json(entry)
        facts[told["arm"]] = told["facts"]
    found = census.compare(facts.get("pristine", {}), facts.get("patched", {}))
    stated = details.census
    rows = [one.model_copy(update={"meant": None}) for one in stated.differences if not census.is_elsewhere(one)]
    order = operator.attrgetter("call", "fact")  # a log has them in the order of their names, not of the calls
    if (stated.facts, sorted(rows, key=order)) != (found.facts, sorted(found.differences, key=order)):
        yield "its census differs from the facts in its log"


def _capability(details: Details) -> Host:
    """The statement's host without its alias."""
    return details.host.model_copy(update={"alias": ""})


def _repeats(stated: list[Arm], rows: list[str]) -> tuple[list[list[str]], list[str]]:
    """(the log's entries of each repeat that ended as stated, the entries after the last such repeat)."""
    repeats, start = [], 0
    for arm in stated:
        end = next((i for i in range(start, len(rows)) if _ends(rows[i], arm)), None)
        if end is None:
            break
        repeats.append(rows[start:end])
        start = end + 1
    return repeats, rows[start:]


def _ends(row: str, arm: Arm) -> bool:
    """Whether the entry ends this arm; the runner rounds its times to fewer digits than the statement."""
    match = ENDED.fullmatch(row)
    if match is None or (match[1], match[4]) != (arm.outcome, arm.reason):
        return False
    return abs(float(match[2]) - arm.seconds) < 0.06 and abs(float(match[3]) - arm.peak_gib) < 0.006


def _arm(arm: Arm, lines: list[str], schema_version: int) -> Iterator[str]:
    """Differences between a stated arm and its record; a record counts only as the arm's last line."""
    records = [record_of(line, schema_version) for line in lines]
    record = records[-1] if records else None
    if len(records) - records.count(None) > 1:
        yield "log has several records"
    if arm.checks != (record.checks if record else []):
        yield "checks in the statement differ from those in its log"
    if arm.executed != _in_tree(record.executed if record else {}, arm.executed):
        yield "executed lines in the statement differ from those in its log"
    if arm.sentinel is not None and (record is None or arm.sentinel != record.sentinel):
        yield f"sentinel {arm.sentinel} is not in its log"
    if record and arm.reason == record.reason:  # the arm ended by itself
        due: dict[str, Any] = {name: getattr(record, name) for name in ("outcome", "remedy", "sentinel")}
        due["exit_code"] = EXPECTED_EXIT.get(record.outcome)
        yield from _differences({name: getattr(arm, name) for name in due}, due)


def _in_tree(executed: dict[str, Executed], stated: dict[str, Executed]) -> dict[str, Executed]:
    """The record's files with paths from the tree's root; the record has them from the import root (``src/``)."""
    first, whole = min(executed, default=""), min(stated, default="")
    folder = whole.removesuffix(first) if first and whole.endswith(first) else ""
    return {folder + name: lines for name, lines in executed.items()}


def _stamp(body: Statement, name: ArmName, seed: int, stamp: Stamp) -> Iterator[str]:
    """Differences between the statement and the arm's stamp, its first line."""
    details, place = body.details, 1 if name == "fixed" else 0
    tree, pin = body.subject[place], details.fixed_pin if name == "fixed" else details.pin
    due: dict[str, Any] = {
        "pack": details.pack,
        "lane": details.lane,
        "reproducer_sha256": body.digests["reproducer.py"],
        "host": _capability(details),
    }
    if name != "fixed":  # the fixed release may have other needs
        due["versions"] = details.versions
    if name != "patched" or not details.pristine:  # a seed without the bug has no patched arm
        due["seed"] = seed
    yield from _differences(due, {field: getattr(stamp, field) for field in due})
    origin, label = tree.annotations, stamp.label.partition(" ")[2]
    if label != (str(origin.of(None)) if origin and details.schema_version >= TYPED else tree.name.partition(" ")[2]):
        yield from _differences({"tree": tree.name}, {"tree": stamp.label})
    named = {origin.release, origin.sha} - {None} if origin else set()
    if pin and named and not named & {pin.release, pin.sha}:
        yield f"tree is {_short(stamp.label)} in its log, its pin is {pin.origin}"


def _head(body: Statement, logged: list[tuple[str, str]]) -> Iterator[str]:
    """Differences between the statement and the log's first entry, or its own command where the log has no such."""
    details = body.details
    heads = [number for number, (who, _) in enumerate(logged) if who == "run"]
    if details.schema_version < HEADED:
        if heads:
            yield f"its schema_version is {details.schema_version}, its log is of a later version"
        command, pin = details.command, details.pin
        for option, name in OPTIONS.items():
            given = command[command.index(option) + 1] if option in command[:-1] else None
            if given not in (None, getattr(details, name)):
                yield f"it states {name} {getattr(details, name)!r}, its command has {option} {given}"
        if pin and PUBLISHED.fullmatch(details.at) and details.at not in (pin.release, pin.sha):
            yield f"it states at {details.at}, its pin is {pin.origin}"
        return
    if heads != [0]:
        yield "its log needs one [run] entry, at its start"
        return
    yield from (f"its {row}" for row in _differences(head(body), record_json(logged[0][1])))


def _differences(stated: dict[str, Any], logged: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*stated, *logged}):
        if stated.get(name) != logged.get(name):
            yield f"{name} is {_short(stated.get(name))} in the statement, {_short(logged.get(name))} in its log"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
