"""Training runs kept under ``receipts/train/NAME``, with the digests of their files.

Only what nothing else that is kept gives again: no picture, no page. The older ones' files are packed by xz, all but
the receipt, whose digests are of what they unpack to.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from model.loop import run_record
from model.records import history
from model.records.newest import KEPT, RECEIPT
from model.reports import limit, report
from patchlane.base.errors import PatchlaneError, StoreError
from patchlane.base.files import file_sha256, parsed_json, within, write_atomic
from reproducers.kept import xz
from reproducers.training.coverage import FILE as COVERAGE

NEEDED = (history.NAME,)
WANTED = (run_record.FILE, COVERAGE, limit.FILE)
RESUMED = "run.from_*.json"  # the run.json of each resume, by the step that it resumed from
DRAWN = ("loss.png", "throughput.png", "diagnosis.png", "profile.md")  # from records and profile, at any time


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
    files = [path.name for path in _files(run)]
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


def _files(run: Path) -> list[Path]:
    """The files of a run that its receipt names, as far as they lie open."""
    return [path for name in (*NEEDED, *WANTED) if (path := run / name).is_file()] + sorted(run.glob(RESUMED))


def faults(kept: Path = KEPT) -> list[str]:
    """The faults of the kept runs, one line each.

    What can be drawn need not be there, though early receipts name it; any other file that a receipt names must.
    """
    rows = []
    for folder in sorted(path for path in kept.glob("*") if path.is_dir()):
        try:
            content = parsed_json((folder / RECEIPT).read_bytes())
            files = {within(folder, file): digest for file, digest in content["files"].items()}
            bad = [path for path, digest in files.items() if not _same(path, digest)]
            rows += [f"{folder.name}/{path.name} is missing or was altered" for path in bad]
            if not bad and summary(folder) != content["summary"]:
                rows.append(f"{folder.name}: its summary differs from its records")
            strangers = {path.name for path in folder.iterdir()} - {RECEIPT, *content["files"]}
            strangers -= {xz.place(path).name for path in files}
            rows += [f"{folder.name}/{name} is in no receipt" for name in sorted(strangers)]
        except (OSError, ValueError, KeyError, AttributeError, PatchlaneError) as error:
            rows.append(f"{folder.name}/{RECEIPT}: {type(error).__name__}: {error}")
    return rows


def _same(path: Path, digest: str) -> bool:
    """Whether the content of ``path``, open or packed, has the digest; or it is drawn, and not there."""
    if path.name in DRAWN and not path.exists():
        return True
    try:
        with xz.opened(path) as source:
            return hashlib.file_digest(source, "sha256").hexdigest() == digest
    except (FileNotFoundError, StoreError):
        return False


def unpacked(before: datetime.date, kept: Path = KEPT) -> list[Path]:
    """The files of runs whose last step is of ``before`` or earlier, but for receipts, as far as they lie open."""
    runs = sorted(path.parent for path in kept.glob(f"*/{RECEIPT}"))
    return [path for run in runs if _day(run) <= before for path in _files(run)]


def _day(run: Path) -> datetime.date:
    """The day of a run's last record, UTC."""
    return datetime.datetime.fromtimestamp(history.read(run)[-1].time, datetime.UTC).date()
