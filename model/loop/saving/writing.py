"""Megatron's checkpoint writer beside the steps: tensors are copied to host memory, then a thread writes the files.

Megatron has two callers for what ``dist_checkpointing.save`` leaves to be done (strategies/async_utils.py @
core_v0.19.0): one forks a process that holds the GPU and NCCL's threads, the other hands GPU memory to a process of its
own. Writing and digests leave Python's lock, so a thread is enough, and it ends with its rank.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest

from reproducers.base.files import file_sha256

THREADS = 4  # files of a rank, each with a thread that writes it; processors are the steps' too


class Writing:
    """What this rank writes of one checkpoint, from the moment on that it is made."""

    def __init__(self, request: AsyncRequest, copies: bool) -> None:
        """``copies``: the tensors are in host memory as they are, and have to be copied before a step changes them."""
        self._request, self._began = request, time.perf_counter()
        self._digests: dict[str, str] = {}
        self._failure: Exception | None = None
        self.seconds = 0.0
        staged = request.preload_fn() if request.preload_fn else []  # None where this rank has nothing to write
        staged = _copied(staged) if copies else staged
        self._thread = threading.Thread(target=self._write, args=(staged,), name="checkpoint", daemon=True)
        self._thread.start()

    def _write(self, staged: list[Any]) -> None:
        try:
            if staged:
                rank, _, results = self._request.async_fn_args
                self._request.async_fn(rank, staged, results)
            paths = [Path(path) for path, *_ in staged]
            with ThreadPoolExecutor(THREADS) as pool:
                self._digests = dict(zip((path.name for path in paths), pool.map(file_sha256, paths), strict=True))
        except Exception as error:  # raised where all ranks hear of it
            self._failure = error
        self.seconds = time.perf_counter() - self._began

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def finish(self) -> dict[str, str]:
        """Wait for the files, and write the indices over all ranks; {file of this rank: its SHA-256}.

        All ranks call it. Raises CheckpointException on all where one failed.
        """
        self._thread.join()
        if self._failure is not None:
            *_, results = self._request.async_fn_args
            while not results.empty():
                results.get_nowait()
            results.put(self._failure)  # Megatron takes it from there to rank 0
        for finalize in self._request.finalize_fns:
            finalize()
        return self._digests


def _copied(buckets: list[Any]) -> list[Any]:
    """Megatron's lists of what goes into each file, with copies of the tensors."""
    return [
        (path, key, (plain, [(item, tensor.clone()) for item, tensor in tensors]))
        for path, key, (plain, tensors) in buckets
    ]
