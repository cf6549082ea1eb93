"""Whether the same steps of other runs agree with a base's, and at what speed, from the records alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.markup import escape

from model.records import history
from model.records.records import Record, Train
from reproducers.base.errors import PatchlaneError

DISAGREE = 1


class Comparison(BaseModel):
    """A run against its base, over the steps that both recorded. Differences are relative to the base's values.

    Speed and peak memory leave out the first ``warmup`` of these steps; None where nothing is left or a run has none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    run: str
    base: str
    first: int
    last: int
    steps: int
    tolerance: float
    worst_loss: float  # largest difference of a step's loss
    worst_step: int
    mean_loss: float  # mean of the differences with their signs: noise cancels in it, a wrong term does not
    worst_grad_norm: float
    agrees: bool
    speed: float | None  # tokens/s of all GPUs or ranks together, over the base's
    peak_gib: float | None  # of the fullest rank, beyond the base's


def _off(ours: float, theirs: float) -> float:
    """Relative to ``theirs``; infinite where one of them is no number."""
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return math.inf
    return ours - theirs if theirs == 0 else (ours - theirs) / abs(theirs)


def _same_data(base: Sequence[Record], other: Sequence[Record], name: str) -> None:
    digests = [{event.detail.get("digest") for event in history.events(one, "dataset")} for one in (base, other)]
    if digests[0] != digests[1]:
        raise PatchlaneError(f"{name} was trained on other data than the base", "--data with the base's dataset")


def _pairs(base: Path, other: Path, first: int) -> list[tuple[Train, Train]]:
    """(the run's, the base's) records of each step from ``first`` on that both have.

    PatchlaneError where there is none, or where a step ended after other tokens: the steps are not the same then.
    """
    theirs, ours = history.read(base), history.read(other)
    _same_data(theirs, ours, other.name)
    known = {record.step: record for record in history.train(theirs)}
    pairs = [(r, known[r.step]) for r in history.train(ours) if r.step in known and r.step >= first]
    if not pairs:
        raise PatchlaneError(f"{other} and {base} have no step from {first} on in common", "--first, or longer runs")
    apart = next((a.step for a, b in pairs if a.tokens != b.tokens), None)
    if apart is not None:
        remedy = "train both with the same --micro-batch times --accumulate times data-parallel ranks, and --sequence"
        raise PatchlaneError(f"{other}: step {apart} ended after other tokens than the base's", remedy)
    return pairs


def _seconds(records: Sequence[Train]) -> float | None:
    return statistics.median(r.seconds.total for r in records) if records else None


def _peak(records: Sequence[Train]) -> float | None:
    return max((r.peak_gib for r in records if r.peak_gib is not None), default=None)


def compare(base: Path, run: Path, tolerance: float, first: int = 1, warmup: int = 2) -> Comparison:
    """``run`` against ``base``: agreed when no common step's loss is off by more than ``tolerance``, relatively.

    PatchlaneError where they have no step in common, or were trained on other data or other numbers of tokens.
    """
    pairs = _pairs(base, run, first)
    losses = {ours.step: _off(ours.loss, theirs.loss) for ours, theirs in pairs}
    worst = max(losses, key=lambda step: abs(losses[step]))
    steady = [list(records) for records in zip(*pairs[warmup:], strict=True)] or [[], []]
    (mine, its), (peak, before) = map(_seconds, steady), map(_peak, steady)
    return Comparison(
        run=run.resolve().name,
        base=base.resolve().name,
        first=pairs[0][0].step,
        last=pairs[-1][0].step,
        steps=len(pairs),
        tolerance=tolerance,
        worst_loss=abs(losses[worst]),
        worst_step=worst,
        mean_loss=statistics.fmean(losses.values()) if math.isfinite(losses[worst]) else math.inf,
        worst_grad_norm=max(abs(_off(ours.grad_norm, theirs.grad_norm)) for ours, theirs in pairs),
        agrees=abs(losses[worst]) <= tolerance,
        speed=its / mine if mine and its else None,
        peak_gib=peak - before if peak is not None and before is not None else None,
    )


def row(found: Comparison) -> list[str]:
    """A comparison as cells of the table."""
    return [
        escape(found.run),
        f"{found.first} to {found.last}",
        f"{found.worst_loss:.1e} at step {found.worst_step}",
        f"{found.mean_loss:+.1e}",
        f"{found.worst_grad_norm:.1e}",
        "yes" if found.agrees else "NO",
        "–" if found.speed is None else f"{found.speed:.3f}",
        "–" if found.peak_gib is None else f"{found.peak_gib:+.2f}",
    ]
