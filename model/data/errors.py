"""The one error that bad data, files or options raise."""

from __future__ import annotations

from reproducers.base.errors import PatchlaneError


class DataError(PatchlaneError):
    """Input, a dataset file or an option is not usable; the message names it, ``remedy`` mends it."""
