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

from reproducers.trial.arms import EXPECTED_EXIT, json_line

ARMS = ("pristine", "patched", "fixed")
SINCE = 2  # the first schema_version whose logs begin with the run's entry
ENTRY = re.compile(rf"^\[(run|{'|'.join(ARMS)}|verdict)\] ", re.M)
ENDED = re.compile(r"-> (\w+) in ([\d.]+) s, peak ([\d.]+) GiB: (.*)", re.S)
PUBLISHED = re.compile(r"(?:git )?([0-9a-f]{40})|(\d+(?:\.\w+)+)(?: \+ .+)?")  # a tree's label, without its name
OPTIONS = {"--at": "at", "--lane": "lane", "--arm": "arm"}
SHOWN = 60  # characters of a value in a message


def head(body: dict[str, Any]) -> dict[str, Any]:
    """What the log's first entry says of a run: all of its statement that neither an arm nor the verdict prints."""
    predicate = body["predicate"]
    printed = {*ARMS, "log_sha256", "verdict", "reason", "sentinels"}
    return {
        **{name: value for name, value in predicate["patchlane"].items() if name not in printed},
        "patchlane": "run",
        "subject": body["subject"],
        "configuration": predicate["configuration"],
        "result": predicate["result"],
    }


def entries(log: str) -> list[tuple[str, str]]:
    """(who, what) of each entry of a log; a line without a name goes on with the entry before it."""
    before, *parts = ENTRY.split(log.removesuffix("\n"))
    named = [(who, what.removesuffix("\n")) for who, what in zip(parts[::2], parts[1::2], strict=True)]
    return [("", before), *named] if before else named


def tests(details: dict[str, Any]) -> dict[str, list[str]]:
    """The in-toto lists of check names, from the last repeat of each arm."""
    states = {
        f"{arm}: {check['name']}": check["state"]
        for arm in ARMS
        for result in (details.get(arm) or [])[-1:]
        for check in result["checks"]
    }
    words = {
        "passedTests": ("healthy", "passed"),
        "warnedTests": ("skipped",),
        "failedTests": ("bug", "different", "failed"),
    }
    return {title: sorted(name for name, word in states.items() if word in those) for title, those in words.items()}


def faults(body: dict[str, Any], log: str) -> Iterator[str]:
    """What the statement says otherwise than its log, one sentence each. KeyError, TypeError for a malformed one."""
    details, said = body["predicate"]["patchlane"], entries(log)
    yield from _head(body, said)
    first: dict[str, Any] = {}
    for name in ARMS:
        stated = details.get(name) or []
        repeats, rest = _repeats(stated, [what for who, what in said if who == name])
        for seed, (arm, lines) in enumerate(zip(stated, repeats, strict=False)):
            stamp = json_line(lines[0], "stamp") if lines else {}
            first = first or (stamp if name != "fixed" else {})
            rows = [*_arm(arm, lines), *(_stamp(body, name, seed, stamp) if stamp else [])]
            yield from (f"the {name} arm's {row}" for row in rows)
        if len(repeats) < len(stated):
            arm = stated[len(repeats)]
            took = f"{arm['outcome']} in {arm['seconds']:.1f} s, peak {arm['peak_gib']:.2f} GiB"
            yield f"the {name} arm did not end in its log as the statement says: {took}: {_short(arm['reason'])}"
        elif any(ENDED.match(row) or json_line(row, "record") for row in rest):
            yield f"the log has more of the {name} arm than the statement"
    if details["host"] != {"alias": details["host"]["alias"], **first.get("host", {})}:
        yield "its host's capability is not what its log says"
    if details["versions"] != first.get("versions", {}):
        yield "its versions are not those that its log says"
    lines = [what for who, what in said if who == "verdict"]
    due = [f"{word}: {details['reason']}" for word in [*details["sentinels"], details["verdict"]]]
    due = [line for line in due if not line.startswith("BUG_REPRODUCED: ")]  # which the arm prints itself
    if lines[-len(due) :] != due:
        yield f"its log does not end with its verdict and sentinels: {_short('; '.join(due))}"
    for title, names in tests(details).items():
        if body["predicate"][title] != names:
            yield f"its {title} are not those of its arms"


def _repeats(stated: list[dict[str, Any]], rows: list[str]) -> tuple[list[list[str]], list[str]]:
    """(the log's entries of each repeat that ended as the statement says, the entries after them)."""
    repeats, start = [], 0
    for arm in stated:
        end = next((i for i in range(start, len(rows)) if _ends(rows[i], arm)), None)
        if end is None:
            break
        repeats.append(rows[start:end])
        start = end + 1
    return repeats, rows[start:]


def _ends(row: str, arm: dict[str, Any]) -> bool:
    """Whether the entry is the runner's last word on that arm, whose times it rounds otherwise."""
    match = ENDED.fullmatch(row)
    if match is None or (match[1], match[4]) != (arm["outcome"], arm["reason"]):
        return False
    return bool(abs(float(match[2]) - arm["seconds"]) < 0.06 and abs(float(match[3]) - arm["peak_gib"]) < 0.006)


def _arm(arm: dict[str, Any], lines: list[str]) -> Iterator[str]:
    """What an arm's part of the statement says otherwise than its record, which counts as the last line only."""
    record = json_line(lines[-1], "record") if lines else {}
    if sum(bool(json_line(line, "record")) for line in lines) > 1:
        yield "log has more than one record"
    if arm["checks"] != record.get("checks", []):
        yield "checks in the statement are not those that its log recorded"
    if arm["executed"] != _in_tree(record.get("executed", {}), arm["executed"]):
        yield "executed lines in the statement are not those that its log recorded"
    if arm["sentinel"] not in (None, record.get("sentinel")):
        yield f"sentinel {arm['sentinel']} is not in its log"
    if record and arm["reason"] == record["reason"]:  # it ended by itself
        due = {name: record[name] for name in ("outcome", "remedy", "sentinel")}
        due["exit_code"] = EXPECTED_EXIT.get(record["outcome"])
        yield from _differences({name: arm[name] for name in due}, due)


def _in_tree(executed: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """The record's files, relative to where it imported from, relative to the tree: under one folder (``src/``)."""
    first, whole = min(executed, default=""), min(stated, default="")
    folder = whole.removesuffix(first) if first and whole.endswith(first) else ""
    return {folder + name: seen for name, seen in executed.items()}


def _stamp(body: dict[str, Any], name: str, seed: int, stamp: dict[str, Any]) -> Iterator[str]:
    """What the statement says otherwise than the arm's first line."""
    details, subject = body["predicate"]["patchlane"], body["subject"]
    digests = {r["name"]: r["digest"]["sha256"] for r in body["predicate"]["configuration"]}
    tree, pin = (subject[1], details["fixed_pin"]) if name == "fixed" else (subject[0], details["pin"])
    host = {key: value for key, value in details["host"].items() if key != "alias"}
    due = {
        "pack": details["pack"],
        "lane": details["lane"],
        "reproducer_sha256": digests["reproducer.py"],
        "host": host,
    }
    if name != "fixed":  # whose needs may be others
        due["versions"] = details["versions"]
    if name != "patched" or not details["pristine"]:  # which is left out for seeds that show no bug
        due["seed"] = seed
    yield from _differences(due, {name: stamp[name] for name in due})
    label = stamp["label"].partition(" ")[2]
    if label != tree["name"].partition(" ")[2]:
        yield from _differences({"tree": tree["name"]}, {"tree": stamp["label"]})
    published = PUBLISHED.fullmatch(label)
    if pin and published and not set(published.groups()) & {pin.get("sha"), pin.get("release")} - {None}:
        yield f"tree is {_short(stamp['label'])} in its log, which the pin {pin.get('release') or pin['sha']} is not"


def _head(body: dict[str, Any], said: list[tuple[str, str]]) -> Iterator[str]:
    """What the statement says otherwise than the log's first entry, or than its own command where it has none."""
    details = body["predicate"]["patchlane"]
    heads = [number for number, (who, _) in enumerate(said) if who == "run"]
    if details["schema_version"] < SINCE:
        if heads:
            yield f"its schema_version is {details['schema_version']}, its log's is a later one"
        command, pin = details["command"], details["pin"] or {}
        for option, name in OPTIONS.items():
            given = command[command.index(option) + 1] if option in command[:-1] else None
            if given not in (None, details[name]):
                yield f"it states {name} {details[name]!r}, its command {option} {given}"
        published = PUBLISHED.fullmatch(details["at"])
        if published and pin and details["at"] not in (pin.get("release"), pin.get("sha")):
            yield f"it states at {details['at']}, its pin is another"
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
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
