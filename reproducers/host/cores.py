"""How many cores this process may use, and how many threads each of several arms."""

import os


def usable() -> int:
    """Cores that this process may run on, at least one; where the system does not say, those that it has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(workers: int) -> int:
    """Threads for each of ``workers`` arms at a time: a share of the cores, and no more than OMP_NUM_THREADS says.

    That an arm never has more than its share is what its processor time depends on: threads that wait for a core spin.
    """
    share = max(1, usable() // workers)
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for nested regions
    return min(share, int(asked)) if asked.isdecimal() and int(asked) else share
