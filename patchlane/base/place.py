"""Where this copy of the audit is: in a clone, beside the engine and the packs, or installed alone."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CLONE = HERE.parent if (HERE.parent / "reproducers" / "run.py").is_file() else None
PACKS = CLONE / "packs" if CLONE else HERE / "packs"  # a wheel has the patches and the index inside the package
AUDIT = "python -m reproducers.audit" if CLONE else "patchlane audit"
UPGRADE = "pip install --upgrade --force-reinstall patchlane"
RENEW = "git pull, or python -m reproducers.audit --write" if CLONE else UPGRADE  # brings patches and index together


def of_clone(command: str) -> str:
    """A command or file of a clone, as it can be used from here."""
    return command if CLONE else f"in a clone of patchlane: {command}"


def restore(path: Path) -> str:
    """The command that brings a file of ours back."""
    return f"git checkout HEAD -- {path}" if CLONE else UPGRADE
