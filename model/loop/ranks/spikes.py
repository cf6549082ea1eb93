"""A loss that spikes, or a loss or norm that is not finite: what it is, and what a run does after it.

All ranks decide on rank 0's numbers. What is decided depends on the run's losses alone, and those before a checkpoint
are in it, so a resumed run decides as one that never ended.
"""

from __future__ import annotations

import collections
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.definition.recipes import Recipe
from model.loop import refusals
from model.loop.ranks import agreement
from model.records import history
from patchlane.base.errors import PatchlaneError

REWIND = "rewind"  # the event's name
STILL = 1e-3  # of the median: the least deviation, so that a loss that stands still does not spike by rounding


@dataclass(frozen=True)
class Spike:
    """What a step met: "loss" that spiked, or "loss" or "norm" that is "not finite"."""

    kind: str
    loss: float
    norm: float


class Spikes:
    """The losses that a run's next one is compared with, and what it did after those that did not compare."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.recent: collections.deque[float] = collections.deque(maxlen=recipe.spike_window)
        self.skips = 0  # one after the other, up to the last step
        self.rewinds = 0
        self._met: Spike | None = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, in plain values, equal on every rank."""
        return {"recent": [*self.recent], "skips": self.skips}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = collections.deque(state.get("recent", []), maxlen=self.recipe.spike_window)
        self.skips = state.get("skips", 0)

    def refuses(self, loss: float, norm: float) -> bool:
        """Whether the update of such a step is left out; all ranks call it, before the update."""
        self._met = self._judged(loss, norm)
        return self._met is not None

    def after(self, step: int, loss: float, norm: float) -> Spike | None:
        """What ``step`` met, None if it is as those before; all ranks call it after each step.

        Raises PatchlaneError when more steps are skipped one after the other, or more times is gone back, than the
        recipe allows.
        """
        if self.recipe.on_spike == "stop":
            return None
        met = self._met if self.recipe.on_spike == "skip" else self._judged(loss, norm)
        if met is None:
            self.recent.append(loss)
            self.skips = 0
            return None
        self.skips += self.recipe.on_spike == "skip"
        tried = f"{self.recipe.max_skips} steps before it are skipped" if self.skips > self.recipe.max_skips else ""
        if self.recipe.on_spike == "rewind" and self.rewinds >= self.recipe.max_rewinds:
            tried = f"the run has gone back {self.rewinds} times"
        if tried:
            raise PatchlaneError(
                f"step {step}: {met.kind} (loss {loss:.4g}, norm {norm:.4g}), and {tried}", refusals.LOWER
            )
        return met

    def _judged(self, loss: float, norm: float) -> Spike | None:
        numbers = torch.tensor([loss, norm], dtype=torch.float64)  # on the host: no wait for the GPU
        dist.broadcast(numbers, 0)
        loss, norm = numbers.tolist()
        kind = ""
        if not math.isfinite(loss):
            kind = "loss not finite"
        elif not math.isfinite(norm):
            kind = "norm not finite"
        elif loss > limit(self.recent, self.recipe.spike_window, self.recipe.spike_factor):
            kind = "loss spike"
        return Spike(kind, loss, norm) if kind else None

    def left_out(self, folder: Path, step: int) -> list[tuple[int, int]]:
        """The samples that the run in ``folder`` left out when it went back to ``step`` or before; all ranks call it.

        Its records tell: the checkpoint that it went back to was written before. How often it went back is known after.
        """
        found: list[Any] = [agreement.first(lambda: _remembered(folder, step))]
        dist.broadcast_object_list(found, 0)
        self.rewinds = len(found[0])
        return [(first, last) for first, last in found[0]]


def limit(recent: collections.deque[float], window: int, factor: float) -> float:
    """The loss above which a step spikes: the median of ``recent`` and ``factor`` median absolute deviations more.

    Infinite while there are fewer than ``window`` of them.
    """
    if len(recent) < window:
        return math.inf
    median = statistics.median(recent)
    deviation = statistics.median(abs(loss - median) for loss in recent)
    return median + factor * max(deviation, STILL * abs(median))


def _remembered(folder: Path, step: int) -> list[tuple[Any, Any]]:
    """(first, behind the last) sample of each time that the run went back."""
    events = [event for event in history.named(folder, REWIND) if event.step <= step]
    return [(event.detail["first_sample"], event.detail["last_sample"]) for event in events]
