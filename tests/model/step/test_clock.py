"""Seconds between marks, on a CPU and on a GPU."""

import time

import pytest
import torch

from model.step.clock import Clock


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: its clock is taken")
def test_seconds_lie_between_marks(monkeypatch):
    clock, times = Clock(), iter([10.0, 10.5, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    for _ in range(3):
        clock.mark()
    assert clock.seconds() == clock.host_seconds() == [0.5, 2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpus_seconds_are_those_of_its_work():
    """A GPU that sleeps 10 ms, and a host that asks for no more than that."""
    clock = Clock()
    clock.mark()
    torch.cuda._sleep(20_000_000)  # cycles: 10 ms at 2 GHz
    began = time.perf_counter()
    clock.mark()
    assert time.perf_counter() - began < 0.005
    assert 0.005 < clock.seconds()[0] < 0.1


def test_one_mark_is_no_span():
    clock = Clock()
    clock.mark()
    assert clock.seconds() == clock.host_seconds() == []


def test_the_hosts_seconds_are_its_own(monkeypatch):
    times = iter([1.0, 1.5, 3.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    for _ in range(3):
        clock.mark()
    assert clock.host_seconds() == [0.5, 2.0]


def timed(monkeypatch, *times):
    """A clock with marks at these times."""
    left = iter(times)
    monkeypatch.setattr(time, "perf_counter", lambda: next(left))
    clock = Clock()
    for _ in times:
        clock.mark()
    return clock


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: its clock is taken")
def test_seconds_between_two_clocks_and_since_a_time(monkeypatch):
    first, second = timed(monkeypatch, 1.0, 1.5, 3.5), timed(monkeypatch, 3.75, 6.0)
    assert first.passed() and second.since(first) == 2.5
    assert first.since_time(0.25) == 3.25


def test_a_gpu_is_waited_for_at_the_last_mark_alone(monkeypatch):
    """Work that is launched after it goes on; the seconds are the GPU's, and before the first mark the host's."""
    waited, events = [], iter((10_000.0, 10_500.0, 12_500.0))  # ms

    class Event:
        def __init__(self, enable_timing):
            self.at = next(events)

        def record(self):
            pass

        def query(self):
            return self.at in waited

        def synchronize(self):
            waited.append(self.at)

        def elapsed_time(self, after):
            return after.at - self.at

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("all"))
    clock = timed(monkeypatch, 1.0, 1.25, 1.5)
    assert not clock.passed()
    assert clock.seconds() == [0.5, 2.0]
    assert waited == [12_500.0] and clock.passed()
    assert clock.host_seconds() == [0.25, 0.25]
    assert clock.since_time(0.75) == 0.25 + 2.5
