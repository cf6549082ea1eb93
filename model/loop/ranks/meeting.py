"""Rendezvous of the ranks, and timeouts that name the missing one."""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from patchlane.base.errors import PatchlaneError

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
        limit = timedelta(seconds=limit_s)
        shared, *_ = next(dist.rendezvous("env://", rank, size, timeout=limit))
        _store = dist.PrefixStore(attempt(shared, rank, size, limit_s), shared)
        _store.set_timeout(limit)
    return _store


def attempt(shared: dist.Store, rank: int, size: int, limit_s: float) -> str:
    """A name for this attempt, the same on all its ranks and on no other attempt's.

    TORCHELASTIC_RESTART_COUNT is none: an agent counts only what failed on its own host, so that after a restart the
    hosts' numbers differ (``SimpleElasticAgent._invoke_run`` @ torch 2.13: changes of membership do not count). Each
    rank leaves a word of its own; rank 0 writes down the words that it finds, under its own as a name, until every
    rank has found its word there. Raises PatchlaneError after ``limit_s`` seconds, with the ranks that did not come.
    """
    own, ends = uuid.uuid4().hex, time.monotonic() + limit_s
    shared.set(f"word/{rank}", own)
    others = range(1, size)
    while time.monotonic() < ends:
        if rank == 0:
            words = {str(other): _word(shared, f"word/{other}") for other in others}
            shared.set("roster", json.dumps({"name": own, "words": words}))
            if all(shared.check([f"{own}/{other}/{word}"]) for other, word in words.items()):
                return own
        elif (text := _word(shared, "roster")) and (roster := json.loads(text))["words"].get(str(rank)) == own:
            shared.set(f"{roster['name']}/{rank}/{own}", "")
            return str(roster["name"])
        time.sleep(0.02)
    late = [other for other in others if not shared.check([f"word/{other}"])] if rank == 0 else [0]
    named = f"rank {', '.join(map(str, late))}" if late else "a rank"
    raise PatchlaneError(
        f"start: {named} did not arrive within {limit_s:g} s",
        "its output; a higher --set wait_limit=SECONDS",
    )


def _word(shared: dist.Store, key: str) -> str:
    return str(shared.get(key).decode()) if shared.check([key]) else ""


def tell(key: str, value: bytes) -> None:
    """Leave ``value`` for another rank. Raises PatchlaneError if the process that holds the keys has ended."""
    import torch.distributed as dist

    assert _store is not None
    try:
        _store.set(key, value)
    except dist.DistError as error:
        raise PatchlaneError("another rank ended", f"read its output; {RESUME}") from error


def told(key: str, rank: int, limit_s: float) -> bytes:
    """What ``rank`` told under ``key``, once. Raises PatchlaneError where it has not within ``limit_s`` seconds."""
    import torch.distributed as dist

    assert _store is not None
    ends = time.monotonic() + limit_s
    try:
        while not _store.check([key]):
            if time.monotonic() > ends:
                raise PatchlaneError(f"rank {rank} told nothing within {limit_s:g} s", f"read its output; {RESUME}")
            time.sleep(0.05)
        value: bytes = _store.get(key)
        _store.delete_key(key)
    except dist.DistError as error:
        raise PatchlaneError("another rank ended", f"read its output; {RESUME}") from error
    return value


@contextlib.contextmanager
def kept(limit_s: float, step: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Turn what a rank meets when another is not there into PatchlaneErrors.

    A collective that waited for ``limit_s`` seconds names the ranks that did not arrive in it, and the ``step``. Under
    NCCL torch's own watchdog ends the process instead, and its flight recorder has the ranks; what else NCCL meets, a
    full GPU for instance, is told in its words.
    """
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        at = f"step {step()}"
        if "NCCL" in str(error):
            said = [line for line in str(error).splitlines() if line.strip()][-1].strip()
            raise PatchlaneError(
                f"{at}: NCCL: {said}",
                f"read all ranks' output; a GPU without memory wants other processes off it or "
                f"a smaller --set micro_batch=ROWS; {RESUME}",
            ) from error
        missing = absent(limit_s) if TIMED_OUT.search(str(error)) else []
        if not missing:
            raise PatchlaneError(f"{at}: another rank ended", f"read its output; {RESUME}") from error
        named = ", ".join(map(str, missing))
        raise PatchlaneError(
            f"{at}: rank {named} did not arrive within {limit_s:g} s",
            f"see where that rank is, with py-spy for instance; {RESUME}, a higher --set wait_limit=SECONDS",
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
