"""Refusals that all ranks share: what one rank cannot do ends the run on each, and none waits for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from reproducers.base.errors import PatchlaneError

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
    refused = next((error for error in of_all if error is not None), None)
    if refused is not None:
        raise refused from met
    return done[0]


def first(work: Callable[[], T]) -> T | None:
    """``work()`` on rank 0, None elsewhere; all ranks call it. Its PatchlaneError is raised on all."""
    return every(work if dist.get_rank() == 0 else lambda: None)
