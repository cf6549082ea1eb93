"""What an interpreter would import, without importing any of it: run as a script by that interpreter, prints JSON.

Needs the standard library of Python 3.8 and nothing else. Its argument is
``{"packages": [...], "distributions": [...]}``.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def described(packages: list[str], distributions: list[str], path: list[str] | None = None) -> dict[str, Any]:
    """{"packages": {name: folders}, "distributions": {name: [version, folder of its files]}}, absent ones left out.

    ``path``: folders to look into, as sys.path; None: what this interpreter would import, editable installs included.
    """
    folders: dict[str, list[str]] = {}
    versions: dict[str, list[str]] = {}
    for name in packages:
        try:
            spec = importlib.machinery.PathFinder.find_spec(name, path) if path else importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.submodule_search_locations is not None:
            folders[name] = [str(Path(place).resolve()) for place in spec.submodule_search_locations]
    for name in distributions:
        first = next(iter(importlib.metadata.distributions(name=name, path=path or sys.path)), None)
        if first is not None and first.version:
            versions[name] = [first.version, str(Path(str(first.locate_file(""))).resolve())]
    return {"packages": folders, "distributions": versions}


if __name__ == "__main__":
    own = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != own]
    asked = json.loads(sys.argv[1])
    print(json.dumps(described(asked["packages"], asked["distributions"])))
