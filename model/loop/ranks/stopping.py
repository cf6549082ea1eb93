"""A stop that somebody asks for, by a signal to any rank or by a file in the run's folder."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType

from model.loop.ranks import apart
from patchlane.base.files import write_atomic

FILE = "stop"  # in the run's folder; rank 0 looks for it after each step and between micro-batches of an evaluation
LEFT = "stopped.json"  # there where a run was stopped, saved and has steps left; a start removes it
# SIGUSR1 is what schedulers send ahead of their time limit
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


def cost(last: tuple[float, float] | None, gib: float) -> str:
    """What a run says at its begin of a stop. ``last``: seconds and GiB of its last checkpoint; ``gib``: of the next,
    by count."""
    if last is None:
        known = f"a checkpoint takes some {gib:.3g} GiB; how long, the first one tells"
    else:
        known = f"the last checkpoint, {last[1]:.3g} GiB, took {last[0]:.3g} s"
    advice = "kill -TERM, kill -USR1 or touch stop in the run's folder ends the run with one"
    if apart.under_torchrun():
        advice += (
            "; the ranks end theirs after torchrun has ended, which is 30 s after a SIGTERM: what ends the job then, a "
            "container's or a scheduler's grace, has to be longer"
        )
    return f"{known}; {advice}"


class Stop:
    """What was asked of this rank. Make it before the first step, on the main thread; ``first``: this is rank 0."""

    def __init__(self, folder: Path, first: bool) -> None:
        self.file = folder / FILE if first else None
        self.heard = False
        for number in SIGNALS:
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.heard = True

    def forget(self) -> None:
        """Remove the files of a stop that an earlier run was asked for. Call it with the folder's lock held."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
            self.file.with_name(LEFT).unlink(missing_ok=True)

    def leave(self, step: int, steps: int, checkpoint: str) -> None:
        """Say for scripts, on rank 0, that steps are left and which checkpoint the same command goes on from."""
        if self.file is not None:
            said = {"step": step, "steps": steps, "checkpoint": checkpoint}
            write_atomic(self.file.with_name(LEFT), json.dumps(said).encode() + b"\n")

    def asked(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.heard or (self.file is not None and self.file.exists())
