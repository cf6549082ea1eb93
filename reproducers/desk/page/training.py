"""Kept training runs for the report page: each receipt's summary in words, its records as curves, and its files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlane.base.errors import PatchlaneError
from patchlane.base.files import bytes_of, parsed_json, within
from reproducers.desk.page.charts import Curve, curve
from reproducers.kept import xz

RECORDS, SETUP, STEP = "metrics.jsonl", "run.json", b'"kind":"train"'
CURVES = {"loss": "Loss, nats a token", "tokens_per_s_per_gpu": "Tokens/s a GPU"}
SHORT = 50  # a run of fewer steps compared two settings
# {the summary's field: (its name in words, the format of its numbers)}
LABELS = {
    "gpu": ("GPU", ""),
    "steps": ("Steps", ",d"),
    "tokens": ("Tokens", ",d"),
    "warmup": ("Steps left out of the speed", ",d"),
    "steady_steps": ("Steps timed", ",d"),
    "tokens_per_s_per_gpu": ("Tokens/s a GPU", ",.0f"),
    "tflops_megatron": ("TFLOP/s a GPU by Megatron-Core's formula", ",.1f"),
    "tflops_built": ("TFLOP/s a GPU of the matrix products built", ",.1f"),
    "mfu": ("MFU, built over bf16 peak", ".1%"),
    "step_seconds.data": ("Data, seconds a step", ".3g"),
    "step_seconds.forward_backward": ("Forward and backward, seconds a step", ".3g"),
    "step_seconds.optimizer": ("Optimizer, seconds a step", ".3g"),
    "step_seconds.other": ("Other, seconds a step", ".3g"),
    "first_loss": ("First loss, nats", ".4f"),
    "last_loss": ("Last loss, nats", ".4f"),
    "min_loss": ("Lowest loss, nats", ".4f"),
    "valid_loss": ("Held-out loss, nats", ".4f"),
    "valid_step": ("Held-out loss taken at step", ",d"),
    "unigram_entropy": ("Unigram entropy of the text, nats", ".4f"),
    "worst_grad_norm": ("Largest gradient norm", ".4g"),
    "not_finite_steps": ("Steps with a gradient norm that is not finite", ""),
    "peak_gib": ("Peak memory, GiB", ".1f"),
    "peaks_gib": ("Peak memory by rank, GiB", ".1f"),
    "expert_load": ("Busiest expert, of the mean", ".2f"),
    "rank_load": ("Busiest rank, of the mean", ".2f"),
    "resumed_at": ("Resumed at step", ",d"),
}


@dataclass(frozen=True)
class TrainingRun:
    """One folder of ``receipts/train``. ``rows``: the summary's (name, value) in words; ``setup``: its run.json.

    ``files``: as they lie, so that some are packed.
    """

    name: str
    summary: dict[str, Any]
    setup: dict[str, Any]
    rows: list[tuple[str, str]]
    curves: list[Curve]
    files: list[Path]
    absent: list[str]

    @property
    def href(self) -> str:
        return f"receipts/train/{self.name}"

    @property
    def page(self) -> str:
        return f"training/{self.name}.html"

    @property
    def size(self) -> str:
        """The name of the model's size; "" if the run was kept without its run.json."""
        return str(self.setup.get("size", {}).get("name", ""))

    @property
    def tokens(self) -> int:
        return int(self.summary.get("tokens") or 0)

    @property
    def gpus(self) -> int | None:
        ranks = self.setup.get("ranks")
        return ranks if isinstance(ranks, int) else None

    @property
    def title(self) -> str:
        """Size, GPUs, steps and day in words; the folder's name if the run was kept without its run.json."""
        if not self.size or self.gpus is None:
            return self.name
        gpus = f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}"
        return f"{self.size} on {gpus}, {self.summary.get('steps', 0)} steps, {self.setup.get('started', '')[:10]}"

    @property
    def short(self) -> bool:
        return int(self.summary.get("steps") or 0) < SHORT

    def formatted(self, name: str) -> str:
        """A field of the summary in its format, "–" if the run has no such field."""
        return _formatted(name, self.summary[name]) if self.summary.get(name) is not None else "–"


def _formatted(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_formatted(name, item) for item in value) or "none"
    form = LABELS.get(name, ("", ".4g"))[1]
    if isinstance(value, bool) or not isinstance(value, int | float) or not form:
        return str(value)
    if form == ",d":
        return f"{value:,}"
    return format(value, form) if math.isfinite(value) else str(value)


def _label(name: str) -> str:
    return LABELS[name][0] if name in LABELS else name.replace("_", " ").replace(".", ": ")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def training_runs(root: Path) -> list[TrainingRun]:
    """All runs kept under ``root``, fastest first. Raises PatchlaneError if a receipt is malformed."""
    runs = [_run(path) for path in sorted(root.glob("*/receipt.json"))]
    return sorted(runs, key=lambda run: -(run.summary.get("tokens_per_s_per_gpu") or 0))


def by_size(runs: list[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """{size: its runs}, the size and the run with the most tokens first, then runs of ``SHORT`` steps and more."""
    longest = dict[str, TrainingRun]()
    for run in runs:
        longest[run.size] = max(longest.get(run.size, run), run, key=lambda one: one.tokens)
    sizes = sorted(longest, key=lambda size: (not size, -longest[size].tokens, size))
    own = {size: [run for run in runs if run.size == size] for size in sizes}
    return {size: sorted(own[size], key=lambda run: (run is not longest[size], run.short)) for size in sizes}


def _run(path: Path) -> TrainingRun:
    try:
        receipt = parsed_json(bytes_of(path))
        summary, files = dict(receipt["summary"]), sorted(receipt["files"])
        kept = [file for file in (xz.place(within(path.parent, name)) for name in files) if file.is_file()]
        start, records = path.with_name(SETUP), path.with_name(RECORDS)
        setup = dict(parsed_json(xz.data(start))) if xz.place(start) in kept else {}
        drawn = _curves(records) if xz.place(records) in kept else []
    except (ValueError, KeyError, TypeError) as error:
        where = f"{path.parent.name}/{path.name}"
        raise PatchlaneError(f"{where} is no training receipt: {error!r}", "python -m model.receipt check") from error
    rows = [(_label(name), _formatted(name, value)) for name, value in _flat(summary) if name != "schema_version"]
    return TrainingRun(path.parent.name, summary, setup, rows, drawn, [path, *kept], list(receipt.get("absent", [])))


def _curves(records: Path) -> list[Curve]:
    """The figures of each training step, of one that was taken twice the later ones."""
    with xz.opened(records) as lines:
        steps = [parsed_json(line) for line in lines if STEP in line]
    last = {int(step["step"]): step for step in steps}
    made = [
        curve(words, [(at, last[at][name]) for at in sorted(last) if isinstance(last[at].get(name), int | float)])
        for name, words in CURVES.items()
    ]
    return [one for one in made if one is not None]
