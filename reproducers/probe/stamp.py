"""The first line of every arm: what is tested, from where, on which host capability. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

DISTRIBUTIONS = ("torch", "triton", "numpy", "tilelang", "apache-tvm-ffi", "einops", "transformer-engine")


def versions() -> dict[str, str]:
    """Installed versions of the distributions that change results, and torch's CUDA; absent ones are left out."""
    installed = {"python": platform.python_version()}
    if cuda := torch_cuda():
        installed["cuda"] = cuda
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def torch_cuda() -> str | None:
    """The CUDA version torch was built for, from its version file; None for a CPU build or without torch."""
    spec = importlib.util.find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    match = re.search(r"(?m)^cuda\b[^=]*= *'([\d.]+)'", path.read_text()) if path and path.is_file() else None
    return match[1] if match else None


def system() -> str:
    """The operating system and its kernel's version, without a build's own suffix."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    kernel = re.match(r"[\d.]*\d", platform.release())
    return ", ".join(part for part in (name, f"{platform.system()} {kernel[0] if kernel else ''}".strip()) if part)


def version(package: str, tree: Path) -> str:
    """The ``package`` in ``tree``: its distribution and release, or version and commit by its sources; never empty."""
    there = importlib.metadata.distributions(path=[str(tree)])
    names = [f"{d.name} {d.version}" for d in there if any(f.parts[0] == package for f in d.files or ())]
    files = [tree / package / "__init__.py", tree / "pyproject.toml", tree.parent / "pyproject.toml"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    number = re.findall(r"""(?m)^(?:__version__|version) = ["'](.+)["']""", text)[:1]
    git = shlex.join(["git", "-C", str(tree), "log", "-1", "--format=commit %h", "--", package])
    return " ".join(names or [package, *number, *re.findall("^commit [0-9a-f]+$", subprocess.getoutput(git))])


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
    """The host's operating system, architecture, cores and GPUs, never its name."""
    return {"platform": system(), "machine": platform.machine(), "cores": os.cpu_count(), "gpus": gpus()}
