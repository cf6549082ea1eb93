"""Digests, and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def file_sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def json_sha256(value: Any) -> str:
    """sha256 of a JSON value, independent of key order and white space."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A temporary folder in ``beside``'s parent, gone at the end; those that killed processes left go first."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    for stale in beside.parent.glob(".tmp-*-data-*"):
        owner = stale.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".tmp-{os.getpid()}-data-"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
