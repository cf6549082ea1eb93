"""Receipts: one in-toto Test Result v0.1 statement and one log per run, never overwritten, chained by digest.

``python -m reproducers.receipts verify [DIR]`` recomputes every digest, re-derives every verdict from the recorded
observations, compares them with the log, and says exactly what was tampered with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from filelock import FileLock

from reproducers.arms import json_line
from reproducers.errors import PatchlaneError
from reproducers.experiment import Run, expected
from reproducers.rulings import rule, rule_guard, rule_pristine, sentinels
from reproducers.schema import ROOT, Pack, Pin
from reproducers.store import file_sha256
from reproducers.verdicts import Exit, Verdict

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
ENGINE = ("probe", "observe", "watch", "stamp", "verdicts", "rulings")
ARMS = ("pristine", "patched", "fixed")
COMMITTED = ROOT / "receipts"
app = typer.Typer(add_completion=False, help=__doc__)


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


def statement(run: Run, host: str, command: list[str], log_sha256: str, previous: str | None) -> dict[str, Any]:
    """The in-toto statement of one run."""
    pack, names = run.pack, {}
    for arm, results in run.arms.items():
        for result in results[-1:]:
            for check in result.record.get("checks", []):
                names[f"{arm}: {check['name']}"] = check["state"]
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
            "passedTests": sorted(n for n, s in names.items() if s in ("healthy", "passed")),
            "warnedTests": sorted(n for n, s in names.items() if s == "skipped"),
            "failedTests": sorted(n for n, s in names.items() if s in ("bug", "different", "failed")),
            "patchlane": _details(run, host, command, log_sha256, previous),
        },
    }


def _details(run: Run, host: str, command: list[str], log_sha256: str, previous: str | None) -> dict[str, Any]:
    pack = run.pack
    stamp = next((a.stamp for a in [*run.pristine, *run.patched] if a.stamp), {})
    return {
        "schema_version": 1,
        "pack": pack.number,
        "kind": pack.kind,
        "lane": run.request.lane,
        "arm": run.request.arm,
        "at": run.request.at,
        "pin": _pin(run.pin) if run.pin else None,
        "fixed_pin": _pin(pack.pins["fixed"]) if run.fixed else None,
        "command": command,
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "host": {"alias": host, **stamp.get("host", {})},
        "versions": stamp.get("versions", {}),
        "verdict": run.ruling.verdict.value,
        "reason": run.ruling.reason,
        "sentinels": run.sentinels,
        "patch": {"class": run.patch.kind.value, "hunks_executed": run.hunks} if run.patch else None,
        **{name: [a.as_json() for a in results] for name, results in run.arms.items() if results or name != "fixed"},
        "log_sha256": log_sha256,
        "previous": previous,
    }


def _pin(pin: Pin) -> dict[str, Any]:
    return pin.model_dump(exclude_defaults=True, exclude={"needs", "expect"})


def _resource(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def _engine() -> tuple[str, str]:
    """The digest of the code that decides: the probe's modules and the verdict rules."""
    digest = hashlib.sha256()
    for name in ENGINE:
        digest.update((ROOT / "reproducers" / f"{name}.py").read_bytes())
    return "engine", digest.hexdigest()


def read(path: Path) -> dict[str, Any]:
    """Our own part of a receipt's statement."""
    found: dict[str, Any] = json.loads(path.read_text())["predicate"]["patchlane"]
    return found


def newest(pack: Pack, lane: str, root: Path) -> Path | None:
    """The newest receipt of both arms at the live pin in one lane."""
    for path in reversed(chain(root / f"{pack.number:02d}")):
        seen = read(path)
        if seen["lane"] == lane and seen["at"] == "live" and seen["arm"] == "both":
            return path
    return None


def chain(folder: Path) -> list[Path]:
    """A folder's receipts, oldest first."""
    return sorted(p for p in folder.glob("*.json") if NAME.match(p.name))


def write(run: Run, root: Path, host: str, command: list[str], places: dict[str, str]) -> Path:
    """Write the run's log and statement under ``root/NN/``; a new name every time, complete or absent."""
    folder = root / f"{run.pack.number:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    log = ("\n".join(redact(line, places) for line in run.log) + "\n").encode()
    with FileLock(folder / ".lock"):
        earlier = chain(folder) or chain(COMMITTED / folder.name)
        previous = file_sha256(earlier[-1]) if earlier else None
        body = statement(run, alias(host), command, hashlib.sha256(log).hexdigest(), previous)
        data = (redact(json.dumps(body, indent=1, sort_keys=True), places) + "\n").encode()
        stem = f"{run.started:%Y%m%dT%H%M%SZ}_{host}_{hashlib.sha256(data).hexdigest()[:12]}"
        _create(folder / f"{stem}.log", log)
        _create(folder / f"{stem}.json", data)
    return folder / f"{stem}.json"


def _create(path: Path, data: bytes) -> None:
    """Create ``path`` whole; an existing file is never overwritten."""
    scratch = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    scratch.write_bytes(data)
    try:
        os.link(scratch, path)
    finally:
        scratch.unlink()


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
    for arm in ARMS:
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
    earned = sentinels(_kind(details), details["verdict"], {arm: details.get(arm, []) for arm in ARMS})
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
    receipts = [p for p in sorted(root.glob("[0-9][0-9]*/*.json")) if not p.name.startswith(".tmp-")]
    known = {file_sha256(p) for p in [*receipts, *COMMITTED.glob("*/*.json")]}
    faults = {path: verify_one(path, known) for path in receipts}
    for path in receipts:
        if not NAME.match(path.name):
            faults[path].append("its name is not TIME_HOST_DIGEST.json")
    for log in root.glob("[0-9][0-9]*/*.log"):
        if not log.name.startswith(".tmp-") and not log.with_suffix(".json").exists():
            faults[log] = ["the statement of this log is missing"]
    return {path: rows for path, rows in faults.items() if rows}


@app.command()
def verify(root: Annotated[Path, typer.Argument(help="folder of receipts")] = COMMITTED) -> None:
    """Recompute every digest and verdict; exit 1 and name what was tampered with."""
    faults = verify_all(root)
    for path, rows in faults.items():
        for row in rows:
            typer.echo(f"{path.relative_to(root)}: {row}")
    count = sum(not p.name.startswith(".tmp-") for p in root.glob("[0-9][0-9]*/*.json"))
    typer.echo(f"{count} receipts, {len(faults)} faulty")
    raise typer.Exit(Exit.CONTRADICTED if faults else Exit.OK)


@app.callback()
def _main() -> None:
    """Receipts of runs."""


if __name__ == "__main__":
    from reproducers.cli import guarded

    guarded(app)
