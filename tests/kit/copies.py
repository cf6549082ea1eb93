"""Fair copies of the kept receipts: each as a run some seconds later, with digests, names and predecessors of its own.

``python tests/kit/copies.py FOLDER 10000`` writes that many below FOLDER and prints the wall and processor seconds that
``receipts verify`` of them takes.
"""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from reproducers.evidence import shelf
from reproducers.kept import archive

ROOT = Path(__file__).resolve().parents[2]
FORM = "%Y-%m-%dT%H:%M:%SZ"


def copies(source: Path, target: Path, number: int) -> int:
    """Write the receipts of ``source`` and copies of them, ``number`` in all, below ``target``."""
    paths = shelf.every(source)
    renamed = dict[tuple[int, str], str]()  # {(round, digest): digest of the copy}
    left, later = number, 0
    while left:
        for path in paths[:left]:
            _copy(path, target, later, renamed)
        left, later = left - min(left, len(paths)), later + 1
    return number


def _copy(path: Path, target: Path, later: int, renamed: dict[tuple[int, str], str]) -> None:
    data, log = archive.data(path), archive.data(path.with_suffix(".log")).decode("utf-8", "surrogateescape")
    body, when = json.loads(data), path.name[:16]
    details = body["predicate"]["patchlane"]
    started = datetime.strptime(details["started"], FORM) + timedelta(seconds=later)
    previous = renamed.get((later, details["previous"]), details["previous"])
    for old, new in ((details["started"], f"{started:{FORM}}"), (details["previous"], previous)):
        if old and log.startswith("[run] "):
            first, rest = log.split("\n", 1)
            log = f"{first.replace(json.dumps(old), json.dumps(new))}\n{rest}"
    details |= {"started": f"{started:{FORM}}", "previous": previous}
    raw = log.encode("utf-8", "surrogateescape")
    details["log_sha256"] = hashlib.sha256(raw).hexdigest()
    made = (json.dumps(body, indent=1, sort_keys=True) + "\n").encode() if later else data
    digest = hashlib.sha256(made).hexdigest()
    renamed[later, hashlib.sha256(data).hexdigest()] = digest
    when = f"{started:%Y%m%dT%H%M%SZ}"
    place = target / path.parent.name / f"{when}_{path.name.split('_')[1]}_{digest[:12]}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(made)
    place.with_suffix(".log").write_bytes(raw)


def timed(*command: str) -> str:
    """A line of what a verb says at its end and what it took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = (done.stdout.splitlines() or ["nothing"])[-1]
    return f"{' '.join(command[:2])}: {wall:.1f} s, {took:.1f} s of processors, exit {done.returncode}: {said}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    copies(ROOT / "receipts", folder, int(sys.argv[2]))
    print(timed("reproducers.receipts", "verify", str(folder)))
