"""Compare runs by their records: step by step with a base, or a run's loss with the spread of other seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.markup import escape

from model.records import history
from model.records.records import Record, Train
from patchlane.base.errors import PatchlaneError

DISAGREE = 1


class Comparison(BaseModel):
    """A run against its base, over the steps that both recorded. Differences are relative to the base's values.

    Speed and peak memory leave out the first ``warmup`` of these steps; None if no step or no value is left.
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
    mean_loss: float  # mean of the signed differences: noise cancels, a wrong term does not
    worst_grad_norm: float
    agrees: bool
    speed: float | None  # tokens/s of all GPUs or ranks together, over the base's
    peak_gib: float | None  # of the fullest rank, minus the base's


class Among(BaseModel):
    """A loss of a run, and the least and greatest of the other seeds' at the same place."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    what: str
    value: float
    least: float
    greatest: float

    @property
    def within(self) -> bool:
        """No greater than every other seed's; a loss that is not finite never is."""
        return self.value <= self.greatest


def _off(value: float, base: float) -> float:
    """Difference relative to ``base``; infinite if either is not finite."""
    if not (math.isfinite(value) and math.isfinite(base)):
        return math.inf
    return value - base if base == 0 else (value - base) / abs(base)


def _same_data(base: Sequence[Record], other: Sequence[Record], name: str) -> None:
    digests = [{event.detail.get("digest") for event in history.events(run, "dataset")} for run in (base, other)]
    if digests[0] != digests[1]:
        raise PatchlaneError(f"{name} was trained on other data than the base", "--data with the base's dataset")


def _pairs(base: Path, other: Path, first: int) -> list[tuple[Train, Train]]:
    """(the run's, the base's) records of each step from ``first`` on that both have.

    Raises PatchlaneError if there is none, or if the runs had seen other numbers of tokens after a step.
    """
    base_records, records = history.read(base), history.read(other)
    _same_data(base_records, records, other.name)
    known = {record.step: record for record in history.train(base_records)}
    pairs = [(r, known[r.step]) for r in history.train(records) if r.step in known and r.step >= first]
    if not pairs:
        raise PatchlaneError(f"{other} and {base} have no step from {first} on in common", "--first, or longer runs")
    _same_tokens(pairs, other)
    return pairs


def _same_tokens(pairs: Sequence[tuple[Train, Train]], other: Path) -> None:
    apart = next((a.step for a, b in pairs if a.tokens != b.tokens), None)
    if apart is not None:
        remedy = "train both with the same micro_batch times accumulate times data-parallel ranks, and sequence"
        raise PatchlaneError(f"{other}: step {apart} ended after another number of tokens than the base's", remedy)


def _seconds(records: Sequence[Train]) -> float | None:
    return statistics.median(r.seconds.total for r in records) if records else None


def _peak(records: Sequence[Train]) -> float | None:
    return max((r.peak_gib for r in records if r.peak_gib is not None), default=None)


def compare(base: Path, run: Path, tolerance: float, first: int = 1, warmup: int = 2) -> Comparison:
    """``run`` against ``base``; they agree if no common step's loss differs by more than ``tolerance``, relatively.

    Raises PatchlaneError if they have no step in common or were trained on other data or numbers of tokens.
    """
    pairs = _pairs(base, run, first)
    losses = {own.step: _off(own.loss, other.loss) for own, other in pairs}
    worst = max(losses, key=lambda step: abs(losses[step]))
    steady = [list(records) for records in zip(*pairs[warmup:], strict=True)] or [[], []]
    (own_s, base_s), (own_peak, base_peak) = map(_seconds, steady), map(_peak, steady)
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
        worst_grad_norm=max(abs(_off(own.grad_norm, other.grad_norm)) for own, other in pairs),
        agrees=abs(losses[worst]) <= tolerance,
        speed=base_s / own_s if own_s and base_s else None,
        peak_gib=own_peak - base_peak if own_peak is not None and base_peak is not None else None,
    )


def spread(run: Path, seeds: Sequence[Path], last: int) -> list[Among]:
    """Held-out losses of ``run`` among those of ``seeds``, and its mean training loss of the ``last`` steps of all.

    A held-out step counts where each run was evaluated. Raises PatchlaneError with fewer than two seeds, a run that is
    named twice, without a step that all recorded, for a seed's loss that is not finite, or if runs were trained on
    other data or numbers of tokens.
    """
    if len(seeds) < 2:
        raise PatchlaneError("one seed has no spread", "name two runs of other seeds, better three")
    if len({folder.resolve() for folder in (run, *seeds)}) <= len(seeds):  # it would be within its own spread
        raise PatchlaneError("a run is named twice", "name the run, then runs of other seeds, each once")
    records, *others = (history.read(folder) for folder in (run, *seeds))
    for folder, other in zip(seeds, others, strict=True):
        _same_data(records, other, folder.name)
    trained = [{r.step: r for r in history.train(one)} for one in (records, *others)]
    common = sorted(set.intersection(*(set(one) for one in trained)))[-last:]
    if not common:
        raise PatchlaneError(f"{run} and the seeds have no step in common", "longer runs")
    for folder, other_steps in zip(seeds, trained[1:], strict=True):
        _same_tokens([(other_steps[step], trained[0][step]) for step in common], folder)
    held = [{r.step: r.loss for r in history.valid(one)} for one in (records, *others)]
    places = [
        (f"held out, step {step}", [one[step] for one in held]) for step in held[0] if all(step in h for h in held)
    ]
    means = [statistics.fmean(one[step].loss for step in common) for one in trained]
    places.append((f"training, mean of steps {common[0]} to {common[-1]}", means))
    for what, (_, *rest) in places:
        if not all(map(math.isfinite, rest)):
            raise PatchlaneError(f"{what}: a seed's loss is not finite", "name seeds that trained")
    return [Among(what=what, value=value, least=min(rest), greatest=max(rest)) for what, (value, *rest) in places]


def row(comparison: Comparison) -> list[str]:
    """A comparison as cells of the table."""
    return [
        escape(comparison.run),
        f"{comparison.first} to {comparison.last}",
        f"{comparison.worst_loss:.1e} at step {comparison.worst_step}",
        f"{comparison.mean_loss:+.1e}",
        f"{comparison.worst_grad_norm:.1e}",
        "yes" if comparison.agrees else "NO",
        "–" if comparison.speed is None else f"{comparison.speed:.3f}",
        "–" if comparison.peak_gib is None else f"{comparison.peak_gib:+.2f}",
    ]
