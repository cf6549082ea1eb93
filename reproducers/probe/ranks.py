"""Several ranks in one arm: forked children that measure on their own and whose findings join the arm's record.

Standard library only. Fork, because a child then has the parent's probe, imports and stand-ins; so the parent must
not have touched a GPU nor started torch's thread pools before.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from reproducers.probe.checks import CannotTest


@dataclass(frozen=True)
class Rank:
    """This process among its arm's ranks; ``rendezvous`` is a file where torch.distributed lets them meet."""

    number: int = 0
    world: int = 1
    rendezvous: Path | None = None


def run_ranks(probe: Any, world: int, work: Callable[[int], None]) -> None:
    """Fork ``world`` children that run ``work(rank)``; their checks and executed lines join ``probe``'s.

    Raises CannotTest when a rank does, RuntimeError with the rank's own words when it fails otherwise; the other
    ranks, which may be waiting for it, are killed.
    """
    context = multiprocessing.get_context("fork")
    folder = tempfile.mkdtemp(prefix="patchlane-")
    ends: dict[Any, int] = {}
    children: list[Any] = []
    sys.stdout.flush()
    for number in range(world):
        here, there = context.Pipe(duplex=False)
        rank = Rank(number, world, Path(folder) / "rendezvous")
        child = context.Process(target=_rank, args=(probe, rank, work, there))
        child.start()
        there.close()
        ends[here], children = number, [*children, child]
    try:
        said = _hear(ends)
    finally:
        for child in children:
            child.kill()
            child.join()
        shutil.rmtree(folder, ignore_errors=True)
    for _, checks, seen in sorted(said, key=lambda item: item[0]):
        probe.merge(checks, seen)


def _hear(ends: dict[Any, int]) -> list[tuple[int, list[Any], Any]]:
    """Each rank's (number, checks, what its watch saw); raises at the first that failed."""
    said: list[tuple[int, list[Any], Any]] = []
    while ends:
        for ready in wait(list(ends)):
            number = ends.pop(ready)
            try:
                message: Any = ready.recv()  # type: ignore[union-attr,call-arg]
            except EOFError:
                raise RuntimeError(f"rank {number} died without a word") from None
            kind, *body = message
            if kind == "cannot_test":
                raise CannotTest(*body)
            if kind == "failed":
                raise RuntimeError(f"rank {number}: {body[0]}")
            said.append((number, body[0], body[1]))
    return said


def _rank(probe: Any, rank: Rank, work: Callable[[int], None], end: Any) -> None:
    """One rank: measure quietly, send what was seen, and leave without running the parent's exit handlers."""
    probe._rank, probe.checks, probe.quiet = rank, [], True
    try:
        work(rank.number)
        probe.check_origin()
        end.send(("done", probe.checks, probe.seen()))
    except CannotTest as error:
        end.send(("cannot_test", error.reason, error.remedy))
    except Exception as error:
        print(f"rank {rank.number}:", traceback.format_exc(), flush=True)
        end.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    finally:
        sys.stdout.flush()
        end.close()
        os._exit(0)
