"""A window of steps under torch.profiler: a Chrome trace and a ranked report, in the run's directory.

``trace.json.gz`` opens at https://ui.perfetto.dev; ``profile.md`` and ``profile.json`` say where the time of a step
goes: on CUDA by the kinds of its kernels, on a CPU by operator. A step outside the window costs one clock reading; the
report compares a step inside with the steps before. Keep the window to a few steps: a trace grows by some 100,000
events a step at full size.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from model.profile import kernel_kinds
from model.profile.bottlenecks import Profile, RankTime, Span, analyse, markdown
from reproducers.base.files import replacing, write_atomic

BETWEEN = "Python and all that is no operator"
logger = logging.getLogger("model.profile.profiling")


class Window:
    """Steps ``first`` to ``last``, both included; wrap every step of the run in ``with window.step(number):``.

    ``result`` is the Profile once the window is over. Every rank has a window; ``gather`` gives it all ranks' times and
    only the first rank ``writes``. Raises ValueError for an empty window.
    """

    def __init__(
        self, first: int, last: int, run_dir: Path, cuda: bool | None = None,
        gather: Callable[[RankTime], list[RankTime]] | None = None, writes: bool = True,
    ) -> None:  # fmt: skip
        if not 1 <= first <= last:
            raise ValueError(f"a window from step {first} to {last} holds no step")
        self.first, self.last, self.run_dir, self._cuda = first, last, run_dir, cuda
        self._gather, self._writes = gather, writes
        self.result: Profile | None = None
        self._before: collections.deque[float] = collections.deque(maxlen=10)
        self._ended: float | None = None
        self._profiler: Any = None
        self._entered = 0
        self._began = 0.0

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step of training. A step that raises ends the window without a report."""
        if self._profiler is None and self.result is None and self.first <= number <= self.last:
            self._start(number)
        try:
            with self._named(number):
                yield
        except BaseException:
            self._abandon()
            raise
        now = time.perf_counter()
        if self._profiler is None and self._ended is not None:
            self._before.append(now - self._ended)
        self._ended = now
        if self._profiler is not None and number >= self.last:
            self._finish(number)
            gc.collect()  # events hold each other: later, each rank would drop them at its own step and all would wait

    def _named(self, number: int) -> contextlib.AbstractContextManager[Any]:
        if self._profiler is None:
            return contextlib.nullcontext()
        import torch

        named: contextlib.AbstractContextManager[Any] = torch.profiler.record_function(f"step {number}")
        return named

    def _start(self, number: int) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        if self._cuda is None:
            self._cuda = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._profiler, self._entered = profile(activities=activities), number
        self._synchronize()
        self._profiler.start()
        self._began = time.perf_counter()

    def _finish(self, number: int) -> None:
        self._synchronize()
        seconds = time.perf_counter() - self._began
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        spans = gpu_spans(profiler.events()) if self._cuda else operator_spans(profiler.events())
        self.result = analyse(
            spans, kernel_kinds.kind if self._cuda else str, device=self._device(), first_step=self._entered,
            steps=number - self._entered + 1, seconds=seconds, before=list(self._before), timeline=bool(self._cuda),
        )  # fmt: skip
        if self._gather is not None and self.result.own is not None:
            self.result = self.result.model_copy(update={"ranks": self._gather(self.result.own)})
        if not self._writes:
            return
        try:
            self._write(profiler, self.result)
        except OSError as error:  # a full disk must not end the run for a by-product
            logger.warning("the profile could not be written to %s: %s", self.run_dir, error)

    def _write(self, profiler: Any, result: Profile) -> None:
        with replacing(self.run_dir / "trace.json.gz") as scratch:
            profiler.export_chrome_trace(str(scratch))
        write_atomic(self.run_dir / "profile.json", result.model_dump_json(indent=2).encode() + b"\n")
        write_atomic(self.run_dir / "profile.md", markdown(result).encode())
        logger.info("profile of %d steps from %d on: %s", result.steps, result.first_step, self.run_dir / "profile.md")

    def _abandon(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with contextlib.suppress(Exception):  # the step's own error must stay visible
                profiler.stop()

    def _synchronize(self) -> None:
        import torch

        if self._cuda:
            torch.cuda.synchronize()

    def _device(self) -> str:
        import torch

        return str(torch.cuda.get_device_name()) if self._cuda else "CPU"


def gpu_spans(events: Iterable[Any]) -> list[Span]:
    """Kernels, copies and fills of ``torch.profiler``'s events, without ranges that only annotate the GPU."""
    return [
        Span(e.name, e.time_range.start, e.time_range.end)
        for e in events
        if e.device_type.name == "CUDA" and not e.is_user_annotation
    ]


def operator_spans(events: Iterable[Any]) -> list[Span]:
    """Each operator's own time, without the operators it calls, as a span from 0."""
    spans = []
    for e in events:
        if e.device_type.name == "CPU" and not e.is_async:
            spans.append(Span(BETWEEN if e.is_user_annotation else e.name, 0.0, e.self_cpu_time_total))
    return spans
