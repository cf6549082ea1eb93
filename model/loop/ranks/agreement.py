"""Refusals that all ranks share: what one rank cannot do ends the run on each, and none waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from patchlane.base.errors import PatchlaneError

T = TypeVar("T")


def every(work: Callable[[], T]) -> T:
    """``work()`` of this rank; all ranks call it. Raises the PatchlaneError of the first rank that met one, on each."""
    done: list[T] = []
    met: PatchlaneError | None = None
    try:
        done.append(work())
    except PatchlaneError as error:
        met = error
    of_all: list[PatchlaneError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, met)
    for refusal in of_all:
        if refusal is not None:
            raise refusal from met
    return done[0]


def first(work: Callable[[], T]) -> T | None:
    """``work()`` on rank 0, None elsewhere; all ranks call it. Its PatchlaneError is raised on all."""
    return every(work if dist.get_rank() == 0 else lambda: None)


def anywhere(*flags: bool) -> list[bool]:
    """Of each flag whether it is set on any rank. All ranks call it."""
    raised = torch.tensor(flags, dtype=torch.float32)  # on the host: no wait for the GPU
    dist.all_reduce(raised, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in raised.tolist()]
