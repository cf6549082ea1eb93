"""A patch on a folder of packages: no fuzz, offsets allowed, by ``patch`` or, where there is none, by git."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere

_OWN = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.attributesFile=/dev/null")
_QUIET = {"LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Landing:
    """How a patch meets a folder where offsets are allowed: why it does not apply, "" where it does; the offsets."""

    refused: str
    said: str


def depth(source_root: str) -> int:
    """The ``-p`` of a patch in repository layout for a folder of packages, which lacks the repository's source root."""
    return 1 + (0 if source_root == "." else len(Path(source_root).parts))


def command(folder: Path, patch: Path, strip: int) -> list[str]:
    """The command that patches what is installed: no fuzz, offsets allowed."""
    return ["patch", "-F0", f"-p{strip}", "-d", str(folder), "-i", str(patch)]


def land(folder: Path, patch: Path, strip: int, keep: bool = False) -> Landing:
    """Whether ``command`` would patch the folder, by a dry run of it; with ``keep`` the folder is patched then.

    The audit and ``applies`` print and judge by this rule. Runs that make receipts allow no offset.
    Where there is no ``patch``, git tries it by the same rule. CannotTestHere where there is neither.
    """
    if shutil.which("patch") is None:
        return _land_by_git(folder, patch, strip, keep)
    tried = [*command(folder, patch.resolve(), strip), "--force", "--no-backup-if-mismatch", "--reject-file=-"]
    done = clock.run([*tried, "--dry-run"], clock.STEP_S, capture_output=True, text=True)
    if done.returncode == 0 and keep:
        clock.run(tried, clock.STEP_S, capture_output=True)
    rows = done.stdout.splitlines()
    failed = [row for row in rows if re.search(r"FAILED|can't find file|malformed", row)]
    why = "; ".join(failed) or (done.stderr or done.stdout).strip().split("\n")[0] or f"it ended with {done.returncode}"
    return Landing(why if done.returncode else "", "; ".join(row for row in rows if "offset" in row))


def _land_by_git(folder: Path, patch: Path, strip: int, keep: bool) -> Landing:
    done = _git(folder, patch, strip, "--check")
    if done.returncode == 0 and keep:
        _git(folder, patch, strip)
    rows = done.stderr.splitlines()
    why = next((row for row in rows if row.startswith("error:")), "git does not apply it")
    return Landing(why if done.returncode else "", "; ".join(row for row in rows if "offset" in row))


def _git(folder: Path, patch: Path, strip: int, *flags: str) -> subprocess.CompletedProcess[Any]:
    """``git apply`` in a folder that belongs to no repository, by nobody's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _QUIET
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
    words = ["git", *_OWN, "apply", f"-p{strip}", "--verbose", "--whitespace=nowarn", *flags, str(patch.resolve())]
    try:
        return clock.run(words, clock.STEP_S, cwd=folder, env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise CannotTestHere("neither patch nor git is installed", "install patch") from error
