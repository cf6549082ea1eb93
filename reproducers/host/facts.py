"""What this host has and what every pack asks of it. Imports nothing heavy and nothing under test."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from packaging.version import Version

from patchlane.base.errors import CannotTestHere
from patchlane.base.wording import requirement_name
from reproducers.base.start import PYTHON
from reproducers.host import cores
from reproducers.probe import stamp
from reproducers.record.schema import ROOT
from reproducers.upstream.git import git
from reproducers.upstream.store import Store

SETUP = ("cpu", "dev", "desk")  # the extras that `make setup` installs


class Finding(NamedTuple):
    """One thing that this host lacks, and the command or step that gets it."""

    what: str
    remedy: str


class Demand(NamedTuple):
    """One demand on the host. A host that does not meet it cannot run ``lanes``."""

    name: str
    found: str
    wanted: str
    ok: bool
    remedy: str
    lanes: tuple[str, ...] = ("cpu", "cuda")


def facts() -> dict[str, Any]:
    """Python, platform, cores, memory, GPUs and versions; never the host's name."""
    memory = psutil.virtual_memory()
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": cores.usable(),
        "memory_gib": round(memory.total / 2**30, 1),
        "memory_available_gib": round(memory.available / 2**30, 1),
        "gpus": gpus(),
        "versions": stamp.versions(),
    }


def gpus() -> list[dict[str, str]]:
    """The GPUs that the driver reports; none if it does not answer."""
    try:
        return stamp.gpus()
    except (OSError, subprocess.SubprocessError):
        return []


def visible_gpus() -> list[str]:
    """The GPUs that programs started here may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(len(gpus()))] if named is None else [n for n in named.split(",") if n]


def installed(module: str) -> bool:
    """Whether the top-level package of ``module`` can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def getting(module: str) -> str:
    """The command that installs a module: ``make setup`` if setup installs it, else pip's or uv's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in SETUP for line in project["optional-dependencies"][extra]]
    if module in {requirement_name(line) for line in [*project["dependencies"], *extras]}:
        return "make setup"
    return f"{'python -m pip' if installed('pip') else 'uv pip'} install {module}"


@functools.cache
def git_fault(url: str, timeout_s: float = 10) -> str:
    """Why git cannot reach a repository at ``url``, "" if it can. Sends one small request."""
    try:
        asked = ("ls-remote", "--exit-code", "--end-of-options", url, "HEAD")
        done = git(*asked, network=True, within_s=timeout_s)
    except CannotTestHere as error:
        return error.what
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no answer"])[-1]


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def compiler() -> str | None:
    """The C compiler that triton would call: $CC, gcc or clang."""
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def checks(store: Store | None) -> list[Demand]:
    """The demands that are the same for every pack."""
    wanted = ".".join(map(str, PYTHON))
    git, cc, headers = shutil.which("git"), compiler(), Path(sysconfig.get_paths()["include"], "Python.h")
    rows = [
        Demand(
            "python",
            platform.python_version(),
            f"{wanted} or later",
            sys.version_info[:3] >= PYTHON,
            "make setup PYTHON=python3.12",
        ),
        Demand("git", git or "none", "git, to apply patches", git is not None, "apt-get install git"),
        Demand(
            "store",
            "writable" if store else "not writable",
            "a writable folder",
            store is not None,
            "export PATCHLANE_STORE=DIR",
        ),
        Demand(
            "C compiler",
            cc or "none",
            "gcc, clang or $CC, to build triton's launchers",
            cc is not None,
            "apt-get install gcc",
            ("cuda",),
        ),
        Demand(
            "Python.h",
            "present" if headers.is_file() else "none",
            "the Python headers, to build triton's launchers",
            headers.is_file(),
            f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev",
            ("cuda",),
        ),
    ]
    return rows + numpy_check(version("triton"), version("numpy"))


def numpy_check(triton: str | None, numpy: str | None) -> list[Demand]:
    """The demand of triton up to 3.6, whose interpreter breaks on numpy 2.4; none if either is not installed."""
    if triton is None or numpy is None or Version(triton).release >= (3, 7):
        return []
    both, fine = f"numpy {numpy} with triton {triton}", Version(numpy).release < (2, 4)
    return [Demand("numpy", both, "numpy < 2.4 up to triton 3.6", fine, "pip install 'numpy<2.4'", ("cpu",))]
