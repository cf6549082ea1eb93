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

from reproducers.errors import PatchlaneError
from reproducers.experiment import Run, expected
from reproducers.schema import ROOT, Pack, Pin
from reproducers.store import file_sha256
from reproducers.verdicts import Exit

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
NAME = re.compile(r"^\d{8}T\d{6}Z_[a-z0-9-]+_[0-9a-f]{12}\.json$")
ENGINE = ("probe", "observe", "watch", "codehash", "stamp", "verdicts", "rulings")
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


def subject(path: Path) -> str:
    """The name of the tree that a receipt is about."""
    return str(json.loads(path.read_text())["subject"][0]["name"])


def newest(pack: Pack, lane: str, root: Path, pin: str = "live") -> Path | None:
    """The newest receipt of both arms in one lane at the pin of that name."""
    for path in reversed(chain(root / f"{pack.number:02d}")):
        seen = read(path)
        at = seen["at"] if pin == "live" else pack.pin_name(seen["at"])
        if seen["lane"] == lane and at == pin and seen["arm"] == "both":
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


@app.command()
def verify(root: Annotated[Path, typer.Argument(help="folder of receipts")] = COMMITTED) -> None:
    """Recompute every digest and verdict; exit 1 and name what was tampered with."""
    from reproducers.verification import verify_all

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
