"""Receipts: one in-toto Test Result v0.1 statement and one log per run, never overwritten, chained by digest.

Every reader gets a receipt through ``statement_of``, which refuses one that is not whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from filelock import FileLock

from reproducers.base.errors import PatchlaneError
from reproducers.evidence import binding, booking
from reproducers.record.schema import ROOT, Pack, Pin
from reproducers.trial.experiment import Run, expected
from reproducers.upstream.store import file_sha256

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
ENGINE = ("probe", "trial")  # the rooms that decide
FOLDERS = "[0-9][0-9]*"
COMMITTED = ROOT / "receipts"


def alias(name: str) -> str:
    """A host's chosen alias, never its network name; PatchlaneError for anything but [a-z0-9-]."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise PatchlaneError(f"host alias {name!r} is not of the form [a-z0-9-]", "--host h200-1")
    return name


def redact(line: str, places: dict[str, str]) -> str:
    """The line without paths of this machine: every known folder becomes its role, longest first."""
    for path in sorted(places, key=len, reverse=True):
        for text in {path, json.dumps(path)[1:-1]}:  # JSON escapes what is not ASCII
            line = line.replace(text, places[path])
    return line


def statement(run: Run, host: str, command: list[str], previous: str | None) -> dict[str, Any]:
    """The in-toto statement of one run, but for the digest of its log."""
    pack, details = run.pack, _details(run, host, command, previous)
    as_expected = run.ruling.verdict in expected(pack, run.request)
    subject = [_resource(run.tree.label, run.tree.digest)] if run.tree else [_resource(pack.id, _engine()[1])]
    if run.fixed_tree:
        subject.append(_resource(run.fixed_tree.label, run.fixed_tree.digest))
    if run.patch_file:
        subject.append(_resource(run.patch_file.name, file_sha256(run.patch_file)))
    return {
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": {
            "result": "PASSED" if as_expected else "FAILED",
            "configuration": [
                _resource("pack.yaml", file_sha256(pack.folder / "pack.yaml")),
                _resource("reproducer.py", file_sha256(pack.reproducer)),
                _resource(*_engine()),
            ],
            **binding.tests(details),
            "patchlane": details,
        },
    }


def _details(run: Run, host: str, command: list[str], previous: str | None) -> dict[str, Any]:
    pack = run.pack
    stamp = next((a.stamp for a in [*run.pristine, *run.patched] if a.stamp), {})
    return {
        "schema_version": binding.SINCE,
        "pack": pack.number,
        "kind": pack.kind,
        "lane": run.request.lane,
        "arm": run.request.arm,
        "at": run.request.at,
        "pin": _pin(run.pin) if run.pin else None,
        "fixed_pin": _pin(pack.pins["fixed"]) if run.fixed else None,
        "artifact": run.artifact,
        "command": command,
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": {"alias": host, **stamp.get("host", {})},
        "versions": stamp.get("versions", {}),
        "verdict": run.ruling.verdict.value,
        "reason": run.ruling.reason,
        "sentinels": run.sentinels,
        "patch": {"class": run.patch.kind.value, "hunks_executed": run.hunks} if run.patch else None,
        **{name: [a.as_json() for a in results] for name, results in run.arms.items() if results or name != "fixed"},
        "previous": previous,
    }


def _pin(pin: Pin) -> dict[str, Any]:
    return pin.model_dump(exclude_defaults=True, exclude={"needs", "expect"})


def _resource(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _engine() -> tuple[str, str]:
    """The digest of the code that decides: the rooms of the probe and of the trial."""
    digest = hashlib.sha256()
    for room in ENGINE:
        for path in sorted((ROOT / "reproducers" / room).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return "engine", digest.hexdigest()


def statement_of(path: Path) -> dict[str, Any]:
    """A receipt's statement. PatchlaneError naming what is wrong when it or its log is not what was written."""
    from reproducers.evidence.verification import checked

    seen = checked(path)
    if seen.faults:
        path = path.resolve()
        name = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
        raise PatchlaneError(f"{name}: {'; '.join(seen.faults)}", mend(path))
    return seen.body


def mend(path: Path) -> str:
    """The command that brings a receipt back: from git where it lies in the checkout, else by a new run."""
    path = path.resolve()
    if not path.is_relative_to(COMMITTED):
        return f"python -m reproducers.run pack{path.parent.name}"
    stem = f"{COMMITTED.name}/{path.parent.name}/{path.stem}"
    return f"git checkout -- {stem}.json {stem}.log"


def read(path: Path) -> dict[str, Any]:
    """Our own part of a receipt's statement, verified as ``statement_of`` does."""
    details: dict[str, Any] = statement_of(path)["predicate"]["patchlane"]
    return details


def digests(path: Path) -> dict[str, str]:
    """{name: sha256} of the trees and files that a receipt's run was made with."""
    body = statement_of(path)
    return {r["name"]: r["digest"]["sha256"] for r in [*body["subject"], *body["predicate"]["configuration"]]}


def newest(pack: Pack, lane: str, root: Path, pin: str = "live") -> Path | None:
    """The newest receipt of both arms in one lane at the pin of that name, of those that could test and are of it."""
    for path in reversed(chain(root / f"{pack.number:02d}")):
        seen = read(path)
        at = seen["at"] if pin == "live" else pack.pin_name(seen["at"])
        asked = seen["lane"] == lane and at == pin and seen["arm"] == "both"
        if asked and booking.counts(seen) and not booking.mismatch(pack, statement_of(path)):
            return path
    return None


def chain(folder: Path) -> list[Path]:
    """A folder's receipts, oldest first."""
    return sorted(p for p in folder.glob("*.json") if NAME.match(p.name))


def every(root: Path, folders: str = FOLDERS) -> list[Path]:
    """All statements under ``root``, also those whose names no run writes; what a killed writer left is none."""
    return sorted(path for path in root.glob(f"{folders}/*.json") if not path.name.startswith(".tmp-"))


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left in ``folder``; for whoever holds its lock."""
    for path in folder.glob(".tmp-*"):
        if path.is_file():
            path.unlink(missing_ok=True)


def write(run: Run, root: Path, host: str, command: list[str], places: dict[str, str]) -> Path:
    """Write the run's log and statement under ``root/NN/``; a new name every time, complete or absent."""
    folder, when = root / f"{run.pack.number:02d}", f"{run.started:%Y%m%dT%H%M%SZ}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        sweep(folder)
        last = max(_earlier(folder, when), key=lambda path: path.name, default=None)
        body = statement(run, alias(host), command, file_sha256(last) if last else None)
        lines = [f"[run] {json.dumps(binding.head(body), sort_keys=True)}", *run.log]
        log = ("\n".join(redact(line, places) for line in lines) + "\n").encode()
        body["predicate"]["patchlane"]["log_sha256"] = hashlib.sha256(log).hexdigest()
        data = (redact(json.dumps(body, indent=1, sort_keys=True), places) + "\n").encode()
        stem = f"{when}_{host}_{hashlib.sha256(data).hexdigest()[:12]}"
        _create(folder / f"{stem}.log", log)
        _create(folder / f"{stem}.json", data)
    return folder / f"{stem}.json"


def _earlier(folder: Path, when: str) -> list[Path]:
    """What a run that started then may name as its predecessor: no later run, whole, and of those that are imported."""
    from reproducers.evidence.verification import checked

    found = [p for place in (COMMITTED / folder.name, folder) for p in chain(place) if p.name[: len(when)] <= when]
    seen = [(path, checked(path)) for path in found]
    return [path for path, one in seen if not one.faults and booking.counts(one.body["predicate"]["patchlane"])]


def _create(path: Path, data: bytes) -> None:
    """Create ``path`` whole; an existing file is never overwritten."""
    scratch = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    scratch.write_bytes(data)
    try:
        os.link(scratch, path)
    finally:
        scratch.unlink()
