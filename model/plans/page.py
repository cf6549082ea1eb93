"""``docs/plan.md``: predictions beside the measurements of kept runs, and the plan for more GPUs than ever ran."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from model.definition.memory import Layout
from model.definition.traffic import GB
from model.families.sizes import SIZES
from model.plans import links, measured
from model.plans.links import KERNELS, NAMEPLATE, Hosts
from model.plans.measured import Job, Measured
from model.plans.step import COMPUTE, OPTIMIZER, Prediction, gib, predict
from model.plans.tables import efficiency
from model.reports import benchmarks
from model.reports.benchmarks import KeptRun
from model.reports.page import markdown
from model.reports.report import NONE
from reproducers.base.errors import PatchlaneError

COMMAND = "python -m model.receipt plan > docs/plan.md"
SOURCE = "2xh200_wide_host_ep1_nowait_profile_20261122"  # whose profile is scaled to most kept runs
NEWEST = "2xh200_wide_whole_kept_four_profile_20261127"  # whose profile the plan scales: of the size, the last kept
TOKENS_OF_TWO = "2xh200_wide_mb3_20261122"  # for the comparison: a two-GPU run's rate of tokens, for all layouts
TOKENS_OF_FOUR = "4xh200_wide_230_20261122"  # for the plan: of the most expert-parallel ranks that were measured
TIMED = 10  # steps; fewer say little about speed
SLOW = NAMEPLATE / 10
OWN, FRESH = "Its own paths", "The plan's paths"
PLANNED = {
    "EP 1, 3 rows": (1, 3, 1, False),
    "EP 1, 3 rows, `overlap-grads`": (1, 3, 1, True),
    "EP 1, 3 rows × 2": (1, 3, 2, False),
    "EP 8, 4 rows": (8, 4, 1, False),
    "EP 8, 4 rows, `overlap-grads`": (8, 4, 1, True),
    "EP 8, 4 rows × 2": (8, 4, 2, False),
}
UNRUN = """## Runs on four and eight GPUs that are still to be made
    torchrun --nproc-per-node 8 -m model.train 8xh200_wide --profile 40:41 --out build/wide_ep1
    torchrun --nproc-per-node 8 -m model.train 8xh200_wide --ep 8 --micro-batch 4 --profile 40:41 --out build/wide_ep8
    torchrun --nproc-per-node 8 -m model.train 8xh200_bf16 --profile 40:41 --out build/nam56r_ep8
    torchrun --nproc-per-node 8 -m model.train 8xh200_bf16 --ep 1 --micro-batch 3 --profile 40:41 --out build/nam56r_ep1

300 steps that begin on eight ranks, are killed and go on on four:

    torchrun --nproc-per-node 8 -m model.train 8xh200_wide --steps 300 --save-every 100 --out build/moved
    pkill -9 -f 'out build/moved'                # after step 150
    torchrun --nproc-per-node 4 -m model.train 8xh200_wide --steps 300 --accumulate 2 --out build/moved

On four, for the ratio to the public record and to `4xh200_wide_230_20261122`, and layouts from one checkpoint:

    torchrun --nproc-per-node 4 -m model.train 4xh200_wide --profile 40:41 --out build/four_ep4
    torchrun --nproc-per-node 4 -m model.train 4xh200_wide --ep 1 --micro-batch 3 --profile 40:41 --out build/four_ep1
    torchrun --nproc-per-node 4 -m model.train 4xh200_bf16 --steps 20 --save-every 10 --set keep=9 --out build/ep4
    for layout in dp4 pp2; do cp -r build/ep4 build/$layout; rm -r build/$layout/checkpoints/step_0000020; done
    torchrun --nproc-per-node 4 -m model.train 4xh200_bf16 --steps 20 --ep 1 --out build/dp4
    torchrun --nproc-per-node 4 -m model.train 4xh200_bf16 --steps 20 --pp 2 --ep 2 --accumulate 2 --out build/pp2
    python -m model.compare build/ep4 build/dp4 build/pp2 --first 11 --tolerance 0.01
    python -m reproducers.run pack01 --lane cuda
"""


@dataclass(frozen=True)
class Pair:
    """A kept run's prediction, its seconds a step, and its profile where it has one."""

    run: KeptRun
    predicted: Prediction
    seconds: float
    profiled: Measured | None

    @property
    def error(self) -> float:
        """Positive where the step was predicted to take longer than it took."""
        return self.predicted.seconds / self.seconds - 1

    @property
    def memory(self) -> float | None:
        """The estimate's error, against the fullest rank that was recorded."""
        peak = self.run.report.peak_gib
        return gib(self.predicted.job) / max([peak, *(self.run.report.peaks_gib or ())]) - 1 if peak else None

    @property
    def communication(self) -> float | None:
        """Predicted over measured, of what nothing hides."""
        alone = self.profiled.profile.exposed_communication if self.profiled else None
        return self.predicted.communication / alone if alone else None


UNCHECKED: dict[str, Callable[[Pair], bool]] = {
    "several hosts": lambda pair: pair.predicted.job.layout.data * pair.predicted.job.layout.pipeline > Hosts().gpus,
    "several micro-batches a step": lambda pair: pair.predicted.job.accumulate > 1,
    "pipeline stages": lambda pair: pair.predicted.job.layout.pipeline > 1,
}


def pairs(kept: Path, source: Measured, tokens: Measured) -> tuple[list[Pair], list[str]]:
    """The kept runs that can be predicted, on the GPU of ``source``; and the names of the others, without its own."""
    found, others = [], []
    rates = links.first([source, tokens])
    for path in sorted(kept.glob("*/receipt.json")):
        if path.parent.name == source.run.name:
            continue
        run = benchmarks.read(path.parent)
        job, speed = measured.job(run), run.report.tokens_per_s_per_gpu
        same = job is not None and (run.report.gpu, job.row) == (source.run.report.gpu, source.job.row)
        counted = run.report.optimizer is None  # ``predict`` has AdamW's bytes and no Newton-Schulz
        if job is None or not same or not speed or run.report.steady_steps < TIMED or not counted:
            others.append(run.name)
            continue
        seconds = job.tokens / speed / job.layout.pipeline
        found.append(Pair(run, predict(source, rates, job, Hosts()), seconds, _profiled(path.parent)))
    return found, others


def _profiled(folder: Path) -> Measured | None:
    try:
        return measured.read(folder)
    except PatchlaneError:
        return None


def page(kept: Path) -> str:
    """The page. Raises PatchlaneError if a run that it rests on is not kept or has no profile."""
    source, newest, two, four = (measured.read(kept / name) for name in (SOURCE, NEWEST, TOKENS_OF_TWO, TOKENS_OF_FOUR))
    found, others = pairs(kept, source, two)
    fresh = [pair for pair in pairs(kept, newest, two)[0] if _chosen(pair.run) == _chosen(newest.run)]
    newer = {pair.run.name for pair in fresh}
    own = [pair for pair in found if _paths(pair.run) == _paths(source.run)]
    rest = [pair for pair in found if pair not in own and pair.run.name not in newer]
    groups = ((OWN, own), (FRESH, fresh), ("Other paths", rest))
    sections = [
        _head(),
        _rates(source, _every(kept)),
        _beside(groups, [*own, *fresh, *rest], others),
        *(f"### {title}\n{_range(title, group)}\n{markdown(_pairs(group))}" for title, group in groups if group),
        _plan(newest, four),
    ]
    return "\n".join(sections)


def _every(kept: Path) -> Iterator[Measured]:
    """All kept runs with a profile of a known layout."""
    found = (_profiled(path.parent) for path in sorted(kept.glob("*/receipt.json")))
    return (run for run in found if run is not None)


def _paths(run: KeptRun) -> tuple[object, bool]:
    options = run.setup["run"]
    return options["paths"], bool(options.get("late_reads"))


def _chosen(run: KeptRun) -> tuple[object, bool]:
    """Every kind's path, asked for or not, of a run that tells it: what is taken unasked changes with the code."""
    return {kind: path["name"] for kind, path in run.setup.get("paths", {}).items()}, _paths(run)[1]


def _head() -> str:
    return f"""# A step's time, predicted

Generated by `{COMMAND}` from the runs kept under `receipts/train/`.
Nobody has run this model on more than four GPUs: the plan at the end is a calculation. How far such calculations were
off on one to four GPUs stands before it.

One run is scaled to most of the kept ones: `{SOURCE}`, two H200s. From its profile
come the seconds of each kind of kernel on one rank; its own step comes back by construction. The plan scales
`{NEWEST}`, which is faster, and so does the table of its paths.
`model/plans/step.py` says how each kind is scaled to another size, layout and number of rows, and
`model/plans/links.py` how communication is added: the volumes of `python -m model.describe` over rates of links. That
M²RNN takes no longer with more rows was chosen with the four-GPU profiles in view; the other rules follow from the work
that is counted.

**Left out**, and all of it makes a step longer: the wait for the slowest rank and for the one with the fullest experts,
beyond what the measured rates hold; gathers of token counts; a micro-batch so small that the host launches more slowly
than the GPU works; kernels that communication beside them slows down; latency of rings over many ranks; traffic of
others on the network; data, file system, checkpoints, evaluation.

A prediction of any layout from any profiled run, with a second one for the rates that the first one lacks; options
`--link-between-hosts`, `--gpus-per-host`, `--accumulate`, `--overlap-grads` and `--overlap-weights` change it:

    python -m model.describe nam56r_wide --dp 64 --ep 8 --micro-batch 4 --plan {NEWEST} --plan {TOKENS_OF_FOUR}
"""


def _rates(source: Measured, runs: Iterable[Measured]) -> str:
    table = _columns({"run": 0, "sent": 0, "GB a step": 1, "seconds": 1, "GB/s": 1})
    for run in runs:
        for what, rate in links.measured(run).items():
            cells = f"{rate.sent / GB:.2f}", f"{rate.seconds:.3f}", f"{rate.bytes_per_second / GB:.0f}"
            table.add_row(f"`{rate.receipt}`", what, *cells)
    return f"""## Rates inside a host
Predicted bytes that a rank sends in a step, over the seconds of NCCL's kernels in the profile
({", ".join(KERNELS.values())}). They hold the wait for the last rank. With EP, gathers of weights cannot
be told from those of token counts. Between hosts nothing was measured.

{markdown(table)}"""


def _beside(groups: Sequence[tuple[str, list[Pair]]], found: Sequence[Pair], others: Sequence[str]) -> str:
    ratios = [pair.communication for pair in found if pair.communication and pair.predicted.job.layout.expert > 1]
    memory = [pair.memory for pair in found if pair.memory is not None]
    lines = [
        "## Prediction beside measurement",
        f"Every kept run whose layout is known, on the same kind of GPU, with {TIMED} timed steps or more. Tokens",
        f"travel at the rate of `{TOKENS_OF_TWO}` (‡: its own). Ms a step are predicted and measured (median);",
        "an error below zero means that the run was slower than predicted. Where a run has a profile, ms in kernels",
        "that compute and in communication that nothing hides stand beside the predicted ones, as they were under the",
        "profiler: a small error of the step may be larger ones that cancel. GiB are of the fullest rank.",
        "",
    ]
    if ratios:
        lines.append(
            f"- Communication with experts on several ranks: predicted at {min(ratios):.2f} to {max(ratios):.2f} of "
            "what was measured."
        )
    if memory:
        lines.append(f"- Memory: off by {min(memory):+.1%} to {max(memory):+.1%}.")
    lines += [f"- Not checked by any of them: {what}." for what, has in UNCHECKED.items() if not any(map(has, found))]
    if not any(pair.predicted.job.layout.expert > 1 for pair in dict(groups)[OWN]):
        lines.append(
            "- No run with the scaled run's own paths has experts on several ranks: for these, only the second table."
        )
    if others:
        lines.append(f"- Not compared, for they are unlike that: {', '.join(f'`{name}`' for name in others)}.")
    return "\n".join(lines) + "\n"


def _range(title: str, group: Sequence[Pair]) -> str:
    errors = [pair.error for pair in group]
    middle = statistics.median(map(abs, errors))
    return (
        f"{len(group)} runs: errors from {min(errors):+.1%} to {max(errors):+.1%}, half of them within {middle:.1%}.\n"
        + {
            OWN: "They have the scaled run's paths, once more or in another layout, size or number of rows.",
            FRESH: f"They have those of `{NEWEST}`, whose profile is scaled to them.",
        }.get(title, "They have other paths, of earlier and of later code: not all of the error is the scaling's.")
        + "\n"
    )


def _pairs(group: Sequence[Pair]) -> Table:
    table = _columns(
        {
            "run": 0,
            "size": 0,
            "layout and paths": 0,
            "ms predicted": 1,
            "measured": 1,
            "error": 1,
            "computing, predicted and measured": 1,
            "communication, predicted and measured": 1,
            "GiB predicted": 1,
            "peak": 1,
        }
    )
    for pair in group:
        report, run = pair.run.report, pair.run
        peak = max([report.peak_gib or 0.0, *(report.peaks_gib or ())])
        table.add_row(
            f"`{run.name}`" + (" ‡" if run.name == TOKENS_OF_TWO else ""),
            f"`{run.size}`",
            benchmarks.layout_and_paths(run) + (", `overlap`" if pair.predicted.job.overlap_grads else ""),
            f"{pair.predicted.seconds * 1e3:,.0f}",
            f"{pair.seconds * 1e3:,.0f}",
            f"{pair.error:+.1%}",
            *_split(pair),
            f"{pair.predicted.gib:.1f}",
            f"{peak:.1f}",
        )
    return table


def _split(pair: Pair) -> tuple[str, str]:
    if pair.profiled is None:
        return NONE, NONE
    computing = (pair.predicted.parts[COMPUTE] + pair.predicted.parts[OPTIMIZER]) * 1e3
    alone = (pair.profiled.profile.exposed_communication or 0.0) * 1e3
    return (
        f"{computing:,.0f}, {pair.profiled.computing * 1e3:,.0f}",
        f"{pair.predicted.communication * 1e3:,.0f}, {alone:,.0f}",
    )


def _plan(source: Measured, four: Measured) -> str:
    tables = []
    for name in ("nam56r_wide", "nam56r"):
        table = _columns(
            {
                "GPUs": 1,
                "layout": 0,
                "ms": 1,
                "computing": 1,
                "communication": 1,
                "tokens/s a GPU": 1,
                "efficiency": 1,
                f"at {SLOW:g} GB/s": 1,
                "efficiency there": 1,
                "GiB": 1,
            }
        )
        for gpus in (8, 64, 512):
            for layout in PLANNED:
                table.add_row(*_planned(source, four, name, gpus, layout))
        tables.append(f"### {name}: planned, not run\n{markdown(table)}")
    return f"""## Plan for 8, 64 and 512 GPUs: nobody has run this
Hosts of eight GPUs, data parallel over all, experts on the GPUs of one host (EP 8) or whole on each GPU (EP 1), rows of
{source.job.row:,} tokens. Between hosts each GPU sends {NAMEPLATE:g} GB/s, the **nameplate** of a 400 Gbit/s adapter,
which no run here ever reached or tried; the columns to the right show a tenth of it. Inside a host rates are measured
ones, of gradients and weights between the scaled run's two ranks, of tokens in `{TOKENS_OF_FOUR}`
between four, where the plan has eight. What goes round a ring leaves a host once, over all adapters of the GPUs that
take part. So with eight of them at the nameplate, the links inside the host are what limits EP 1.

Computing is with the optimizer; communication is what nothing hides. Efficiency is tokens/s a GPU over what is
predicted for the same size in the scaled run's own layout (two GPUs, EP 1, 3 rows × 4); it can exceed 100%, where
ranks share the optimizer's work and overlap hides what two GPUs waited for. GiB are estimated. The errors above and all
that is left out apply, and grow with the ranks that wait for each other: take speeds for upper bounds.

{chr(10).join(tables)}
{UNRUN}"""


def _planned(source: Measured, four: Measured, name: str, gpus: int, layout: str) -> list[str]:
    expert, rows, accumulate, overlap = PLANNED[layout]
    rates = links.first([source, four])
    job = Job(SIZES[name], Layout(gpus, expert, 1, rows), source.job.row, accumulate, overlap_grads=overlap)
    fast, slow = (Hosts(between=rate * GB) for rate in (NAMEPLATE, SLOW))
    found, there = (predict(source, rates, job, hosts) for hosts in (fast, slow))
    return [
        str(gpus),
        layout,
        f"{found.seconds * 1e3:,.0f}",
        f"{(found.parts[COMPUTE] + found.parts[OPTIMIZER]) * 1e3:,.0f}",
        f"{found.communication * 1e3:,.0f}",
        f"{found.tokens_per_s_per_gpu:,.0f}",
        f"{efficiency(source, rates, found, fast):.1%}",
        f"{there.tokens_per_s_per_gpu:,.0f}",
        f"{efficiency(source, rates, there, slow):.1%}",
        f"{found.gib:.1f}",
    ]


def _columns(headings: dict[str, int]) -> Table:
    """A table whose columns with a 1 are numbers."""
    table = Table()
    for heading, number in headings.items():
        table.add_column(heading, justify="right" if number else "left")
    return table
