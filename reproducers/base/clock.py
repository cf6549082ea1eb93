"""The day that a verb judges by."""

from __future__ import annotations

import datetime

from reproducers.base.errors import PatchlaneError


def today() -> datetime.date:
    """The day in UTC, as receipts have it."""
    return datetime.datetime.now(datetime.UTC).date()


def day_of(text: str | None) -> datetime.date | None:
    """The day that ``text``, the value of --date, names; None without one. PatchlaneError for no date."""
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError as error:
        raise PatchlaneError(f"--date {text}: not a date", "--date 2026-12-31") from error
