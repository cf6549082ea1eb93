"""A process of its own for what needs Megatron-Core: the overlay is for good there, and its trackers global.

One process serves many calls, because importing torch and Megatron takes seconds: ``Worker.call(function, ...)`` runs a
module-level function of a test module in it and returns what that returns. Measure there, assert here.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import pytest

T = TypeVar("T")


def _own_tests(folder: Path) -> None:
    """``tests`` is this folder: it has no __init__.py, and a library's ``tests`` that has one would hide it."""
    package = ModuleType("tests")
    package.__path__ = [str(folder)]
    sys.modules["tests"] = package


def activate(device: str, stack: str = "released", packs: tuple[int, ...] = ()) -> str:
    """In the new process: the stack with every candidate patch, Megatron started. Returns what is missing, or "".

    ``packs``: those that it has whether they are validated or not.
    """
    if device == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before Megatron is imported, as model.loop.launch does
    import torch

    torch.set_num_threads(1)
    with torch.device("meta"):  # torch lists its factories when first used: before the stand-ins for CUDA wrap them
        torch.empty(0)
    from model.patched import overlay, stacks
    from patchlane.base.errors import CannotTestHere
    from reproducers.probe.checks import CannotTest
    from reproducers.probe.lanes import megatron
    from reproducers.probe.ranks import Rank
    from reproducers.record import schema
    from reproducers.upstream.store import Store

    try:
        of = stacks.named(stack)
        chosen = overlay.chosen("all", stack=of)
        chosen += [pack for pack in schema.load_packs() if pack.number in packs and pack not in chosen]
        overlay.activate(overlay.build(Store(), sorted(chosen, key=lambda pack: pack.number), device, of))
    except (CannotTestHere, CannotTest) as lacking:
        return str(lacking)
    megatron.start_megatron(importlib.import_module, 0, Rank(0, 1))
    return ""


class Worker:
    """A fresh process with the overlay active; ``missing`` says what it lacks, empty when nothing."""

    def __init__(self, device: str = "cpu", stack: str = "released") -> None:
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _own_tests, (Path(__file__).parent.parent,)
        )
        self.missing = self._pool.submit(activate, device, stack).result()

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """``function(*args, **kwargs)`` in the process, all picklable; an exception there is raised here as well."""
        return self._pool.submit(function, *args, **kwargs).result()

    def close(self) -> None:
        with contextlib.suppress(BrokenExecutor):  # at once: to take torch and Megatron apart takes seconds
            self._pool.submit(os._exit, 0).result()
        self._pool.shutdown()


class Process(Protocol):
    missing: str

    def close(self) -> None: ...


P = TypeVar("P", bound=Process)


@contextlib.contextmanager
def working(process: P) -> Iterator[P]:
    """The process until it is closed; the test is skipped where it lacks something."""
    try:
        if process.missing:
            pytest.skip(f"upstream artefacts cannot be had: {process.missing}")
        yield process
    finally:
        process.close()
