"""A lint report as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

from typing import Any

from reproducers.desk.rules.engine import Fault, Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif(report: Report, meanings: dict[str, str]) -> dict[str, Any]:
    """The log: one run, each rule described, each fault a result, what was skipped as notifications."""
    rules = list(meanings)
    results = [_result(fault, rules.index(fault.rule)) for fault in report.faults]
    suppressed = [{"kind": "external", "justification": "packs/lint-exemptions.yaml"}]
    results += [_result(f, rules.index(f.rule)) | {"suppressions": suppressed} for f in report.exempted]
    driver = {
        "name": "patchlane-lint",
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in meanings.items()],
    }
    notes = [
        {"level": "note", "message": {"text": f"{s.pack}: skipped: {s.why}"}, "associatedRule": {"id": s.rule}}
        for s in report.skipped
    ]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(fault: Fault, index: int) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": fault.file}, "region": {"startLine": fault.line}}
    return {
        "ruleId": fault.rule,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": f"{fault.pack}: {fault.what}; fix: {fault.remedy}"},
        "locations": [{"physicalLocation": place}],
    }
