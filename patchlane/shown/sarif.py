"""An audit as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from patchlane.base import disk, files
from patchlane.judged.answers import Answer
from patchlane.known.index import Known, KnownPack
from patchlane.listed.reading import Line

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def write(path: Path, answers: list[Answer], known: Known, unread: list[Line]) -> None:
    """Write the log; PatchlaneError where the file cannot be written."""
    disk.usable_file(path, "--sarif FILE names another file")
    files.write_atomic(path, (json.dumps(sarif(answers, known, Path.cwd(), unread), indent=1) + "\n").encode())


def sarif(answers: list[Answer], known: Known, folder: Path, unread: list[Line]) -> dict[str, Any]:
    """The log: a rule for each pack, a result for each unpatched bug, a notification for what is unknown or not read.

    Files under ``folder`` are named relative to it, as code hosts want them.
    """
    rules = [_rule(a, known.packs[a.pack]) for a in answers]
    results = [
        {
            "ruleId": answer.pack,
            "ruleIndex": index,
            "level": "error",
            "message": {"text": f"{answer.cost}. {answer.reason}; fix: {answer.mend}"},
            "locations": [_location(answer, folder)],
        }
        for index, answer in enumerate(answers)
        if answer.state == "buggy"
    ]
    notes: list[dict[str, Any]] = [
        {"level": "warning", "message": {"text": f"{a.pack}: {a.reason}"}, "associatedRule": {"id": a.pack}}
        for a in answers
        if a.state == "unknown"
    ]
    notes += [{"level": "warning", "message": {"text": f"{line.place}: {line.text}: {line.why}"}} for line in unread]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    tool = {"driver": {"name": "patchlane-audit", "rules": rules}}
    run = {"tool": tool, "invocations": [invocation], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(answer: Answer, pack: KnownPack) -> dict[str, Any]:
    about = {"shortDescription": {"text": answer.cost}, "fullDescription": {"text": pack.claim}}
    return {"id": answer.pack, **about, **({"helpUri": pack.sources[0]} if pack.sources else {})}


def _location(answer: Answer, folder: Path) -> dict[str, Any]:
    """The first function in question; where only a release was judged, the distribution's name."""
    place = answer.places[0] if answer.places else None
    if place is None:
        return {"logicalLocations": [{"name": answer.distribution, "kind": "module"}]}
    path = Path(place.file).resolve()
    uri = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_uri()
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": place.line}}}
