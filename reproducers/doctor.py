"""What this host can run, and the exact command that gets whatever is missing. ``python -m reproducers.doctor``.

Answers from files and the driver alone: nothing under test is imported, no network is asked without ``--online``.
This module starts on any Python 3 with the standard library, for that is where a doctor is needed most.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from reproducers.base.start import PYTHON
from reproducers.base.wording import requirement_name


def cannot_start() -> str:
    """Why the engine itself cannot start here, with the remedy; "" when it can."""
    if sys.version_info[:3] < PYTHON:
        wanted = ".".join(map(str, PYTHON))
        return f"error: python {sys.version.split()[0]}, wanted {wanted} or later\n  fix: make setup PYTHON=python3.12"
    import tomllib

    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
    missing = [name for name in map(requirement_name, project["dependencies"]) if not _has(name)]
    return f"error: not installed: {', '.join(missing)}\n  fix: make setup" if missing else ""


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main() -> None:
    """Refuse in one line where the engine cannot start; otherwise report."""
    fault = cannot_start()
    if fault:
        print(fault, file=sys.stderr)
        raise SystemExit(77)
    from reproducers.base.cli import guarded
    from reproducers.host.report import app

    guarded(app)


if __name__ == "__main__":
    main()
