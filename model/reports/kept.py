"""Training runs kept under ``receipts/train/NAME``, with the digests of their files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from model.loop import run_record
from model.patched.proof.record import FILE as COVERAGE
from model.records import history
from model.reports import report
from reproducers.base.errors import PatchlaneError
from reproducers.base.files import file_sha256, parsed_json, within, write_atomic
from reproducers.record.schema import ROOT

KEPT = ROOT / "receipts" / "train"
RECEIPT = "receipt.json"
NEEDED = (history.NAME,)
WANTED = (run_record.FILE, COVERAGE, "profile.md", "profile.json", "loss.png", "throughput.png")
RESUMED = "run.from_*.json"  # the run.json of each resume, by the step that it resumed from
DIAGNOSED = "diagnosis.png"  # of runs that diagnose steps, which the oldest ones did not


def summary(folder: Path) -> dict[str, Any]:
    """The run's figures, from its records alone."""
    figures: dict[str, Any] = json.loads(report.summarise(folder).model_dump_json())
    figures.pop("run", None)
    return {name: value for name, value in figures.items() if value is not None or name not in report.LATER}


def keep(run: Path, name: str, kept: Path = KEPT) -> Path:
    """Copy a run's small files and write their receipt. Raises PatchlaneError for a bad or used name, or no records."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise PatchlaneError(f"{name!r} cannot name a receipt", "small letters, digits, - and _")
    target = kept / name
    if target.exists():
        raise PatchlaneError(
            f"{target.relative_to(kept.parent)} exists", "choose another name; receipts are never replaced"
        )
    missing = [file for file in NEEDED if not (run / file).is_file()]
    if missing:
        raise PatchlaneError(f"{run} has no {', '.join(missing)}", "python -m model.train SIZE --out RUN")
    target.mkdir(parents=True)
    files = [file for file in (*NEEDED, *WANTED) if (run / file).is_file()]
    files += sorted(path.name for pattern in (RESUMED, DIAGNOSED) for path in run.glob(pattern))
    for file in files:
        shutil.copyfile(run / file, target / file)
    content = {
        "schema_version": 1,
        "files": {file: file_sha256(target / file) for file in files},
        "absent": [file for file in WANTED if file not in files],
        "summary": summary(target),
    }
    write_atomic(target / RECEIPT, (json.dumps(content, indent=1) + "\n").encode())
    return target


def faults(kept: Path = KEPT) -> list[str]:
    """The faults of the kept runs, one line each."""
    rows = []
    for folder in sorted(path for path in kept.glob("*") if path.is_dir()):
        try:
            content = parsed_json((folder / RECEIPT).read_bytes())
            files = ((within(folder, file), digest) for file, digest in content["files"].items())
            bad = [path for path, digest in files if not path.is_file() or file_sha256(path) != digest]
            rows += [f"{folder.name}/{path.name} is missing or was altered" for path in bad]
            if not bad and summary(folder) != content["summary"]:
                rows.append(f"{folder.name}: its summary differs from its records")
            strangers = {path.name for path in folder.iterdir()} - {RECEIPT, *content["files"]}
            rows += [f"{folder.name}/{name} is in no receipt" for name in sorted(strangers)]
        except (OSError, ValueError, KeyError, AttributeError, PatchlaneError) as error:
            rows.append(f"{folder.name}/{RECEIPT}: {type(error).__name__}: {error}")
    return rows
