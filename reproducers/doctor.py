"""Print what this host can run, and the command that brings what is missing. ``python -m reproducers.doctor``.

The answers come from files and the driver: the doctor imports nothing under test and uses no network without
``--online``. This module starts on any Python 3 with the standard library, where a doctor is needed most.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from patchlane.base.wording import requirement_name
from reproducers.base.start import outdated


def cannot_start() -> str:
    """Why the engine cannot start here, with the remedy; "" if it can."""
    if outdated():
        return f"error: {outdated()}\n  fix: make setup PYTHON=python3.12"
    import tomllib

    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
    rows = [*project["optional-dependencies"]["engine"], *project["dependencies"]]
    missing = [name for name in map(requirement_name, rows) if not _has(name)]
    return f"error: not installed: {', '.join(missing)}\n  fix: make setup" if missing else ""


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main() -> None:
    """Print the report, or name the remedy if the engine cannot start."""
    fault = cannot_start()
    if fault:
        print(fault, file=sys.stderr)
        raise SystemExit(77)
    from reproducers.base.cli import guarded
    from reproducers.host.report import app

    guarded(app)


if __name__ == "__main__":
    main()
