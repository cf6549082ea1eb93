"""What a bisection looks for: the tree that brought a bug, or the one that mended it."""

from __future__ import annotations

from enum import StrEnum


class Goal(StrEnum):
    """``introduced``: the first tree with the bug; ``fixed``: the first without it after one that has it."""

    INTRODUCED = "introduced"
    FIXED = "fixed"
