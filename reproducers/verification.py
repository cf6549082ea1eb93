"""Receipts checked against themselves: digests recomputed, verdicts re-derived from what the arms recorded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from reproducers import receipts
from reproducers.arms import json_line
from reproducers.rulings import rule, rule_guard, rule_pristine, sentinels
from reproducers.store import file_sha256
from reproducers.verdicts import Verdict


def verify_one(path: Path, known: set[str]) -> list[str]:
    """What is wrong with one receipt, one sentence each; ``known`` holds the digests of all receipts."""
    faults = []
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest()[:12] != path.stem.rsplit("_", 1)[-1]:
        faults.append("the statement was altered: its sha256 does not start with the digest in its name")
    try:
        body = json.loads(data)
        details = body["predicate"]["patchlane"]
        faults += _log_faults(path.with_suffix(".log"), details)
        faults += _verdict_faults(details)
        if details["previous"] is not None and details["previous"] not in known:
            faults.append(f"its predecessor {details['previous'][:12]} is missing or was altered")
    except (ValueError, KeyError, TypeError) as error:
        faults.append(f"the statement is malformed: {type(error).__name__}: {error}")
    return faults


def _log_faults(log: Path, details: dict[str, Any]) -> list[str]:
    if not log.exists():
        return [f"its log {log.name} is missing"]
    if file_sha256(log) != details["log_sha256"]:
        return [f"its log {log.name} was altered"]
    faults, lines = [], log.read_text().splitlines()
    for arm in receipts.ARMS:
        prefix = f"[{arm}] "
        records = [json_line(x.removeprefix(prefix), "record") for x in lines if x.startswith(prefix + "{")]
        stated = [a["checks"] for a in details.get(arm, []) if a["checks"]]
        if [r["checks"] for r in records if r.get("checks")] != stated:
            faults.append(f"the {arm} arm's checks in the statement are not those that its log recorded")
    return faults


def _verdict_faults(details: dict[str, Any]) -> list[str]:
    """Re-derive the verdict and the sentinels from the recorded arms."""
    derived, faults = _derive(details), []
    allowed = {v.value for v in derived} if len(derived) == 1 else {Verdict.INCONCLUSIVE.value}
    if details["verdict"] not in allowed and not (details["verdict"] == "INCONCLUSIVE" and unproved(details)):
        faults.append(f"it states {details['verdict']}, but its own observations give {', '.join(sorted(allowed))}")
    earned = sentinels(_kind(details), details["verdict"], {arm: details.get(arm, []) for arm in receipts.ARMS})
    if details["sentinels"] != earned:
        faults.append(f"it states the sentinels {details['sentinels']}, its observations earn {earned}")
    return faults


def _kind(details: dict[str, Any]) -> str:
    """The pack's kind when the receipt was taken; the first receipts, all of bugs, do not name it."""
    return str(details.get("kind", "bug"))


def _derive(details: dict[str, Any]) -> set[Verdict]:
    """The verdict of each repeat; a patched arm follows only a pristine one that showed the bug."""
    pristine, patched = details["pristine"], details["patched"]
    patch = details["patch"] or {}
    if not pristine and not patched:
        return {Verdict.PATCH_STALE if patch else Verdict.UNTESTABLE}
    if details.get("fixed"):
        return {rule_guard(one, two).verdict for one, two in zip(pristine, details["fixed"], strict=True)}
    if not pristine:
        return {Verdict.FIX_INEFFECTIVE if a["outcome"] == "bug" else Verdict.INCONCLUSIVE for a in patched}
    unexecuted = [name for name, seen in patch.get("hunks_executed", {}).items() if not seen]
    derived, rest = set(), iter(patched)
    for arm in pristine:
        word = rule_pristine(arm).verdict
        if word is Verdict.REPRODUCED and patched:
            word = rule(arm, next(rest), unexecuted, _kind(details)).verdict
        elif word is Verdict.REPRODUCED and patch:
            word = Verdict.PATCH_STALE
        derived.add(word)
    return derived


def unproved(details: dict[str, Any]) -> bool:
    """True when some executed function was not the tree's own, which makes a run inconclusive."""
    arms = details["patched"]
    seen = [f for a in arms for e in a["executed"].values() for n, f in e["functions"].items() if n != "<module>"]
    return any(not set(f["process"]) <= set(f["tree"]) for f in seen)


def verify_all(root: Path) -> dict[Path, list[str]]:
    """{receipt: faults} for every receipt under ``root`` that has any, stray files included."""
    found = [p for p in sorted(root.glob("[0-9][0-9]*/*.json")) if not p.name.startswith(".tmp-")]
    known = {file_sha256(p) for p in [*found, *receipts.COMMITTED.glob("*/*.json")]}
    faults = {path: verify_one(path, known) for path in found}
    for path in found:
        if not receipts.NAME.match(path.name):
            faults[path].append("its name is not TIME_HOST_DIGEST.json")
    for log in root.glob("[0-9][0-9]*/*.log"):
        if not log.name.startswith(".tmp-") and not log.with_suffix(".json").exists():
            faults[log] = ["the statement of this log is missing"]
    return {path: rows for path, rows in faults.items() if rows}
