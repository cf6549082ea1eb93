"""How every command of the project ends."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every verb."""

    OK = 0
    CONTRADICTED = 1
    USAGE = 2
    FAULT = 3
    BROKEN = 70
    STOPPED = 75
    CANNOT_TEST = 77
    BISECT_SKIP = 125
    INTERRUPTED = 130
