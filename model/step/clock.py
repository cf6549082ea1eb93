"""Seconds between points of a step, by the GPU's own clock if there is a GPU: marking a point makes no host wait."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

PHASES = ("before the first forward", "forward and backward", "gradients' reduction", "optimizer")  # of the engine


class Clock:
    """``mark`` the points in order, then ask for ``seconds`` and ``host_seconds``."""

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

    def seconds(self) -> list[float]:
        """Seconds between each mark and the next; waits for the GPU to pass the last one."""
        pairs = itertools.pairwise(self._marks)
        if not torch.cuda.is_available():
            return [after - before for before, after in pairs]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairs]

    def host_seconds(self) -> list[float]:
        """Seconds between each mark and the next on the host, which on a GPU only launches; waits for nothing."""
        return [after - before for before, after in itertools.pairwise(self._times)]
