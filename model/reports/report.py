"""A run's speed, losses, gradient norms and memory, from its metrics.jsonl alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from model.records import history
from model.records.records import Phases, Train
from patchlane.base.errors import PatchlaneError

LATER = (
    "valid_losses",
    "peaks_gib",
    "expert_load",
    "rank_load",
    "skipped_at",
    "went_back_to",
    "optimizer",
)  # fields that the oldest receipts do not have
NONE = "–"


class RunReport(BaseModel):
    """Medians are over the ``steady_steps`` after the first ``warmup`` recorded ones and without skipped ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    schema_version: int = 1
    run: str
    gpu: str | None
    steps: int
    tokens: int
    warmup: int
    steady_steps: int
    tokens_per_s_per_gpu: float | None
    tflops_megatron: float | None
    tflops_built: float | None
    mfu: float | None
    step_seconds: Phases | None
    first_loss: float
    last_loss: float
    min_loss: float
    valid_loss: float | None
    valid_step: int | None
    valid_losses: dict[str, float] | None = None  # the last of each held-out set that has a name; None without any
    unigram_entropy: float | None  # of the training text: the least loss of a model without context
    worst_grad_norm: float
    not_finite_steps: list[int]
    peak_gib: float | None
    peaks_gib: list[float] | None = None  # of each rank
    expert_load: float | None = None
    rank_load: float | None = None
    resumed_at: list[int]
    skipped_at: list[int] | None = None  # with on_spike skip; None for never
    went_back_to: list[int] | None = None  # with on_spike rewind
    optimizer: str | None = None  # of the matrices of hidden layers; None for AdamW


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _peaks(steps: Sequence[Train]) -> list[float] | None:
    """The peak of each rank; for a run resumed on another number of ranks, of the last layout."""
    every = [r.peaks_gib for r in steps if r.peaks_gib]
    if not every:
        return None
    return [max(of_rank) for of_rank in zip(*(peaks for peaks in every if len(peaks) == len(every[-1])), strict=True)]


def _seconds(steady: Sequence[Train]) -> Phases | None:
    if not steady:
        return None
    return Phases(**{name: statistics.median(getattr(r.seconds, name) for r in steady) for name in Phases.model_fields})


def summarise(run_dir: Path, warmup: int = 10) -> RunReport:
    """The report of a run. Raises PatchlaneError if it has no training step."""
    records = history.read(run_dir)
    steps, held = history.train(records), history.valid(records)
    if not steps:
        raise PatchlaneError(f"{run_dir / history.NAME} has no training step yet", "wait for the first step")
    steady = [r for r in steps[warmup:] if not r.skipped]
    losses = [r.loss for r in steps]
    return RunReport(
        run=run_dir.resolve().name,
        gpu=steps[-1].gpu,
        steps=steps[-1].step,
        tokens=steps[-1].tokens,
        warmup=warmup,
        steady_steps=len(steady),
        tokens_per_s_per_gpu=_median(r.tokens_per_s_per_gpu for r in steady),
        tflops_megatron=_median(r.tflops_megatron for r in steady),
        tflops_built=_median(r.tflops_built for r in steady),
        mfu=_median(r.mfu for r in steady),
        step_seconds=_seconds(steady),
        first_loss=losses[0],
        last_loss=losses[-1],
        min_loss=min((x for x in losses if math.isfinite(x)), default=math.nan),
        valid_loss=held[-1].loss if held else None,
        valid_step=held[-1].step if held else None,
        valid_losses={name: history.valid(records, name)[-1].loss for name in history.held_out_names(records)} or None,
        unigram_entropy=history.entropy(records),
        worst_grad_norm=max((r.grad_norm for r in steps), key=lambda x: math.inf if math.isnan(x) else x),
        not_finite_steps=[r.step for r in steps if not r.finite],
        peak_gib=max((r.peak_gib for r in steps if r.peak_gib is not None), default=None),
        peaks_gib=_peaks(steps),
        expert_load=_median(r.expert_load for r in steady),
        rank_load=_median(r.rank_load for r in steady),
        resumed_at=[e.step for e in history.events(records, "resumed")],
        skipped_at=[e.step for e in history.events(records, "skip")] or None,
        went_back_to=[e.step for e in history.events(records, "rewind")] or None,
        optimizer=next((str(e.detail["matrices"]) for e in history.events(records, "optimizer")), None),
    )


def number(value: float | None, form: str, unit: str = "") -> str:
    """``value`` in format ``form``, then ``unit``; ``NONE`` for None."""
    return NONE if value is None else f"{value:{form}}{unit}"


def _memory(report: RunReport) -> str:
    each = ", ".join(f"{peak:.1f}" for peak in report.peaks_gib or ())
    return f"{number(report.peak_gib, '.1f', ' GiB')}" + (f" (by rank {each})" if each else "")


def _load(report: RunReport) -> str:
    if report.expert_load is None or report.rank_load is None:
        return NONE
    return f"{report.expert_load:.2f}, {report.rank_load:.2f} of the mean"


def _spikes(report: RunReport) -> list[tuple[str, list[int]]]:
    return [("skipped at step", report.skipped_at or []), ("went back to step", report.went_back_to or [])]


def rows(report: RunReport) -> list[tuple[str, str]]:
    """(quantity, value) of each row of the table."""
    bad, seconds = report.not_finite_steps, report.step_seconds
    shown = ", ".join(map(str, bad[:10])) + (" …" if len(bad) > 10 else "")
    held = f"{number(report.valid_loss, '.4f')} at step {report.valid_step}" if report.valid_step is not None else NONE
    return [
        ("ran on", report.gpu or "CPU"),
        ("steps, tokens", f"{report.steps:,}, {report.tokens:,}"),
        *([("optimizer", f"{report.optimizer} and AdamW")] if report.optimizer else []),
        ("resumed at step", ", ".join(map(str, report.resumed_at)) or "never"),
        *[(f"spikes, {what}", ", ".join(map(str, steps))) for what, steps in _spikes(report) if steps],
        ("steady steps", f"{report.steady_steps:,} (after {report.warmup} of warm-up; medians are over these)"),
        ("tokens/s/" + ("GPU" if report.gpu else "CPU rank"), number(report.tokens_per_s_per_gpu, ",.0f")),
        ("TFLOP/s, Megatron's formula", number(report.tflops_megatron, ".4g")),
        ("TFLOP/s, matrix products built", number(report.tflops_built, ".4g")),
        ("MFU (built over bf16 peak)", number(report.mfu, ".1%")),
        *[(f"seconds: {name.replace('_', ' + ')}", f"{value:.4g}") for name, value in (seconds or ())],
        ("loss: first, last, least", f"{report.first_loss:.4f}, {report.last_loss:.4f}, {report.min_loss:.4f}"),
        ("held-out loss", held),
        *[(f"held-out loss of {name}", f"{loss:.4f}") for name, loss in (report.valid_losses or {}).items()],
        ("unigram entropy of the text", number(report.unigram_entropy, ".4f")),
        ("largest gradient norm", f"{report.worst_grad_norm:.4g}"),
        ("all steps finite", f"NO: {len(bad)} not ({shown})" if bad else "yes"),
        ("peak memory", _memory(report)),
        ("fullest expert, fullest rank", _load(report)),
    ]
