"""One line about the run: a live bar on a terminal, a plain line every N steps elsewhere."""

from __future__ import annotations

import collections
import math
import statistics
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from model.records.records import Train, Valid
from reproducers.base import cli

RECENT = 20  # steps whose median predicts the rest


def line(record: Train, total: int, left_s: float | None) -> str:
    """A step's line; ``left_s``: seconds to the end, None if unknown."""
    parts = [f"step {record.step:,}/{total:,}", f"loss {record.loss:.4f}", f"grad {record.grad_norm:.3g}"]
    parts.append(f"lr {record.learning_rate:.2e}")
    parts.append(f"{record.tokens_per_s_per_gpu:,.0f} tok/s/{'GPU' if record.gpu else 'CPU rank'}")
    parts.append(f"{record.tflops_megatron:.3g} TFLOP/s ({record.tflops_built:.3g} built)")
    if record.mfu is not None:
        parts.append(f"MFU {record.mfu:.1%}")
    if record.peak_gib is not None:
        parts.append(f"{record.peak_gib:.1f} GiB")
    parts.append(f"ETA {'–' if left_s is None else timedelta(seconds=round(left_s))}")
    if not record.finite:
        numbers = math.isfinite(record.loss) and math.isfinite(record.grad_norm)
        parts.append(("" if numbers else "NOT FINITE, ") + ("skipped" if record.skipped else "taken"))
    return "  ".join(parts)


class ProgressLine:
    """A context manager; ``update`` once a step. A step that is not finite is always printed."""

    def __init__(self, total: int, every: int = 10, console: Console | None = None) -> None:
        self.total, self.every = total, every
        self.console = console or cli.console(highlight=False)
        self._times: collections.deque[float] = collections.deque(maxlen=RECENT)
        columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task = self._bar.add_task("starting", total=total)

    def update(self, record: Train) -> None:
        if math.isfinite(record.seconds.total):
            self._times.append(record.seconds.total)
        text = line(record, self.total, self._left(record.step))
        self._bar.update(self._task, completed=record.step, description=text)
        due = not self.console.is_terminal and (record.step % self.every == 0 or record.step == self.total)
        if due or not record.finite:
            self._print(text)

    def valid(self, record: Valid) -> None:
        """Print the held-out loss on a line of its own."""
        mtp = "" if record.mtp_loss is None else f"  MTP {record.mtp_loss:.4f}"
        took = f"({record.tokens:,} tokens, {record.seconds:.1f} s)"
        of = "" if record.name is None else f" of {record.name}"
        self._print(f"step {record.step:,}/{self.total:,}  held-out loss{of} {record.loss:.4f}{mtp}  {took}")

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _left(self, step: int) -> float | None:
        """Median of the recent steps times the steps left; leaves out the first step, which compiles."""
        recent = list(self._times)[1 if len(self._times) < RECENT else 0 :]
        return statistics.median(recent) * (self.total - step) if recent else None

    def __enter__(self) -> ProgressLine:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
