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
