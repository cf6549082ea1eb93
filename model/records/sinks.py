"""Further places for records: TensorBoard and Weights & Biases. A failure of theirs never stops training."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from model.records.records import Event, Record, Valid
from patchlane.base.errors import CannotTestHere
from patchlane.base.optional import load

logger = logging.getLogger("model.records.sinks")
T = TypeVar("T")
IGNORED = {"schema_version", "time", "step", "name"}


class Sink(Protocol):
    """Takes records as they are written."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


def numbers(record: Record) -> dict[str, float]:
    """{"train/loss": 3.2, "train/seconds/data": 0.01, …} of a record; an event's numbers are named by the event, those
    of a held-out set by its name."""
    prefix = f"event/{record.name}" if isinstance(record, Event) else record.kind
    if isinstance(record, Valid) and record.name is not None:
        prefix = f"valid/{record.name}"
    values = record.detail if isinstance(record, Event) else record.model_dump(exclude=IGNORED)
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}/{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
    return {f"{prefix}/{name}": float(v) for name, v in flat.items() if isinstance(v, int | float)}


class Shielded:
    """A sink that is logged and dropped at its first failure."""

    def __init__(self, name: str, opened: Callable[[], Sink]) -> None:
        self.name = name
        self._sink: Sink | None = self._try(opened)

    def write(self, record: Record) -> None:
        if self._sink is not None:
            self._try(self._sink.write, record)

    def close(self) -> None:
        if self._sink is not None:
            self._try(self._sink.close)
        self._sink = None

    def _try(self, action: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return action(*arguments)
        except Exception as error:
            self._sink = None
            logger.warning(
                "%s failed and gets no more records; metrics.jsonl goes on: %s: %s",
                self.name,
                type(error).__name__,
                error,
            )
            return None


class TensorBoard:
    """Event files under ``run_dir/tensorboard``; an earlier start's points after ``resume_step``, of a run that starts
    at step 0 all, are purged."""

    def __init__(self, run_dir: Path, resume_step: int) -> None:
        writer = load("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(run_dir / "tensorboard"), purge_step=resume_step + 1 if resume_step else 0)

    def write(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.step, walltime=record.time)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A W&B run a start, grouped by the run directory's name: W&B cannot take back steps that were superseded."""

    def __init__(self, run_dir: Path, resume_step: int, project: str, mode: str) -> None:
        self._run = load("wandb", "wandb").init(
            project=project, group=run_dir.name, name=f"{run_dir.name}@{resume_step}", dir=str(run_dir), mode=mode
        )

    def write(self, record: Record) -> None:
        self._run.log({**numbers(record), "step": record.step})

    def close(self) -> None:
        self._run.finish()


def wants_wandb(wandb: bool | None) -> bool:
    """Whether W&B gets records: if ``wandb`` is True, or None with WANDB_PROJECT set. Raises CannotTestHere where it
    is wanted and not installed."""
    wanted = bool(wandb or (wandb is None and os.environ.get("WANDB_PROJECT")))
    if wanted and importlib.util.find_spec("wandb") is None:
        raise CannotTestHere("W&B is not installed", "pip install wandb, or --no-wandb")
    return wanted


def open_sinks(run_dir: Path, resume_step: int = 0, wandb: bool | None = None) -> list[Sink]:
    """TensorBoard where it is installed; W&B where ``wants_wandb`` says so.

    W&B keeps its files in ``run_dir`` unless WANDB_MODE says otherwise.
    """
    sinks: list[Sink] = []
    if importlib.util.find_spec("tensorboard") is not None:
        sinks.append(Shielded("TensorBoard", lambda: TensorBoard(run_dir, resume_step)))
    else:
        logger.info("no TensorBoard files: pip install tensorboard")
    if wants_wandb(wandb):
        project, mode = os.environ.get("WANDB_PROJECT") or "nam56r", os.environ.get("WANDB_MODE", "offline")
        sinks.append(Shielded("W&B", lambda: Wandb(run_dir, resume_step, project, mode)))
    return sinks
