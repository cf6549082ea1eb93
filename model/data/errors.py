"""The one error that bad data, files or options raise, and the import of optional libraries."""

from __future__ import annotations

import importlib
from typing import Any

from reproducers.base.errors import PatchlaneError


class DataError(PatchlaneError):
    """Input, a dataset file or an option is not usable; the message names it, ``remedy`` mends it."""


def optional(module: str, distribution: str) -> Any:
    """Import ``module``; DataError with the pip command when its distribution is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(f"{distribution} is not installed", f"pip install {distribution}") from error
