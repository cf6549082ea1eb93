"""Compile once for all arms of the runner, and keep the results by content.

CUDA source is kept by the TIR text, the pass configs and TileLang's version; a kernel's resources by the source and
nvcc's version. Failures are never kept: the bug must happen in the run that claims it.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from patchlane.base.files import write_atomic
from reproducers.probe.lanes import tilelang as lane_tilelang
from reproducers.probe.lanes.tilelang import ARCH


def lower(func: Any, configs: dict[str, Any]) -> str:
    """As ``lane_tilelang.lower``."""
    import tilelang

    settings = json.dumps(lane_tilelang.named(configs), sort_keys=True)
    kept = _path("lowered", tilelang.__version__, ARCH, settings, func.script(show_meta=True))
    if kept and kept.exists():
        return kept.read_text()
    source = lane_tilelang.lower(func, configs)
    _keep(kept, source)
    return source


def nvcc(source: str) -> dict[str, int]:
    """As ``lane_tilelang.nvcc``."""
    version = subprocess.run([lane_tilelang.nvcc_path(), "--version"], capture_output=True, text=True, check=True)
    kept = _path("cubin", version.stdout, ARCH, source)
    if kept and kept.exists():
        return dict(json.loads(kept.read_text()))
    used = lane_tilelang.nvcc(source)
    _keep(kept, json.dumps(used))
    return used


def _path(kind: str, *content: str) -> Path | None:
    """The file for results of this content; None without a runner, which names the folder."""
    folder = os.environ.get("TILELANG_CACHE_DIR")
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()
    return Path(folder) / f"patchlane-{kind}" / key if folder else None


def _keep(path: Path | None, text: str) -> None:
    if path is not None:
        write_atomic(path, text.encode())
