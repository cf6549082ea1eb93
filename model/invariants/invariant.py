"""An invariant: what a rank measures around a step, and what all ranks' measurements say of it.

Every rank judges the measurements of all, so that all come to the same end and none waits for another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from model.data.rows.loader import Batch
from model.invariants.view import View
from model.step.measured.launched import Outcome
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit


@dataclass(frozen=True)
class Step:
    """The step that is checked: its number, this rank's micro-batches and what all ranks measured of it."""

    number: int
    batches: Sequence[Batch]
    outcome: Outcome


class Broken(PatchlaneError):
    """Invariants that do not hold after a step; nothing of it has been saved."""

    exit_code = Exit.BROKEN


class Invariant(ABC):
    """One of them. ``of_update``: of a step that was taken, not of the state that it left. ``computes``: it takes
    forward passes of its own, and so no part in a check that is made for a checkpoint alone."""

    name: ClassVar[str]
    remedy: ClassVar[str]
    of_update: ClassVar[bool] = True
    computes: ClassVar[bool] = False

    def unable(self, view: View) -> str:
        """Why this run can never be checked so; empty where it can."""
        return ""

    def before(self, view: View) -> None:  # noqa: B027 - most note nothing
        """Note what the step is going to change."""

    @abstractmethod
    def after(self, view: View, step: Step | None) -> Any:
        """What this rank measures, in plain values that can be pickled; all ranks call it, with a step unless the
        invariant is of the state alone."""

    @abstractmethod
    def broken(self, ranks: Sequence[Any]) -> str:
        """What all ranks' measurements break, in rank order: what and where, as the
        end of a sentence; empty where the invariant holds."""


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
