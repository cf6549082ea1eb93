"""Seconds of communication: the volumes of ``model.definition.traffic`` over the rates of links.

Rates inside a host are measured: bytes that kept runs sent over the seconds of NCCL's kernels, which hold the wait for
the last rank. The rate between hosts is an input. Ranks are placed as Megatron numbers them: expert-parallel ranks are
neighbours, then data-parallel ones, and stages lie farthest apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model.definition import traffic
from model.definition.traffic import GB
from model.kinds.kind import BF16, FP32
from model.plans.measured import Job, Measured
from patchlane.base.errors import PatchlaneError

GRADIENTS, WEIGHTS, TOKENS, STAGES = "gradients", "weights", "tokens to and from experts", "between stages"
KERNELS = {GRADIENTS: "reduce-scatter", WEIGHTS: "all-gather", TOKENS: "all-to-all"}  # as profiles name them
NAMEPLATE = 50.0  # GB/s of a GPU's 400 Gbit/s InfiniBand adapter, from its nameplate; not measured


@dataclass(frozen=True)
class Hosts:
    """GPUs of a host, and the bytes a second that each of them sends to other hosts, through its own adapter."""

    gpus: int = 8
    between: float = NAMEPLATE * GB

    def __post_init__(self) -> None:
        if not 0 < self.between < math.inf:
            raise ValueError(f"no link sends {self.between / GB:g} GB/s")

    def check(self, job: Job) -> None:
        """ValueError where groups of ranks would lie unevenly over the hosts."""
        data, expert = job.layout.data, job.layout.expert
        for ranks, what in ((data, "data"), (expert, "expert")) if data * job.layout.pipeline > self.gpus else ():
            if ranks % self.gpus and self.gpus % ranks:
                raise ValueError(f"{ranks} {what}-parallel ranks lie unevenly over hosts of {self.gpus} GPUs")


@dataclass(frozen=True)
class Rate:
    """Bytes that a rank sent in a step of a kept run, and the seconds of the kernels that sent them."""

    sent: float
    seconds: float
    receipt: str

    @property
    def bytes_per_second(self) -> float:
        return self.sent / self.seconds


def sent(job: Job, stage: int = 0) -> dict[str, float]:
    """Bytes that a rank of ``stage`` sends in a step."""
    found = traffic.volumes(job.size, job.layout, stage, job.row, job.accumulate)
    starts = {GRADIENTS: "gradients", WEIGHTS: "weights", TOKENS: "tokens", STAGES: "pipeline"}
    return {what: sum(v for name, v in found.items() if name.startswith(start)) for what, start in starts.items()}


def measured(run: Measured) -> dict[str, Rate]:
    """The rates that a kept run's profile shows, by what was sent.

    Kernels beside others share the links and the GPU, so what was overlapped gives no rate. With experts on several
    ranks the gathers of weights cannot be told from those of token counts.
    """
    hidden = {GRADIENTS: run.job.overlap_grads, WEIGHTS: run.job.overlap_weights or run.job.layout.expert > 1}
    rates = {}
    for what, kernels in KERNELS.items():
        volume, seconds = sent(run.job)[what], run.communication(kernels)
        if volume and seconds and not hidden.get(what):
            rates[what] = Rate(volume, seconds, run.run.name)
    return rates


def first(runs: Sequence[Measured]) -> dict[str, Rate]:
    """The rate of each, from the first of ``runs`` that has it."""
    found: dict[str, Rate] = {}
    for run in runs:
        found = measured(run) | found
    return found


def seconds(job: Job, rates: Mapping[str, Rate], hosts: Hosts, stage: int = 0) -> dict[str, float]:
    """Seconds a step of what a rank of ``stage`` sends, if nothing else ran.

    Raises ValueError for groups that no host holds evenly, PatchlaneError for a rate that no run has.
    """
    hosts.check(job)
    layout, volumes = job.layout, sent(job, stage)
    dense, experts = traffic.shared(job.size, layout, stage)
    apart = layout.data > hosts.gpus
    on_host = hosts.gpus if apart else layout.data
    groups = ((dense, on_host), (experts, max(1, on_host // layout.expert)))
    took = {
        what: sum(_ring(each * count, beside, what, rates, hosts, apart) for count, beside in groups if count)
        for what, each in ((GRADIENTS, FP32), (WEIGHTS, BF16))
    }
    took[TOKENS] = _exchange(volumes[TOKENS], layout.expert, rates, hosts)
    if not volumes[STAGES]:
        return took | {STAGES: 0.0}
    if layout.data * layout.pipeline > hosts.gpus:
        return took | {STAGES: volumes[STAGES] / hosts.between}
    return took | {STAGES: volumes[STAGES] / _inside(GRADIENTS, rates)}


def _ring(volume: float, beside: int, what: str, rates: Mapping[str, Rate], hosts: Hosts, apart: bool) -> float:
    """A reduce-scatter or an all-gather of a group with ``beside`` ranks on a host.

    What goes round leaves a host once, not once a rank: the rings share it out among the adapters of ``beside`` GPUs.
    """
    through = volume / (beside * hosts.between) if apart else 0.0
    return max(through, volume / _inside(what, rates) if beside > 1 else 0.0)


def _exchange(volume: float, ranks: int, rates: Mapping[str, Rate], hosts: Hosts) -> float:
    """An all-to-all: what is for ranks of other hosts goes through the rank's own adapter."""
    if not volume:
        return 0.0
    out = volume * max(0, ranks - hosts.gpus) / (ranks - 1)
    return max((volume - out) / _inside(TOKENS, rates), out / hosts.between)


def _inside(what: str, rates: Mapping[str, Rate]) -> float:
    if what not in rates:
        needed = f"--plan once more, with a profiled run of {COMMUNICATES[what]}"
        raise PatchlaneError(f"no rate of {what} was measured in these runs", needed)
    return rates[what].bytes_per_second


COMMUNICATES = {
    GRADIENTS: "two GPUs or more and no overlap",
    WEIGHTS: "two GPUs or more, --ep 1 and no overlap",
    TOKENS: "--ep 2 or more",
}
