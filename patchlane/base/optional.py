"""Libraries that only some uses need."""

from __future__ import annotations

import importlib
from typing import Any

from patchlane.base.errors import CannotTestHere, PatchlaneError


def load(module: str, distribution: str, error: type[PatchlaneError] = CannotTestHere) -> Any:
    """Import ``module``. Raises ``error`` with the pip command if its distribution is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise error(f"{distribution} is not installed", f"pip install {distribution}") from missing
