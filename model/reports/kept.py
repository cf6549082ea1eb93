"""What a training run left, kept under ``receipts/train/NAME`` with digests."""

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
from reproducers.base.files import file_sha256, write_atomic
from reproducers.record.schema import ROOT

KEPT = ROOT / "receipts" / "train"
RECEIPT = "receipt.json"
NEEDED = (history.NAME,)
WANTED = (run_record.FILE, COVERAGE, "profile.md", "profile.json", "loss.png", "throughput.png")
RESUMED = "run.from_*.json"  # what a resumed run is, by the step that it went on from


def summary(folder: Path) -> dict[str, Any]:
    """The run's figures, from its records alone."""
    found: dict[str, Any] = json.loads(report.summarise(folder).model_dump_json())
    found.pop("run", None)
    return {name: value for name, value in found.items() if value is not None or name not in report.LATER}


def keep(run: Path, name: str, kept: Path = KEPT) -> Path:
    """Copy a run's small files and write their receipt. PatchlaneError for a bad or used name, or without records."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise PatchlaneError(f"a receipt cannot be named {name!r}", "small letters, digits, - and _")
    target = kept / name
    if target.exists():
        raise PatchlaneError(
            f"{target.relative_to(kept.parent)} is there already", "choose another name; receipts stay"
        )
    missing = [file for file in NEEDED if not (run / file).is_file()]
    if missing:
        raise PatchlaneError(f"{run} has no {', '.join(missing)}", "python -m model.train SIZE --out RUN")
    target.mkdir(parents=True)
    files = [file for file in (*NEEDED, *WANTED) if (run / file).is_file()]
    files += sorted(path.name for path in run.glob(RESUMED))
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
    """What is wrong with the kept runs, one line each."""
    rows = []
    for folder in sorted(path for path in kept.glob("*") if path.is_dir()):
        try:
            content = json.loads((folder / RECEIPT).read_bytes())
            for file, digest in content["files"].items():
                if not (folder / file).is_file() or file_sha256(folder / file) != digest:
                    rows.append(f"{folder.name}/{file} is missing or was altered")
            if not rows and summary(folder) != content["summary"]:
                rows.append(f"{folder.name}: its summary is not what its records give")
            strangers = {path.name for path in folder.iterdir()} - {RECEIPT, *content["files"]}
            rows += [f"{folder.name}/{name} is in no receipt" for name in sorted(strangers)]
        except (OSError, ValueError, KeyError, AttributeError) as error:
            rows.append(f"{folder.name}/{RECEIPT}: {type(error).__name__}: {error}")
    return rows
