"""A run's invariants: when they are checked, what each check cost, and what a broken one says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from model.data.rows.loader import Batch
from model.invariants.documents import Documents
from model.invariants.invariant import Broken, Invariant, Step
from model.invariants.routing import Balance, Biases, Counts
from model.invariants.state import Masters, Moments, Precision, Weights
from model.invariants.update import Counted, Gradients, Losses, Moving, Norm
from model.invariants.view import View
from model.step.engine import Engine
from model.step.measured.launched import Outcome

EVERY: tuple[type[Invariant], ...] = (
    Losses,
    Masters,
    Moments,
    Precision,
    Weights,
    Counted,
    Gradients,
    Norm,
    Moving,
    Counts,
    Biases,
    Balance,
    Documents,
)
RESUMES = "do that; the same command then goes on from the last checkpoint, and nothing of this step is in it"
T = TypeVar("T")


class Watch:
    """All of them, of one rank. ``steps``: every so many they are checked, beside a start's first and those that are
    saved."""

    def __init__(self, engine: Engine, steps: int) -> None:
        self.engine, self.steps = engine, steps
        self.view = View(engine)
        found = [of() for of in EVERY]
        said: list[dict[str, str]] = [{}] * dist.get_world_size()
        dist.all_gather_object(said, {one.name: one.unable(self.view) for one in found})
        # where one rank can, all take part
        self.unable = {name: why for name, why in said[0].items() if why and all(other[name] for other in said)}
        self.able = [one for one in found if one.name not in self.unable]
        self._first = self._whole = True
        self._ms: dict[str, float] = {}

    def due(self, step: int, saved: bool) -> bool:
        """Whether ``step`` is checked; ``saved``: a checkpoint of it is written."""
        self._whole = self._first or step % self.steps == 0
        return self._whole or saved

    def begin(self) -> None:
        """Before a step that is due; all ranks call it."""
        self._first, self._ms = False, {}
        self.engine.gather()
        for one in self.able:
            self._timed(one, partial(one.before, self.view))

    def check(self, step: int, batches: Sequence[Batch], outcome: Outcome | None) -> tuple[dict[str, Any], str]:
        """After a step, whole and read: ({invariant: ms of this rank, or why it was not checked}, what is broken, a
        line each). All ranks call it and get the same but for the times. Without an ``outcome``, or where no update was
        made, those of the state alone."""
        if outcome is None:
            self._ms = {}
        self.engine.gather()
        taken = None if outcome is None else Step(step, batches, outcome)
        why = {one.name: self._left_out(one, outcome) for one in self.able}
        checked = [one for one in self.able if not why[one.name]]
        mine: list[Any] = [self._timed(one, partial(one.after, self.view, taken)) for one in checked]
        every: list[list[Any]] = [[]] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        lines = []
        for one, *of_ranks in zip(checked, *every, strict=True):
            if what := self._timed(one, partial(one.broken, of_ranks)):
                lines.append(f"step {step}: {one.name}: {what}\n  to do: {one.remedy}")
        told: dict[str, Any] = {one.name: round(self._ms[one.name], 3) for one in checked}
        return told | {name: text for name, text in why.items() if text} | self.unable, "\n".join(lines)

    def _left_out(self, one: Invariant, outcome: Outcome | None) -> str:
        """Why it takes no part in this check; empty where it does."""
        if one.of_update and (outcome is None or outcome.skipped):
            return "no update was made" if outcome is not None else "of a step that was not to be checked"
        return "" if self._whole or not one.computes else "for a checkpoint alone it is left out"

    def _timed(self, one: Invariant, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self._ms[one.name] = self._ms.get(one.name, 0.0) + 1e3 * (time.perf_counter() - began)


def refuse(lines: str) -> None:
    """Raise Broken for the ``lines`` that ``Watch.check`` gives, if there are any."""
    if lines:
        raise Broken(lines, RESUMES)
