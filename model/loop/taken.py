"""A step as the loop remembers it until its record is made, which may be when the next one is under way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.records.records import Phases

if TYPE_CHECKING:  # it imports Megatron
    from model.step.measured.launched import Launched, Outcome

SOON = 10.0  # seconds that a run which fails waits for the GPU to end a step that nobody has read


@dataclass(frozen=True)
class Taken:
    """``before``: the step before, where it was unread too when this one was launched; ``later``: this one is read when
    the next one is launched. With either the host is not in step with the GPU, whose own clock tells the time."""

    step: int
    tokens: int  # seen by then, by all ranks
    reserved: int | None  # bytes of rank 0's GPU by then; None on a CPU
    began: float
    loaded: float  # seconds for its data
    launched: Launched
    before: Launched | None
    later: bool

    def seconds(self) -> float:
        """Of the whole step, once it is read: those of successive steps add up to the time that they took together."""
        clock = self.launched.clock
        if self.before is not None:
            return clock.since(self.before.clock)
        return clock.since_time(self.began) if self.later else time.perf_counter() - self.began

    def phases(self, outcome: Outcome, total: float) -> Phases:
        """Of ``total`` seconds. Data that were read while the GPU was at the step before took no time of this one."""
        data = min(self.loaded, max(0.0, total - sum(outcome.seconds)))
        other = max(0.0, total - data - sum(outcome.seconds))
        return Phases(data=data, forward_backward=outcome.seconds[0], optimizer=outcome.seconds[1], other=other)

    def ends_soon(self) -> bool:
        """Whether it can be read; waits ``SOON`` at most, as the GPU may be at it for ever where a rank is lost."""
        ends = time.monotonic() + SOON
        while not self.launched.clock.passed() and time.monotonic() < ends:
            time.sleep(0.01)
        return self.launched.clock.passed()
