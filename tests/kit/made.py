"""Records as receipts and the manifest have them, made up for tests."""

import datetime

from reproducers.record.entry import Entry, LaneEntry
from reproducers.record.receipt import Arm, Check, Details, Host, Signature, Statement

CRASH = Signature(exception="ValueError", message="^empty is not", frame="toyup/core.py")


def check(name="total", state="bug", role="bug", **more):
    return Check(name=name, state=state, role=role, **more)


def arm(outcome="bug", *checks, reason="seen", remedy="", sentinel=None, executed=None):
    return Arm(
        outcome=outcome,
        reason=reason,
        remedy=remedy,
        exit_code=0,
        seconds=1.0,
        peak_gib=0.5,
        sentinel=sentinel,
        checks=list(checks),
        executed=executed or {},
    )


def details(pristine=(), patched=(), **more):
    values = {
        "schema_version": 3,
        "pack": 7,
        "lane": "cpu",
        "arm": "both",
        "at": "live",
        "pin": None,
        "command": [],
        "started": "2026-11-21T09:00:00Z",
        "host": Host(alias="toy"),
        "versions": {},
        "verdict": "REPRODUCED",
        "reason": "seen",
        "sentinels": [],
        "patch": None,
        "pristine": list(pristine),
        "patched": list(patched),
        "previous": None,
    }
    return Details.model_validate(values | more)


def statement(seen, tree, subject=None, configuration=None):
    """The statement of a run on a tree of that origin, with files as {name: sha256}."""

    def resources(files):
        return [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in (files or {}).items()]

    first = {"name": str(tree), "digest": {"sha256": "d" * 64}, "annotations": tree.model_dump(exclude_defaults=True)}
    predicate = {
        "result": "PASSED",
        "configuration": resources(configuration),
        "passedTests": [],
        "warnedTests": [],
        "failedTests": [],
        "patchlane": seen,
    }
    return Statement(type_="", predicateType="", subject=[first, *resources(subject)], predicate=predicate)


def lane(verdict="REPRODUCED_AND_FIXED", **more):
    values = {
        "verdict": verdict,
        "sentinels": [],
        "arms": {},
        "host": Host(alias="toy"),
        "versions": {},
        "receipt": "07/x.json",
        "receipt_sha256": "0" * 64,
        "log_sha256": "0" * 64,
        "taken": datetime.date(2026, 11, 21),
        "valid_until": datetime.date(2027, 5, 20),
        "changed_since": [],
    }
    return LaneEntry.model_validate(values | more)


def entry(state="validated", lanes=None, missing=(), **tried):
    return Entry(
        title="t",
        kind="bug",
        state=state,
        live="1.0",
        lanes={"cpu": lane()} if lanes is None else lanes,
        lanes_without_receipt=list(missing),
        tried=tried,
    )
