"""The time of a step that is read when the next one is launched, and of those before and after it."""

import time
from types import SimpleNamespace

import pytest

from model.loop import taken
from model.loop.taken import Taken


class Clock:
    """With a last mark. ``ends``: what ``passed`` answers in turn."""

    def __init__(self, last, ends=()):
        self.last, self.ends = last, iter(ends)

    def since(self, before):
        return self.last - before.last

    def since_time(self, host):
        return self.last - host

    def passed(self):
        return next(self.ends)


def one(began, clock, before=None, later=True, loaded=0.5):
    step = SimpleNamespace(clock=clock)
    earlier = None if before is None else before.launched
    return Taken(1, 64, None, began, loaded, step, earlier, later)


def test_steps_that_follow_each_other_add_up(monkeypatch):
    """Two that are read late, one that is read before an evaluation, and one that is read late after that."""
    monkeypatch.setattr(time, "perf_counter", lambda: 1000.0)
    first = one(1.0, Clock(4.0))
    second = one(2.0, Clock(7.25), first)
    third = one(5.0, Clock(10.0), second, later=False)
    assert [step.seconds() for step in (first, second, third)] == [3.0, 3.25, 2.75]
    assert sum(step.seconds() for step in (first, second, third)) == 10.0 - 1.0
    alone = one(994.0, Clock(999.0), later=False)
    assert alone.seconds() == 6.0  # with all that the host took by now


@pytest.mark.parametrize(
    ("total", "data", "other"), [(4.0, 0.5, 0.5), (3.25, 0.25, 0.0), (3.0, 0.0, 0.0), (2.9, 0.0, 0.0)]
)
def test_data_that_were_read_beside_the_step_before_took_no_time(total, data, other):
    """Of what the host took, 0.5 s, counts what lies between the GPU's work, 3 s; nothing is below zero."""
    outcome = SimpleNamespace(seconds=(2.0, 1.0))
    phases = one(0.0, Clock(0.0)).phases(outcome, total)
    assert (phases.data, phases.forward_backward, phases.optimizer, phases.other) == (data, 2.0, 1.0, other)


def test_a_gpu_that_never_ends_is_not_waited_for(monkeypatch):
    times = iter((0.0, 1.0, 2.0, taken.SOON))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert not one(0.0, Clock(1.0, [False] * 4)).ends_soon()
    times = iter((0.0, 1.0, 2.0))
    assert one(0.0, Clock(1.0, [False, False, True, True])).ends_soon()
