"""What a family brings to be aligned with a reference."""

from __future__ import annotations

from typing import Protocol

from model.alignment.comparison import Row
from model.families.family import Family
from model.kinds.path import Choice
from model.kinds.run import Run


class Draw(Protocol):
    """Built for one size, before upstream's code is there."""

    documents: int  # of a draw, or as many as its row is long
    variants: int  # of the size's constants; each has draws of its own

    def __init__(self, size: Family, tokens: int) -> None:
        """``tokens`` of each document.

        Raises PatchlaneError for so many tokens that cannot be compared, and CannotTestHere, with the command
        that installs it, where the reference is not installed.
        """

    def rows(self, variant: int, seed: int, run: Run, chosen: dict[str, Choice]) -> list[Row]:
        """Of one draw of weights and tokens, in forward order, of gradients in backward order. Megatron has started."""
        ...
