"""Several ranks in one arm: forked children that measure on their own; their checks join the arm's record.

Standard library only. Fork, because a child then has the parent's probe, imports and stand-ins; so the parent must
not have touched a GPU nor started torch's thread pools before.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from reproducers.probe.checks import CannotTest, gpu_full


class Rank(NamedTuple):
    """This process among its arm's ranks; ``rendezvous`` is a file where torch.distributed lets them meet."""

    number: int = 0
    world: int = 1
    rendezvous: Path | None = None


def run_ranks(probe: Any, world: int, work: Callable[[int], Any]) -> list[Any]:
    """The values of ``work(rank)`` in ``world`` forked children; their checks join ``probe``'s.

    Raises CannotTest if a rank does, RuntimeError with the rank's own error if it fails otherwise, and kills the other
    ranks, which may be waiting for it.
    """
    context, ends, children = multiprocessing.get_context("fork"), dict[Any, int](), list[Any]()
    results: list[Any] = [None] * world
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="patchlane-", ignore_cleanup_errors=True) as folder:
        for number in range(world):
            here, there = context.Pipe(duplex=False)
            rank = Rank(number, world, Path(folder) / "rendezvous")
            children.append(context.Process(target=_rank, args=(probe, rank, work, there)))
            children[-1].start()
            there.close()
            ends[here] = number
        try:
            while ends:
                for end in wait(list(ends)):
                    number = ends.pop(end)
                    results[number] = _receive(end, number)
        finally:
            for child in children:
                child.kill()
                child.join()
    for checks, _ in results:
        for check in checks:
            probe._add(check)
    return [value for _, value in results]


def _receive(end: Any, number: int) -> Any:
    """A rank's (checks, value of its work); raises what it sent instead."""
    try:
        result = end.recv()
    except EOFError:
        raise RuntimeError(f"rank {number} died without a word") from None
    if isinstance(result, Exception):
        raise result
    return result


def _rank(probe: Any, rank: Rank, work: Callable[[int], Any], end: Any) -> None:
    """One rank: measure, send checks and value, and exit without running the parent's exit handlers."""
    probe.rank, probe.checks = rank, []
    probe._add = probe.checks.append  # printed when they join the arm's
    try:
        value = work(rank.number)
        probe.check_origin()
        end.send((probe.checks, value))
    except CannotTest as error:
        end.send(error)
    except Exception as error:
        print(f"rank {rank.number}:", traceback.format_exc(), flush=True)
        told = f"rank {rank.number}: {type(error).__name__}: {error}".splitlines()[0]
        end.send(gpu_full(error) or RuntimeError(told))
    finally:
        sys.stdout.flush()
        end.close()
        os._exit(0)
