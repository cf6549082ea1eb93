"""``docs/benchmarks.md``: every kept training run as a row under the question that it answers, from its own files."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from model.definition import flops
from model.families.sizes import SIZES
from model.records import history
from model.records.records import Train
from model.reports import page as describe_page
from model.reports import report
from model.reports.report import NONE, RunReport, number
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz

COMMAND = "python -m model.receipt table > docs/benchmarks.md"
LONG = 200  # steps of a run whose losses are compared with those of other seeds
# The public record of an ancestor of this model, on eight H200s: TFLOP/s a GPU by Megatron's formula.
RECORD = (
    "https://github.com/DatasunriseOU/cppmega/blob/2acfde338e93f33538853342e5c8032c0e9bccb7/docs/production_status.md"
)
RECORD_TFLOPS, RECORD_SIZE, RECORD_EP = 289.0, "nam56r_wide", 4
LAYOUTS = """
## Which layout is fastest, and what memory does it take?
Of each layout the fastest kept run in bf16 and the one with the largest peak. Runs of different days took different
paths: compare layouts by runs of one day.

"""
SMALL = ("nam56r_tiny", "nam56r_siso")
TEXT = ("run", "date", "GPUs", "size", "layout and paths", "layout", "fastest run", "largest peak")  # the rest: numbers
SPEED, PEAK, LOSS = "tokens/s a GPU", "peak GiB by rank", "held-out loss"


class Question(NamedTuple):
    """A question and the columns that answer it, under which its runs stand."""

    title: str
    columns: tuple[str, ...]


ASKED_COLUMNS = ("run", "date", "GPUs", "size", "layout and paths", "steps, timed", SPEED, PEAK, LOSS)
FORMULAS = ("TFLOP/s, formula", "TFLOP/s, built", "of the record")
DEFAULTS = Question(
    "How fast are the paths that a run takes unasked, over time?",
    (*ASKED_COLUMNS[:5], "tokens a step", *ASKED_COLUMNS[5:7], *FORMULAS, PEAK, LOSS),
)
ASKED = Question("What do paths bring that were asked for?", ASKED_COLUMNS)
PRECISION = Question("What does FP8 bring?", ASKED_COLUMNS)
SEEDS = Question(
    "Do runs of other seeds and paths learn alike?",
    ("run", "date", "GPUs", "size", "seed", "steps, timed", "layout and paths", SPEED, LOSS),
)
OTHERS = Question("Small sizes, and runs kept without their run.json", ASKED_COLUMNS)
QUESTIONS = (DEFAULTS, ASKED, PRECISION, SEEDS, OTHERS)


class KeptRun(NamedTuple):
    """A kept run: its figures, its last step, and the run.json of its last start.

    ``setup`` is empty for a run that was kept without a run.json. ``moved``: it belongs to an earlier start.
    """

    name: str
    report: RunReport
    last: Train
    setup: dict[str, Any]
    moved: bool

    @property
    def gpus(self) -> int:
        """Ranks of the last step, whose tokens are of all ranks and whose speed is of one."""
        last = self.last
        return round(last.tokens / last.step / (last.tokens_per_s_per_gpu * last.seconds.total))

    @property
    def size(self) -> str | None:
        """The size's name, None where the run was kept without it."""
        return str(self.setup["size"]["name"]) if self.setup else None


def read(folder: Path) -> KeptRun:
    """A kept run. Raises PatchlaneError if it has no training step or its run.json is not JSON."""
    records, summary = history.read(folder), report.summarise(folder)
    # each resume adds a run.json whose name ends with the step that it resumed from
    setups = sorted(xz.found(folder, "run*.json"), key=lambda path: (len(path.name), path.name))
    try:
        setup = json.loads(xz.data(setups[-1])) if setups else {}
    except ValueError as error:
        raise PatchlaneError(f"{setups[-1]} is no JSON: {error}", "python -m model.receipt check") from error
    moved = bool(summary.resumed_at) and len(setups) == 1
    return KeptRun(folder.name, summary, history.train(records)[-1], setup, moved)


def page(kept: Path) -> str:
    """The page over all runs in the folder ``kept``. Raises PatchlaneError if one has no training step."""
    runs = [read(path.parent) for path in sorted(kept.glob("*/receipt.json"))]
    parts = [_head(), LAYOUTS, _layouts(runs)]
    for asked in QUESTIONS:
        group = [run for run in runs if question(run) is asked]
        group.sort(key=lambda run: (run.size or "", run.gpus, run.last.time))
        if group:
            parts.append(f"\n## {asked.title}\n{_table(asked.columns, map(_cells, group))}")
    return "".join(parts)


def question(run: KeptRun) -> Question:
    """The question that a run answers: by its steps, its precision and the paths that it asked for."""
    if not run.setup or run.size in SMALL:
        return OTHERS
    if run.report.steps >= LONG and run.gpus == 1:
        return SEEDS
    asked = run.setup["run"]["paths"]
    if any(path.startswith("fp8") for path in asked.values()):
        return PRECISION
    return ASKED if asked else DEFAULTS


def _layouts(runs: list[KeptRun]) -> str:
    """Of each size, number of GPUs and layout the fastest run in bf16 and the largest peak."""
    groups: dict[tuple[str, str, str], list[KeptRun]] = {}
    for run in runs:
        if run.setup and not run.moved and run.size not in SMALL and question(run) is not PRECISION:
            groups.setdefault((str(run.size), _gpus(run), layout(run)), []).append(run)
    rows = []
    for (size, gpus, where), group in sorted(groups.items()):
        fastest = max(group, key=lambda run: run.report.tokens_per_s_per_gpu or 0)
        largest = max(group, key=lambda run: max(run.report.peaks_gib or [run.report.peak_gib or 0]))
        peak = max(largest.report.peaks_gib or [largest.report.peak_gib or 0])
        rows.append(
            {
                "size": f"`{size}`",
                "GPUs": gpus,
                "layout": where,
                SPEED: number(fastest.report.tokens_per_s_per_gpu, ",.0f"),
                "fastest run": f"`{fastest.name}`",
                "peak GiB": number(peak or None, ".1f"),
                "largest peak": f"`{largest.name}`",
            }
        )
    return _table(("size", "GPUs", "layout", SPEED, "fastest run", "peak GiB", "largest peak"), rows)


def _head() -> str:
    speed = RECORD_TFLOPS * 1e12 / flops.megatron(SIZES[RECORD_SIZE])
    return f"""# Benchmarks

Generated by `{COMMAND}` from the runs kept under `receipts/train/`.
`python -m model.report receipts/train/NAME` prints all figures of one run, `python -m model.compare` sets runs side by
side, and its `--profile` prints where a profiled step's time goes. [Log](log.md) says what each run was for.

- Speeds are medians over the timed steps: all but the first ten. Fewer than ten timed steps say little about speed.
- TFLOP/s are of one GPU, by Megatron's formula and by the matrix products that the model builds ([figures](nam56r.md)).
- The [public record][record] of an ancestor of this model is {RECORD_TFLOPS:.0f} TFLOP/s a GPU by Megatron's formula,
  on eight H200s with expert parallelism {RECORD_EP}. For `{RECORD_SIZE}` this is {speed:,.0f} tokens/s a GPU. Runs of
  this size with the same expert parallelism show their ratio to it.
- Layout: expert parallelism (EP), pipeline stages (PP), rows of a micro-batch, micro-batches a step where there are
  several; then the optimizer where it is not AdamW, and the paths asked for by `--path`. A {NONE} means that the run
  was kept without its `run.json`, "resumed" that it was kept without the `run.json` of its resume.
- Which paths a run takes unasked has changed from day to day: its `run.json` names them, and its commit and patches.
- A single figure of peak memory is rank 0's; a list has every rank's. It covers the steps before a resume as well.
- Held-out loss is in nats a token. It shows {NONE} for a run that ended before its evaluation.
- Runs of up to 22 November 2026, and `1xh200_quarter_base_*` and `nowait_*` of the day after, count otherwise: step n
  has the rate that step n - 1 has now, losses are means of the means of micro-batches, and held-out losses are over
  four micro-batches of each rank.
- † marks a run from a checkout with local changes.

[record]: {RECORD}
"""


def _table(columns: tuple[str, ...], rows: Iterable[dict[str, str]]) -> str:
    table = Table()
    for heading in columns:
        table.add_column(heading, justify="left" if heading in TEXT else "right")
    for row in rows:
        table.add_row(*(row[heading] for heading in columns))
    return describe_page.markdown(table)


def _gpus(run: KeptRun) -> str:
    return f"{run.gpus} {run.report.gpu.removeprefix('NVIDIA ') if run.report.gpu else 'CPU'}"


def _cells(run: KeptRun) -> dict[str, str]:
    """{heading: cell} of a run."""
    figures, changed = run.report, (run.setup.get("project") or {}).get("changed")
    return {
        "run": f"`{run.name}`" + (" †" if changed else ""),
        "date": str(datetime.datetime.fromtimestamp(run.last.time, datetime.UTC).date()),
        "GPUs": _gpus(run),
        "size": f"`{run.size}`" if run.size else NONE,
        "layout and paths": _layout_and_paths(run),
        "seed": str(run.setup.get("recipe", {}).get("seed", NONE)),
        "tokens a step": f"{run.last.tokens // run.last.step:,}",
        "steps, timed": f"{figures.steps}, {figures.steady_steps}",
        SPEED: number(figures.tokens_per_s_per_gpu, ",.0f"),
        "TFLOP/s, formula": number(figures.tflops_megatron, ".0f"),
        "TFLOP/s, built": number(figures.tflops_built, ".0f"),
        "of the record": number(_of_record(run), ".3f"),
        PEAK: ", ".join(f"{peak:.1f}" for peak in figures.peaks_gib or []) or number(figures.peak_gib, ".1f"),
        LOSS: number(figures.valid_loss, ".3f"),
    }


def layout(run: KeptRun) -> str:
    """Expert and pipeline parallelism, rows and micro-batches, by the run.json of the run's last start."""
    recipe, options = run.setup["recipe"], run.setup["run"]
    rows, several = recipe["micro_batch"], recipe["accumulate"]
    parts = [f"EP {options['expert_parallel']}"] if options["expert_parallel"] > 1 else []
    parts += [f"PP {options['pipeline_parallel']}"] if options["pipeline_parallel"] > 1 else []
    return ", ".join([*parts, f"{rows} row{'' if rows == 1 else 's'}" + (f" × {several}" if several > 1 else "")])


def _layout_and_paths(run: KeptRun) -> str:
    """By the run.json of the run's last start."""
    if not run.setup:
        return NONE
    if run.moved:
        return "resumed"
    options = run.setup["run"]
    flags = [name.replace("_", "-") for name in ("recompute", "cuda_graphs", "deterministic") if options.get(name)]
    flags += [f"nccl-ctas={options['nccl_ctas']}"] if options.get("nccl_ctas") else []
    flags += [f"states of {options['kept_states']} layers kept"] if options.get("kept_states") else []
    flags += [f"launch queues {options['launch_queues']}"] if options.get("launch_queues") else []
    flags += [f"optimizer={run.report.optimizer}"] if run.report.optimizer else []
    paths = [f"{kind}={path}" for kind, path in options["paths"].items()]
    return ", ".join([layout(run), *(f"`{text}`" for text in (*flags, *paths))])


def _of_record(run: KeptRun) -> float | None:
    if run.size != RECORD_SIZE or run.moved or run.setup["run"]["expert_parallel"] != RECORD_EP:
        return None
    return run.report.tflops_megatron / RECORD_TFLOPS if run.report.tflops_megatron else None
