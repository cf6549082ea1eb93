"""Arms share the cores that this process may use, and keep to OMP_NUM_THREADS."""

import os

import pytest

from reproducers.host import cores


@pytest.fixture
def sixteen(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return monkeypatch


@pytest.mark.parametrize("workers, each", [(1, 16), (3, 5), (16, 1), (40, 1)])
def test_arms_share_the_cores(sixteen, workers, each):
    assert cores.usable() == 16
    assert cores.threads(workers) == each


@pytest.mark.parametrize(
    "said, each", [("1", 1), ("4,2", 4), (" 2 ", 2), ("64", 8), ("0", 8), ("", 8), ("many", 8), ("-1", 8)]
)
def test_more_threads_than_asked_for_are_never_given(sixteen, said, each):
    sixteen.setenv("OMP_NUM_THREADS", said)
    assert cores.threads(2) == each


def test_a_system_that_does_not_say_gives_all_it_has(sixteen):
    sixteen.delattr(os, "sched_getaffinity")
    sixteen.setattr(os, "cpu_count", lambda: 6)
    assert cores.usable() == 6
    sixteen.setattr(os, "cpu_count", lambda: None)
    assert cores.usable() == 1
