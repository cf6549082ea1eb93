"""The time of a step, from spans on a timeline to a ranked report; without torch."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from model.profile import limits
from model.profile.ceilings import Ceilings
from model.profile.kernel_kinds import COMMUNICATION
from model.profile.limits import Limit

TOP = 60


@dataclass(frozen=True)
class Span:
    """A kernel, copy or operator's own time on one device, in microseconds from the start of the trace."""

    name: str
    start: float
    end: float


class Cost(BaseModel):
    """Seconds and calls a step of one kind or name, and its share of the step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    seconds: float
    calls: float
    share: float


class PhaseTime(BaseModel):
    """Seconds a step of one phase on one rank: on the host, and from its first to its last work by the GPU's clock.

    On a GPU the host only launches: it waits in the phase that reads what the GPU computed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    host: float
    device: float | None = None  # None without a GPU, and for what is the host's alone


class KernelsAlone(BaseModel):
    """The step before the window, of which only the GPU's kernels were traced: records of operators cost the host time
    in which the GPU idles. Seconds of the step and of no kernel in it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    seconds: float
    idle: float


class RankTime(BaseModel):
    """Seconds of a step on one rank's GPU: in kernels that compute, in communication alone, in neither.

    The rank that computes longest communicates least: the others wait for it in communication. Its phases, its GPU's
    ceilings, what each kind of work took against them and the step before are not in the oldest kept profiles.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    computing: float | None = None  # these three: None without a GPU
    communicating: float | None = None
    idle: float | None = None
    phases: list[PhaseTime] = []
    ceilings: Ceilings | None = None
    limits: list[Limit] = []
    kernels_alone: KernelsAlone | None = None  # None without a GPU, or a step before the window


class Profile(BaseModel):
    """Means over ``steps`` profiled steps, in seconds of one step. The fields from ``busy`` on exist on a GPU only.

    Shares are of ``step_seconds``, which is wall-clock time under the profiler; kernels that overlap on several streams
    count each, so shares can add up to more than busy time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    device: str
    first_step: int
    steps: int
    step_seconds: float
    seconds_before: float | None  # median of the steps before the window, without the profiler
    steps_before: int  # their number
    kinds: list[Cost]
    top: list[Cost]
    busy: float | None = None
    idle: float | None = None
    longest_gap: float | None = None
    exposed_communication: float | None = None  # NCCL kernels while nothing else ran
    ranks: list[RankTime] = []  # of each rank, in rank order; in older profiles only if there are several

    @property
    def own(self) -> RankTime | None:
        """This rank's times; None without a GPU."""
        if self.busy is None or self.exposed_communication is None or self.idle is None:
            return None
        alone = self.exposed_communication
        return RankTime(computing=self.busy - alone, communicating=alone, idle=self.idle)

    @property
    def overhead(self) -> float | None:
        """Time that the profiler adds to a step, as a share of the step without it; None if no step ran before."""
        return self.step_seconds / self.seconds_before - 1 if self.seconds_before else None


def union(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """The stretches (start, end) in which at least one span ran, in order."""
    stretches: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda s: s.start):
        if stretches and span.start <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(stretches[-1][1], span.end))
        else:
            stretches.append((span.start, span.end))
    return stretches


def length(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in stretches)


def ranked(
    spans: Sequence[Span], key: Callable[[Span], tuple[str, str]], steps: int, step_seconds: float
) -> list[Cost]:
    """Costs by ``key``, a (name, kind), most time first."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for span in spans:
        total[key(span)] += span.end - span.start
        calls[key(span)] += 1
    costs = []
    for (name, kind), microseconds in total.items():
        seconds = microseconds / 1e6 / steps
        calls_a_step = calls[name, kind] / steps
        costs.append(Cost(name=name, kind=kind, seconds=seconds, calls=calls_a_step, share=seconds / step_seconds))
    return sorted(costs, key=lambda cost: -cost.seconds)


def analyse(
    spans: Sequence[Span],
    kind: Callable[[str], str],
    *,
    device: str,
    first_step: int,
    steps: int,
    seconds: float,
    before: Sequence[float] = (),
    timeline: bool = True,
) -> Profile:
    """The profile of ``steps`` steps that took ``seconds`` in all; ``before``: seconds of unprofiled steps before.

    ``timeline``: spans have places in time, as a device's kernels; False for mere durations, as a CPU's operators.
    """
    each = seconds / steps
    profile = Profile(
        device=device,
        first_step=first_step,
        steps=steps,
        step_seconds=each,
        seconds_before=statistics.median(before) if before else None,
        steps_before=len(before),
        kinds=ranked(spans, lambda s: (kind(s.name), kind(s.name)), steps, each),
        top=ranked(spans, lambda s: (s.name, kind(s.name)), steps, each)[:TOP],
    )
    if not timeline or not spans:
        return profile
    ran = union(spans)
    computing = union(s for s in spans if not kind(s.name).startswith(COMMUNICATION))
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(ran)]
    busy = length(ran) / 1e6 / steps
    return profile.model_copy(
        update={
            "busy": busy,
            "idle": max(each - busy, 0.0),
            "longest_gap": max(gaps, default=0.0) / 1e6,
            "exposed_communication": (length(ran) - length(computing)) / 1e6 / steps,
        }
    )


def markdown(profile: Profile) -> str:
    """The profile as Markdown: step time, busy and idle time, ranks, then the costliest kinds and names."""
    p, ms = profile, 1e3
    first, last = p.first_step, p.first_step + p.steps - 1
    lines = [f"# Where the time of a step goes: steps {first}–{last} on {p.device}", ""]
    lines.append(f"- a step: {p.step_seconds * ms:.2f} ms under the profiler, {_overhead(p)}")
    if p.busy is not None and p.idle is not None:
        lines.append(f"- GPU busy {p.busy * ms:.2f} ms ({p.busy / p.step_seconds:.1%}), idle {p.idle * ms:.2f} ms")
        lines.append(f"- longest gap between kernels: {(p.longest_gap or 0) * ms:.3f} ms")
        lines.append(f"- communication with nothing beside it: {(p.exposed_communication or 0) * ms:.2f} ms a step")
    lines += [*_kernels_alone(p.ranks), *_ranks(p.ranks), *_phases(p.ranks), *_ceilings(p.ranks)]
    if p.ranks and p.ranks[0].ceilings is not None:
        lines += limits.markdown(p.ranks[0].limits, p.ranks[0].ceilings)
    lines += ["", "Shares are of the whole step; what overlaps counts twice.", ""]
    if p.busy is None:
        lines += [f"The {len(p.top)} costliest operators, each without those it calls:", "", *_table("operator", p.top)]
    else:
        lines += [*_table("kind", p.kinds), "", f"The {len(p.top)} costliest kernels:", ""]
        lines += _table("kernel", p.top, kinds=True)
    return "\n".join(lines) + "\n"


def _kernels_alone(ranks: Sequence[RankTime]) -> list[str]:
    """A line with each rank's idle share of the step before the window."""
    alone = [rank.kernels_alone for rank in ranks if rank.kernels_alone is not None]
    if not alone:
        return []
    each = ", ".join(
        f"{one.idle * 1e3:.2f} ms of {one.seconds * 1e3:.2f} ({one.idle / one.seconds:.1%})" for one in alone
    )
    return [f"- idle in step {alone[0].step}, of which only kernels were traced, by rank: {each}"]


def _ranks(ranks: Sequence[RankTime]) -> list[str]:
    """A table of several ranks' times; nothing for a single rank."""
    if len(ranks) < 2:
        return []
    lines = []
    if ranks[0].computing is not None:
        lines += ["", "| rank | ms a step computing | in communication alone | idle |", "|---:|---:|---:|---:|"]
    for number, rank in enumerate(ranks if lines else ()):
        times = (rank.computing, rank.communicating, rank.idle)
        lines.append(f"| {number} | " + " | ".join(f"{(time or 0.0) * 1e3:.1f}" for time in times) + " |")
    return [*lines, "", "All else here is of rank 0, but for tables with a column of ranks."]


def phase_rows(ranks: Sequence[RankTime]) -> list[tuple[str, ...]]:
    """("rank", each phase), then a row a rank of "host, GPU" ms, or of the host's alone; empty without phases."""
    if not ranks or not ranks[0].phases:
        return []
    rows: list[tuple[str, ...]] = [("rank", *(phase.name for phase in ranks[0].phases))]
    for number, rank in enumerate(ranks):
        cells = (
            f"{phase.host * 1e3:.1f}" + ("" if phase.device is None else f", {phase.device * 1e3:.1f}")
            for phase in rank.phases
        )
        rows.append((str(number), *cells))
    return rows


def ceiling_rows(ranks: Sequence[RankTime]) -> list[tuple[str, ...]]:
    """A heading, then a row a rank: its ceilings, and what is counted of its work against the least time."""
    if not any(rank.limits for rank in ranks):
        return []
    rows: list[tuple[str, ...]] = [("rank", "products, TFLOP/s", "copy, TB/s", "ms counted", "least ms", "ratio")]
    for number, rank in enumerate(ranks):
        ceilings, whole = rank.ceilings or Ceilings(), limits.total(rank.limits)
        cells = [(ceilings.flops_per_second, 1e-12, ".1f"), (ceilings.bytes_per_second, 1e-12, ".2f")]
        if whole is not None:
            cells += [(whole.seconds, 1e3, ".1f"), (whole.least, 1e3, ".1f"), (whole.ratio, 1.0, ".2f")]
        cells += [(None, 1.0, "")] * (len(rows[0]) - 1 - len(cells))
        shown = (limits.NONE if value is None else f"{value * unit:{form}}" for value, unit, form in cells)
        rows.append((str(number), *shown))
    return rows


PHASES = "Ms a step by phase, on the host and, after a comma, by the GPU's clock:"


def _phases(ranks: Sequence[RankTime]) -> list[str]:
    return _lines(phase_rows(ranks), ["", PHASES, ""])


def _ceilings(ranks: Sequence[RankTime]) -> list[str]:
    return _lines(ceiling_rows(ranks), [""]) if len(ranks) > 1 else []


def _lines(rows: Sequence[Sequence[str]], before: list[str]) -> list[str]:
    """A table whose first row is its heading, after ``before``; nothing without rows."""
    if not rows:
        return []
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [*before, lines[0], "|" + "---:|" * len(rows[0]), *lines[1:]]


def _overhead(profile: Profile) -> str:
    if profile.seconds_before is None or profile.overhead is None:
        return "the profiler's overhead is unknown: no step ran before the window"
    return (
        f"{profile.seconds_before * 1e3:.2f} ms before it (median of {profile.steps_before}): "
        f"{profile.overhead:+.1%} with the profiler"
    )


def _table(head: str, rows: Sequence[Cost], kinds: bool = False) -> list[str]:
    lines = [f"| {head} | ms a step | share | calls a step |" + (" kind |" if kinds else "")]
    lines.append("|---|---:|---:|---:|" + ("---|" if kinds else ""))
    for row in rows:
        name = row.name if len(row.name) <= 110 else row.name[:107] + "…"
        cells = f"| {name.replace('|', chr(92) + '|')} | {row.seconds * 1e3:.3f} | {row.share:.1%} | {row.calls:g} |"
        lines.append(cells + (f" {row.kind} |" if kinds else ""))
    return lines
