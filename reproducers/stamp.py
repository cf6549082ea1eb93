"""The first line of every arm: what is tested, from where, on which host capability. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

DISTRIBUTIONS = (
    "torch",
    "triton",
    "numpy",
    "tilelang",
    "apache-tvm-ffi",
    "einops",
    "transformer-engine",
)


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def versions() -> dict[str, str]:
    """Installed versions of the distributions that change results; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def gpus() -> list[dict[str, str]]:
    """[{name, capability, driver, memory}] as the driver reports them; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = "--query-gpu=name,compute_cap,driver_version,memory.total"
    done = subprocess.run([tool, query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
    if done.returncode:
        return []
    keys = ("name", "capability", "driver", "memory")
    return [dict(zip(keys, map(str.strip, row.split(",")), strict=False)) for row in done.stdout.splitlines()]


def capability() -> dict[str, Any]:
    """What the host can do, never which host it is: architecture, cores, GPUs."""
    return {"machine": platform.machine(), "cores": os.cpu_count(), "gpus": gpus()}
