"""The seconds of a step that nobody ran, from a kept run's profile and the rates of links.

Each kind of kernel takes the seconds of the profile, times its work here over its work there:

- kinds that ``model.profile.work`` counts, by those FLOPs or bytes, each row taken as one document
- M²RNN, by layers and tokens of a row: a recurrence goes token by token, and rows run side by side
- Mamba-3's small kernels, by tokens, layers and heads
- all else, by tokens, hidden width and layers, MTP's depths with them

The host's share, in which no kernel runs, is by layers and micro-batches. With pipeline stages a step takes the slowest
stage's micro-batch once for each micro-batch and ``stages - 1`` times more. Overlap hides gradients behind the backward
pass of the last micro-batch and weights behind the forward pass of the first one, as long as these compute.

Left out: the wait for the slowest rank and for the one with the fullest experts, beyond what the rates hold; gathers of
token counts; a micro-batch so small that the host launches more slowly than the GPU works; kernels that communication
beside them slows down; latency of rings over many ranks; traffic of others on the network; data, file system,
checkpoints, evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from model.definition import memory
from model.kinds.kind import BACKWARD as PASSES
from model.plans import links
from model.plans.links import GRADIENTS, STAGES, TOKENS, WEIGHTS, Hosts, Rate
from model.plans.measured import Job, Measured
from model.profile import work
from model.profile.work import Share

OPTIMIZER, HOST, COMPUTE, BUBBLE = "optimizer", "host", "compute", "pipeline bubble"
BACKWARD = (PASSES - 1) / PASSES  # of a micro-batch's compute


@dataclass(frozen=True)
class Prediction:
    """Of the slowest stage, which all others wait for. ``parts`` follow one another: their sum is the step.

    ``kinds``: seconds a step of each kind of kernel, the optimizer among them. ``hidden``: of what overlap hides.
    """

    job: Job
    parts: dict[str, float]
    kinds: dict[str, float]
    hidden: dict[str, float]
    gib: float  # estimated, of the fullest stage's rank

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return self.job.tokens / self.seconds / self.job.layout.pipeline

    @property
    def communication(self) -> float:
        """Seconds of a step that nothing hides."""
        return sum(self.parts[what] for what in (GRADIENTS, WEIGHTS, TOKENS, STAGES))


def predict(source: Measured, rates: Mapping[str, Rate], job: Job, hosts: Hosts) -> Prediction:
    """The step of ``job``. Raises ValueError for another row than the profile's, or ranks that lie unevenly."""
    if job.row != source.job.row:
        raise ValueError(f"{source.run.name} has rows of {source.job.row} tokens, not of {job.row}")
    stages = range(job.layout.pipeline)
    computed = [_micro_batch(source, job, stage) for stage in stages]
    sent = [links.seconds(job, rates, hosts, stage) for stage in stages]
    each = [_turn(job, kinds, send) for kinds, send in zip(computed, sent, strict=True)]
    slowest = max(each)
    found = [
        _stage(job, kinds, send, (job.layout.pipeline - 1) * slowest)
        for kinds, send in zip(computed, sent, strict=True)
    ]
    return max(found, key=lambda prediction: prediction.seconds)


def _micro_batch(source: Measured, job: Job, stage: int) -> dict[str, float]:
    """Seconds of each kind and of the host for a micro-batch, the optimizer's for a step."""
    here, there = _amounts(job, stage), _amounts(source.job, 0)
    found = {}
    for kind, seconds in source.kinds.items():
        by = kind if there.get(kind) else COMPUTE
        once = seconds if kind == OPTIMIZER else seconds / source.job.accumulate
        found[kind] = once * here[by] / there[by]
    found[HOST] = source.idle / source.job.accumulate * here[HOST] / there[HOST]
    return found


def _amounts(job: Job, stage: int) -> dict[str, float]:
    """Work of a micro-batch by kind of kernel, the optimizer's of a step; only ratios of them are used."""
    size, row = job.size, job.row
    share = Share(size, job.layout, stage, job.recompute)
    seen = work.between(range(0, (job.layout.micro_batch + 1) * row, row))
    found = {
        kind: counted.moved if counted.flops is None else counted.flops
        for counted in work.of(share, seen)
        for kind in counted.kinds
    }
    layers = memory.stages(size, job.layout)[stage]
    blocks = len(layers) + size.mtp_depths * (stage == job.layout.pipeline - 1)
    counted = {kind: amount or 0.0 for kind, amount in found.items()}
    counted |= {kind: 0.0 for one in size.kinds.values() for kind in one.paced(seen.tokens, row)}
    for layer in layers:
        for kind, amount in layer.of.paced(seen.tokens, row).items():
            counted[kind] += amount
    return counted | {COMPUTE: seen.tokens * size.hidden * blocks, HOST: blocks}


def _computing(kinds: Mapping[str, float]) -> float:
    return sum(seconds for kind, seconds in kinds.items() if kind not in (OPTIMIZER, HOST))


def _turn(job: Job, kinds: Mapping[str, float], sent: Mapping[str, float]) -> float:
    """Seconds of one micro-batch with what it sends."""
    return _computing(kinds) + kinds[HOST] + (sent[TOKENS] + sent[STAGES]) / job.accumulate


def _stage(job: Job, kinds: Mapping[str, float], sent: Mapping[str, float], bubble: float) -> Prediction:
    computing = _computing(kinds)
    hidden = {
        GRADIENTS: min(sent[GRADIENTS], BACKWARD * computing) if job.overlap_grads else 0.0,
        WEIGHTS: min(sent[WEIGHTS], (1 - BACKWARD) * computing) if job.overlap_weights else 0.0,
    }
    parts = {
        COMPUTE: computing * job.accumulate,
        OPTIMIZER: kinds.get(OPTIMIZER, 0.0),
        HOST: kinds[HOST] * job.accumulate,
        GRADIENTS: sent[GRADIENTS] - hidden[GRADIENTS],
        WEIGHTS: sent[WEIGHTS] - hidden[WEIGHTS],
        TOKENS: sent[TOKENS],
        STAGES: sent[STAGES],
        BUBBLE: bubble,
    }
    step = {k: s * (1 if k == OPTIMIZER else job.accumulate) for k, s in kinds.items() if k != HOST}
    return Prediction(job, parts, step, hidden, memory.fullest(job.size, job.layout, job.row))
