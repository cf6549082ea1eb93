"""Libraries that only some uses need."""

from __future__ import annotations

import importlib
from typing import Any

from reproducers.base.errors import CannotTestHere


def load(module: str, distribution: str) -> Any:
    """Import ``module``; CannotTestHere with the pip command when its distribution is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CannotTestHere(f"{distribution} is not installed", f"pip install {distribution}") from error
