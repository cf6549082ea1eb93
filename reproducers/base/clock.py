"""Today's date, and the date in --date."""

from __future__ import annotations

import datetime

from reproducers.base.errors import PatchlaneError


def today() -> datetime.date:
    """Today in UTC, as in receipts."""
    return datetime.datetime.now(datetime.UTC).date()


def day_of(text: str | None) -> datetime.date | None:
    """The date in ``text``, the value of --date; None without one. Raises PatchlaneError if it is no date."""
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError as error:
        raise PatchlaneError(f"--date {text}: not a date", "--date 2026-12-31") from error
