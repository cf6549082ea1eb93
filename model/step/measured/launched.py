"""A step that is launched: what it measures is on its way to the host, which reads it when it likes."""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.step import losses as parts
from model.step.clock import PHASES, Clock
from model.step.measured import balance
from model.step.measured.balance import Load
from model.step.measured.diagnosis import Diagnoses, Diagnosis


@dataclass(frozen=True)
class Outcome:
    """What a step measured, of all ranks but for ``phases``: losses in nats a token, gradient norm before clipping."""

    losses: dict[str, float]
    grad_norm: float
    learning_rate: float
    skipped: bool
    seconds: tuple[float, float]  # forward and backward with the gradients' reduction; optimizer
    load: Load
    peaks_gib: list[float]  # of each rank; empty without a GPU
    diagnosis: Diagnosis | None = None  # None in most steps
    waits: collections.Counter[str] | None = None  # of the host for the GPU, by place; None where not counted
    phases: dict[str, tuple[float, float | None]] = field(default_factory=dict)  # of this rank: host, and GPU if any


@dataclass
class Launched:
    """``read`` waits for this step alone, not for what is launched after it. Its clock's last mark is made after the
    copy to the host."""

    clock: Clock
    metrics: Tensor  # on the host, once the clock's last mark is passed
    diagnosed: int  # of the metrics, the last ones
    grad_norm: float | None  # None: it is the metrics' last one before these
    updated: bool
    learning_rate: float
    data_seconds: float  # of this rank's host
    diagnoses: Diagnoses
    waits: collections.Counter[str] | None
    _outcome: Outcome | None = None

    def read(self) -> Outcome:
        """What it measured; waits until the GPU has ended it. The steps of a run are read in order."""
        if self._outcome is None:
            self._outcome = self._read()
        return self._outcome

    def _read(self) -> Outcome:
        seconds = self.clock.seconds()  # waits
        read: list[float] = self.metrics.tolist()
        values = [read.pop() for _ in range(self.diagnosed)][::-1]
        norm = float(read.pop() if self.grad_norm is None else self.grad_norm)
        losses, load, gib = dict(zip(("loss", *parts.NAMES), read, strict=False)), balance.load(read[4:7]), read[7:]
        skipped = not self.updated or not math.isfinite(norm)
        began, alone, reduced, optimized, _ = seconds
        host, device = self.clock.host_seconds(), seconds if torch.cuda.is_available() else [None] * len(seconds)
        self.diagnoses.pace.add(self.data_seconds, alone)
        diagnosis = self.diagnoses.read(values, norm, self.updated) if values else None
        return Outcome(
            losses,
            norm,
            self.learning_rate,
            skipped,
            (began + alone + reduced, optimized),
            load,
            gib,
            diagnosis,
            self.waits,
            dict(zip(PHASES, zip(host, device, strict=True), strict=False)),
        )
