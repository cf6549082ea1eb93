"""A statement held to its log: each field that the log shows must be what the log shows.

The log's first entry, ``[run]``, holds what no arm prints (pack, pin, digests, command, predecessor). The runner writes
it from the same run as the statement. Receipts of schema_version 1 have no such entry; what their logs lack is not
compared. Whoever rewrites statement and log together, digests and names included, is not seen here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from reproducers.record.receipt import (
    ARMS,
    HEADED,
    TYPED,
    Arm,
    ArmName,
    Details,
    Executed,
    Host,
    Stamp,
    Statement,
    record_of,
    stamp_of,
)
from reproducers.trial.arms import EXPECTED_EXIT

ENTRY = re.compile(rf"^\[(run|{'|'.join(ARMS)}|needs|verdict)\] ", re.M)
ENDED = re.compile(r"-> (\w+) in ([\d.]+) s, peak ([\d.]+) GiB: (.*)", re.S)
PUBLISHED = re.compile(r"[0-9a-f]{40}|\d+(?:\.\w+)+")  # what ``at`` is where it is no pin's name
OPTIONS = {"--at": "at", "--lane": "lane", "--arm": "arm"}
TESTS = {
    "passedTests": ("healthy", "passed"),
    "warnedTests": ("skipped",),
    "failedTests": ("bug", "different", "failed"),
}
SHOWN = 60  # characters of a value in a message


def head(body: Statement) -> dict[str, Any]:
    """What the log's first entry says of a run: all of its statement that neither an arm nor the verdict prints."""
    statement, printed = body.as_json(), {*ARMS, "log_sha256", "verdict", "reason", "sentinels"}
    predicate = statement["predicate"]
    return {
        **{name: value for name, value in predicate["patchlane"].items() if name not in printed},
        "patchlane": "run",
        "subject": statement["subject"],
        "configuration": predicate["configuration"],
        "result": predicate["result"],
    }


def entries(log: str) -> list[tuple[str, str]]:
    """(who, what) of each entry of a log; a line without a name goes on with the entry before it."""
    before, *parts = ENTRY.split(log.removesuffix("\n"))
    named = [(who, what.removesuffix("\n")) for who, what in zip(parts[::2], parts[1::2], strict=True)]
    return [("", before), *named] if before else named


def tests(details: Details) -> dict[str, list[str]]:
    """The in-toto lists of check names, from the last repeat of each arm."""
    states = {f"{arm}: {check.name}": check.state for arm, check in details.every_check()}
    return {title: sorted(name for name, word in states.items() if word in those) for title, those in TESTS.items()}


def faults(body: Statement, log: str) -> Iterator[str]:
    """What the statement says otherwise than its log, one sentence each. LookupError or ValueError if malformed."""
    details, said = body.details, entries(log)
    yield from _head(body, said)
    for tree in body.subject if details.schema_version >= TYPED else ():
        if tree.annotations is not None and tree.name != str(tree.annotations):
            yield f"it names the tree of {tree.annotations} {_short(tree.name)}"
    first: Stamp | None = None
    for name, stated in details.arms.items():
        repeats, rest = _repeats(stated, [what for who, what in said if who == name])
        for seed, (arm, lines) in enumerate(zip(stated, repeats, strict=False)):
            stamp = stamp_of(lines[0]) if lines else None
            first = first or (stamp if name != "fixed" else None)
            rows = [*_arm(arm, lines, details.schema_version), *(_stamp(body, name, seed, stamp) if stamp else [])]
            yield from (f"the {name} arm's {row}" for row in rows)
        if len(repeats) < len(stated):
            arm = stated[len(repeats)]
            took = f"{arm.outcome} in {arm.seconds:.1f} s, peak {arm.peak_gib:.2f} GiB"
            yield f"the {name} arm did not end in its log as the statement says: {took}: {_short(arm.reason)}"
        elif any(ENDED.match(row) or record_of(row, details.schema_version) for row in rest):
            yield f"the log has more of the {name} arm than the statement"
    if _capability(details) != (first.host if first else Host()):
        yield "its host's capability is not what its log says"
    if details.versions != (first.versions if first else {}):
        yield "its versions are not those that its log says"
    lines = [what for who, what in said if who == "verdict"]
    due = [f"{word}: {details.reason}" for word in [*details.sentinels, details.verdict]]
    due = [line for line in due if not line.startswith("BUG_REPRODUCED: ")]  # which the arm prints itself
    if lines[-len(due) :] != due:
        yield f"its log does not end with its verdict and sentinels: {_short('; '.join(due))}"
    for title, names in tests(details).items():
        if getattr(body.predicate, title) != names:
            yield f"its {title} are not those of its arms"


def _capability(details: Details) -> Host:
    """What the statement says of the host, but for its alias."""
    return details.host.model_copy(update={"alias": ""})


def _repeats(stated: list[Arm], rows: list[str]) -> tuple[list[list[str]], list[str]]:
    """(the log's entries of each repeat that ended as the statement says, the entries after them)."""
    repeats, start = [], 0
    for arm in stated:
        end = next((i for i in range(start, len(rows)) if _ends(rows[i], arm)), None)
        if end is None:
            break
        repeats.append(rows[start:end])
        start = end + 1
    return repeats, rows[start:]


def _ends(row: str, arm: Arm) -> bool:
    """Whether the entry is the runner's last word on that arm, whose times it rounds otherwise."""
    match = ENDED.fullmatch(row)
    if match is None or (match[1], match[4]) != (arm.outcome, arm.reason):
        return False
    return abs(float(match[2]) - arm.seconds) < 0.06 and abs(float(match[3]) - arm.peak_gib) < 0.006


def _arm(arm: Arm, lines: list[str], schema_version: int) -> Iterator[str]:
    """What an arm's part of the statement says otherwise than its record, which counts as the last line only."""
    records = [record_of(line, schema_version) for line in lines]
    record = records[-1] if records else None
    if sum(found is not None for found in records) > 1:
        yield "log has more than one record"
    if arm.checks != (record.checks if record else []):
        yield "checks in the statement are not those that its log recorded"
    if arm.executed != _in_tree(record.executed if record else {}, arm.executed):
        yield "executed lines in the statement are not those that its log recorded"
    if arm.sentinel is not None and (record is None or arm.sentinel != record.sentinel):
        yield f"sentinel {arm.sentinel} is not in its log"
    if record and arm.reason == record.reason:  # it ended by itself
        due: dict[str, Any] = {name: getattr(record, name) for name in ("outcome", "remedy", "sentinel")}
        due["exit_code"] = EXPECTED_EXIT.get(record.outcome)
        yield from _differences({name: getattr(arm, name) for name in due}, due)


def _in_tree(executed: dict[str, Executed], stated: dict[str, Executed]) -> dict[str, Executed]:
    """The record's files, relative to where it imported from, relative to the tree: under one folder (``src/``)."""
    first, whole = min(executed, default=""), min(stated, default="")
    folder = whole.removesuffix(first) if first and whole.endswith(first) else ""
    return {folder + name: seen for name, seen in executed.items()}


def _stamp(body: Statement, name: ArmName, seed: int, stamp: Stamp) -> Iterator[str]:
    """What the statement says otherwise than the arm's first line."""
    details, place = body.details, 1 if name == "fixed" else 0
    tree, pin = body.subject[place], details.fixed_pin if name == "fixed" else details.pin
    due: dict[str, Any] = {
        "pack": details.pack,
        "lane": details.lane,
        "reproducer_sha256": body.digests["reproducer.py"],
        "host": _capability(details),
    }
    if name != "fixed":  # whose needs may be others
        due["versions"] = details.versions
    if name != "patched" or not details.pristine:  # which is left out for seeds that show no bug
        due["seed"] = seed
    yield from _differences(due, {field: getattr(stamp, field) for field in due})
    origin, label = tree.annotations, stamp.label.partition(" ")[2]
    if label != (str(origin.of(None)) if origin and details.schema_version >= TYPED else tree.name.partition(" ")[2]):
        yield from _differences({"tree": tree.name}, {"tree": stamp.label})
    named = {origin.release, origin.sha} - {None} if origin else set()
    if pin and named and not named & {pin.release, pin.sha}:
        yield f"tree is {_short(stamp.label)} in its log, which the pin {pin.origin} is not"


def _head(body: Statement, said: list[tuple[str, str]]) -> Iterator[str]:
    """What the statement says otherwise than the log's first entry, or than its own command where it has none."""
    details = body.details
    heads = [number for number, (who, _) in enumerate(said) if who == "run"]
    if details.schema_version < HEADED:
        if heads:
            yield f"its schema_version is {details.schema_version}, its log's is a later one"
        command, pin = details.command, details.pin
        for option, name in OPTIONS.items():
            given = command[command.index(option) + 1] if option in command[:-1] else None
            if given not in (None, getattr(details, name)):
                yield f"it states {name} {getattr(details, name)!r}, its command {option} {given}"
        if pin and PUBLISHED.fullmatch(details.at) and details.at not in (pin.release, pin.sha):
            yield f"it states at {details.at}, its pin is another"
        return
    if heads != [0]:
        yield "its log does not begin with the run's entry, or has several"
        return
    yield from (f"its {row}" for row in _differences(head(body), json.loads(said[0][1])))


def _differences(stated: dict[str, Any], logged: dict[str, Any]) -> Iterator[str]:
    for name in sorted({*stated, *logged}):
        one, two = stated.get(name), logged.get(name)
        if one != two:
            yield f"{name} is stated to be {_short(one)}, its log says {_short(two)}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
