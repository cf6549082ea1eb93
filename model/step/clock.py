"""Seconds between points of a step, by the GPU's own clock if there is a GPU: marking a point makes no host wait."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

PHASES = ("before the first forward", "forward and backward", "gradients' reduction", "optimizer")  # of the engine


class Clock:
    """``mark`` the points in order, then ask for the seconds."""

    def __init__(self) -> None:
        self._marks: list[Any] = []  # events on a GPU, else times
        self._times: list[float] = []  # of the host

    def mark(self) -> None:
        """Mark the end of the current stream's work so far or, without a GPU, the present."""
        self._times.append(time.perf_counter())
        if not torch.cuda.is_available():
            self._marks.append(self._times[-1])
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def passed(self) -> bool:
        """Whether the GPU has passed the last mark; True without a GPU. Waits for nothing."""
        return not torch.cuda.is_available() or bool(self._marks[-1].query())

    def seconds(self) -> list[float]:
        """Seconds between each mark and the next; waits for the GPU to pass the last one, and for nothing after it."""
        if torch.cuda.is_available() and self._marks:
            self._marks[-1].synchronize()
        return [_between(before, after) for before, after in itertools.pairwise(self._marks)]

    def since(self, before: Clock) -> float:
        """Seconds from the last mark of ``before`` to this one's last; call it after ``seconds``."""
        return _between(before._marks[-1], self._marks[-1])

    def since_time(self, host: float) -> float:
        """Seconds from ``host``, a time of the host's before the first mark, to the last mark, where the GPU had no
        work as the first one was made; call it after ``seconds``."""
        return self._times[0] - host + _between(self._marks[0], self._marks[-1])

    def host_seconds(self) -> list[float]:
        """Seconds between each mark and the next on the host, which on a GPU only launches; waits for nothing."""
        return [after - before for before, after in itertools.pairwise(self._times)]


def _between(before: Any, after: Any) -> float:
    """Seconds between two marks that are passed."""
    return float(after - before if isinstance(after, float) else before.elapsed_time(after) / 1000)
