"""Which rank the others wait for: each one's own seconds of a step, up to where it waits for the others.

Own are the host's seconds for the data, and forward and backward up to the gradients' reduction. Within these, ranks
with experts of each other's, and pipeline stages, wait for each other too: there a slow rank shows with those that
wait for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

FACTOR = 1.2  # of the median: above it a rank counts as slow
INTERVALS = 3  # one after the other that a rank has to be slow in; the first one of a run has the compilation


class Pace:
    """This rank's own seconds since they were gathered last, of the ``steps`` that were read since."""

    def __init__(self) -> None:
        self._seconds, self.steps = 0.0, 0

    def add(self, data: float, passed: float) -> None:
        """A step's seconds: for the data, and for forward and backward up to the reduction."""
        self._seconds += data + passed
        self.steps += 1

    def gathered(self) -> Tensor:
        """[ranks] fp32, on the device: each rank's mean seconds a step since the last call, 0 without a step."""
        mean = self._seconds / max(self.steps, 1)
        own = torch.full((1,), mean, device=torch.cuda.current_device())  # filled there: nothing is copied
        self._seconds, self.steps = 0.0, 0
        every = own.new_empty(dist.get_world_size())
        dist.all_gather_into_tensor(every, own)
        return every


class Slow:
    """Counts for how many intervals each rank has been slow."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def after(self, seconds: Sequence[float]) -> list[int]:
        """The ranks that an interval of ``seconds`` by rank makes slow for ``INTERVALS``, or a multiple of it."""
        if not seconds:
            return []
        limit = FACTOR * statistics.median_low(seconds)  # of two ranks the quicker one
        slow = [rank for rank, own in enumerate(seconds) if own > limit]
        self._counts = {rank: self._counts.get(rank, 0) + 1 for rank in slow}
        return [rank for rank, count in self._counts.items() if count % INTERVALS == 0]
