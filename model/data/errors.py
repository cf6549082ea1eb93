"""The error that bad data, files and options raise."""

from __future__ import annotations

from patchlane.base.errors import PatchlaneError


class DataError(PatchlaneError):
    """An input, a dataset file or an option cannot be used; the message names it and ``remedy`` says what helps."""
