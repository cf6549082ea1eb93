"""A window of steps under torch.profiler: a Chrome trace and a ranked report, in the run's directory.

``trace.json.gz`` opens at https://ui.perfetto.dev; ``profile.md`` and ``profile.json`` say where the time of a step
goes: on CUDA by the kinds of its kernels, on a CPU by operator. A step outside the window costs one clock reading; the
report compares a step inside with the steps before. Of the last two of these, on CUDA, the kernels alone are traced:
the second tells how long the GPU idles where the host has no operators to record and is as far ahead as in any step.
Keep the window to a few steps: a trace grows by some 100,000 events a step at full size. After its last step each rank
measures its GPU's ceilings, all at one time.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.profile import ceilings, kernel_kinds, limits, work
from model.profile.bottlenecks import (
    KernelsAlone,
    PhaseTime,
    Profile,
    RankTime,
    Span,
    analyse,
    length,
    markdown,
    union,
)
from model.profile.ceilings import Ceilings
from model.profile.work import Documents, Share
from patchlane.base.files import replacing, write_atomic

DATA, REST = "data", "all else"  # phases beside the engine's
BETWEEN = "Python and all that is no operator"
logger = logging.getLogger("model.profile.profiling")


class Window:
    """Steps ``first`` to ``last``, both included; wrap every step of the run in ``with window.step(number):``.

    ``result`` is the Profile once the window is over. Every rank has a window; ``gather`` gives it all ranks' times and
    only the first rank ``writes``. ``share``: what the rank computes; None for a run in fp32, for which the ceilings
    are none. Raises ValueError for an empty window.
    """

    def __init__(
        self,
        first: int,
        last: int,
        run_dir: Path,
        cuda: bool | None = None,
        gather: Callable[[Any], list[Any]] | None = None,
        writes: bool = True,
        share: Share | None = None,
    ) -> None:
        if not 1 <= first <= last:
            raise ValueError(f"a window from step {first} to {last} holds no step")
        self.first, self.last, self.run_dir, self._cuda = first, last, run_dir, cuda
        self._gather, self._writes, self._share = gather, writes, share
        self._phases: dict[str, list[tuple[float, float | None]]] = {}  # of each step inside
        self._seen = Documents()
        self.result: Profile | None = None
        self._before: collections.deque[float] = collections.deque(maxlen=10)
        self._ended: float | None = None
        self._profiler: Any = None
        self._kernels_profiler: Any = None
        self._kernels_alone: KernelsAlone | None = None
        self._since: float | None = None  # seconds of a step after which the kernels' trace ends, by the GPU's clock
        self._entered = 0
        self._began = 0.0

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step of training. A step that raises ends the window without a report."""
        if self._profiler is None and self.result is None and self.first <= number <= self.last:
            self._start(number)
        try:
            with self._kernels(number), self._named(number):
                yield
        except BaseException:
            self._abandon()
            raise
        now = time.perf_counter()
        if self._profiler is None and self._ended is not None and not (self.opens(number) or self.traces(number)):
            self._before.append(now - self._ended)
        self._ended = now
        if self._profiler is not None and number >= self.last:
            self._finish(number)
            gc.collect()  # events hold each other: later, each rank would drop them at its own step and all would wait

    def took(
        self,
        data: float,
        phases: Mapping[str, tuple[float, float | None]],
        documents: Iterable[Sequence[int]],
        since: float | None = None,
    ) -> None:
        """Within a step, at its end: the host's seconds for its data, each phase's on the host and on the GPU, and the
        bounds of the documents in each micro-batch's stream. Nothing outside the window.

        ``since``: seconds from the end of the step before, where the host launched this one before it had ended.
        """
        self._since = since
        if self._profiler is None:
            return
        for name, seconds in {DATA: (data, None), **phases}.items():
            self._phases.setdefault(name, []).append(seconds)
        for bounds in documents:
            self._seen += work.between(bounds)

    def traces(self, number: int) -> bool:
        """Whether that step is traced: inside the window or, on CUDA, right before it."""
        return self.first - self._on_gpu() <= number <= self.last

    def opens(self, number: int) -> bool:
        """Whether the kernels' trace begins with that step. The next one may be launched before it has ended."""
        return self._on_gpu() and number == self.first - 2

    @contextlib.contextmanager
    def _kernels(self, number: int) -> Iterator[None]:
        """The two steps before the window with their kernels traced, and nothing else; of the second what idles."""
        if not (self.opens(number) or (self._on_gpu() and number == self.first - 1)):
            yield
            return
        if self._kernels_profiler is None:
            from torch.profiler import ProfilerActivity, profile

            self._kernels_profiler = profile(activities=[ProfilerActivity.CUDA])
            self._synchronize()
            self._kernels_profiler.start()
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            _stop(self._kernels_profiler)
            self._kernels_profiler = None
            raise
        if self.opens(number):
            return
        self._synchronize()
        seconds = time.perf_counter() - began if self._since is None else self._since
        profiler, self._kernels_profiler = self._kernels_profiler, None
        profiler.stop()
        if spans := gpu_spans(profiler.events()):  # without one nothing was traced, and no idleness measured
            start = max(span.end for span in spans) - seconds * 1e6
            busy = length(union(replace(span, start=max(span.start, start)) for span in spans if span.end > start))
            self._kernels_alone = KernelsAlone(step=number, seconds=seconds, idle=max(seconds - busy / 1e6, 0.0))
        del profiler, spans
        gc.collect()

    def _on_gpu(self) -> bool:
        import torch

        if self._cuda is None:
            self._cuda = torch.cuda.is_available()
        return self._cuda

    def _named(self, number: int) -> contextlib.AbstractContextManager[Any]:
        if self._profiler is None:
            return contextlib.nullcontext()
        import torch

        named: contextlib.AbstractContextManager[Any] = torch.profiler.record_function(f"step {number}")
        return named

    def _start(self, number: int) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu() else [])]
        self._profiler, self._entered = profile(activities=activities), number
        self._synchronize()
        self._profiler.start()
        self._began = time.perf_counter()

    def _finish(self, number: int) -> None:
        self._synchronize()
        seconds = time.perf_counter() - self._began
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        reached = self._ceilings()  # at once, as warm as the steps left the GPU
        spans = gpu_spans(profiler.events()) if self._cuda else operator_spans(profiler.events())
        self.result = analyse(
            spans,
            kernel_kinds.kind if self._cuda else str,
            device=self._device(),
            first_step=self._entered,
            steps=number - self._entered + 1,
            seconds=seconds,
            before=list(self._before),
            timeline=bool(self._cuda),
        )
        own = self._own(self.result, reached)
        self.result = self.result.model_copy(update={"ranks": self._gather(own) if self._gather is not None else [own]})
        if not self._writes:
            return
        try:
            self._write(profiler, self.result)
        except OSError as error:  # a full disk must not end the run for a by-product
            logger.warning("the profile could not be written to %s: %s", self.run_dir, error)

    def _ceilings(self) -> Ceilings:
        """This GPU's, measured while all ranks measure theirs."""
        if not self._cuda:
            return Ceilings(skipped=ceilings.NO_GPU)
        if self._share is None:
            return Ceilings(skipped="the run is not of bf16")
        if self._gather is not None:
            self._gather(None)  # all meet
        return ceilings.measure()

    def _own(self, result: Profile, reached: Ceilings) -> RankTime:
        """This rank's times, and what it did against its GPU's ceilings."""
        own = (result.own or RankTime()).model_copy(
            update={
                "phases": self._mean_phases(result.step_seconds, result.steps),
                "ceilings": reached,
                "kernels_alone": self._kernels_alone,
            }
        )
        if self._share is None or (reached.flops_per_second is None and reached.bytes_per_second is None):
            return own
        works = work.of(self._share, self._seen.over(result.steps))
        took = {cost.name: cost.seconds for cost in result.kinds}
        return own.model_copy(update={"limits": limits.limits(took, works, reached)})

    def _mean_phases(self, step_seconds: float, steps: int) -> list[PhaseTime]:
        """Means a step; all else is what the window took beyond them, without the first step's data, read before it."""
        if not self._phases:
            return []
        means, host = [], 0.0
        for name, seconds in self._phases.items():
            on_device = [device for _, device in seconds if device is not None]
            device = sum(on_device) / steps if on_device else None
            means.append(PhaseTime(name=name, host=sum(took for took, _ in seconds) / steps, device=device))
            host += sum(took for took, _ in (seconds[1:] if name == DATA else seconds)) / steps
        devices = [phase.device for phase in means if phase.device is not None]
        rest = max(0.0, step_seconds - sum(devices)) if devices else None
        return [*means, PhaseTime(name=REST, host=max(0.0, step_seconds - host), device=rest)]

    def _write(self, profiler: Any, result: Profile) -> None:
        with replacing(self.run_dir / "trace.json.gz") as scratch:
            profiler.export_chrome_trace(str(scratch))
        write_atomic(self.run_dir / "profile.json", result.model_dump_json(indent=2).encode() + b"\n")
        write_atomic(self.run_dir / "profile.md", markdown(result).encode())
        logger.info("profile of %d steps from %d on: %s", result.steps, result.first_step, self.run_dir / "profile.md")

    def _abandon(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            _stop(profiler)

    def _synchronize(self) -> None:
        import torch

        if self._cuda:
            torch.cuda.synchronize()

    def _device(self) -> str:
        import torch

        return str(torch.cuda.get_device_name()) if self._cuda else "CPU"


def _stop(profiler: Any) -> None:
    """Of a step that failed, whose own error must stay visible."""
    with contextlib.suppress(Exception):
        profiler.stop()


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
