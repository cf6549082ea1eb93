"""A stop that somebody asks for, by a signal to any rank or by a file in the run's folder."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

FILE = "stop"  # in the run's folder; rank 0 looks for it after each step
# SIGUSR1 is what schedulers send ahead of their time limit; torchrun kills its ranks 30 s after it hands on a SIGTERM,
# which is less than a checkpoint of a large model takes.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


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
        """Remove the file of a stop that an earlier run was asked for. Call it with the folder's lock held."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def asked(self) -> bool:
        """Whether this rank was asked to stop."""
        return self.heard or (self.file is not None and self.file.exists())
