"""Processor time of child processes: wall time would measure the neighbours as well."""

import resource
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def seconds_of(work: Callable[[], T]) -> tuple[float, T]:
    """Processor seconds of the children that ``work`` starts and waits for, and what it returns."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result
