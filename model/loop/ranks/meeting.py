"""How the ranks of a start meet, and which of them is named when the others wait for it too long."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from reproducers.base.errors import PatchlaneError

if TYPE_CHECKING:
    import torch.distributed as dist

RESUME = "the same command resumes from the last checkpoint"
GRACE = 0.25  # of the limit: how much later than the first of them another waiting rank may find that it waits
TIMED_OUT = re.compile(r"timed out|timeout", re.I)
_store: dist.Store | None = None  # of this process, as torch keeps one default group


def store(rank: int, size: int, limit_s: float) -> dist.Store:
    """The keys through which the ranks of this start meet; torchrun's rendezvous where there are several.

    torchrun --max-restarts keeps one set of keys for all its attempts (torch 2.13): under a prefix of the attempt no
    rank reads the address of one that has ended.
    """
    import torch.distributed as dist

    global _store
    _store = dist.HashStore()
    if size > 1:
        shared, *_ = next(dist.rendezvous("env://", rank, size, timeout=timedelta(seconds=limit_s)))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        _store = dist.PrefixStore(f"attempt{attempt}", shared)
    return _store


@contextlib.contextmanager
def kept(limit_s: float, step: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn what a rank meets when another is not there into PatchlaneErrors.

    A collective that waited for ``limit_s`` seconds names the ranks that did not arrive in it, and the ``step``. Under
    NCCL torch's own watchdog ends the process instead, and its flight recorder has the ranks.
    """
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        at = f"step {step()}"
        missing = absent(limit_s) if TIMED_OUT.search(str(error)) else []
        if not missing:
            raise PatchlaneError(f"{at}: another rank ended", f"read its output; {RESUME}") from error
        named = ", ".join(map(str, missing))
        raise PatchlaneError(
            f"{at}: rank {named} did not arrive within {limit_s:g} s",
            f"see where that rank is, with py-spy for instance; {RESUME}, a higher --wait-limit waits longer",
        ) from error


def absent(limit_s: float) -> list[int]:
    """The ranks that do not find as well, within a part of the limit, that they waited too long."""
    import torch.distributed as dist

    if _store is None or not dist.is_initialized():
        return []
    own, missing = dist.get_rank(), set(range(dist.get_world_size()))
    with contextlib.suppress(dist.DistError):  # the process that holds the keys may have ended
        _store.set(f"waited/{own}", "")
        ends = time.monotonic() + GRACE * limit_s
        while missing and time.monotonic() < ends:
            missing -= {rank for rank in missing if _store.check([f"waited/{rank}"])}
            time.sleep(0.05)
    return sorted(missing)
