"""A prediction as a table, for ``python -m model.describe SIZE --plan RECEIPT``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from model.definition.memory import Layout
from model.definition.traffic import GB
from model.families.nam56r import Size
from model.plans import links, measured
from model.plans.links import KERNELS, NAMEPLATE, Hosts, Rate
from model.plans.measured import Job, Measured
from model.plans.step import BUBBLE, COMPUTE, HOST, OPTIMIZER, Prediction, predict
from patchlane.base.errors import PatchlaneError

SHOWN = 8  # kinds of kernel with a row of their own
NO_SEQUENCE = "leave --sequence out, or --plan a run with such rows"
PROFILE = "the receipt's profile, scaled"


def efficiency(source: Measured, rates: Mapping[str, Rate], found: Prediction, hosts: Hosts) -> float:
    """Tokens/s/GPU over those predicted for the same size in the layout of ``source``, which for its own size are its
    own."""
    base = dataclasses.replace(source.job, size=found.job.size)
    return found.tokens_per_s_per_gpu / predict(source, rates, base, hosts).tokens_per_s_per_gpu


def said_between(hosts: Hosts) -> str:
    """The rate between hosts in words: never a measured one."""
    origin = "nameplate of 400 Gbit/s a GPU" if hosts.between == NAMEPLATE * GB else "given"
    return f"{origin}, never measured"


def planned(
    runs: Sequence[Path],
    size: Size,
    layout: Layout,
    hosts: Hosts,
    row: int | None = None,
    accumulate: int = 1,
    overlap_grads: bool = False,
    overlap_weights: bool = False,
) -> Table:
    """The predicted step by part. ``runs``: the kept run whose profile is scaled, then others for rates that it lacks.

    Raises PatchlaneError for a run that cannot be a base, ValueError for a layout that cannot be predicted.
    """
    read = [measured.read(run) for run in runs]
    source, rates = read[0], links.first(read)
    if row not in (None, source.job.row):
        raise PatchlaneError(f"{source.run.name} has rows of {source.job.row} tokens, not of {row}", NO_SEQUENCE)
    job = Job(
        size,
        layout,
        source.job.row,
        accumulate,
        source.job.recompute,
        overlap_grads=overlap_grads,
        overlap_weights=overlap_weights,
    )
    return _table(source, rates, predict(source, rates, job, hosts), hosts)


def _table(source: Measured, rates: Mapping[str, Rate], found: Prediction, hosts: Hosts) -> Table:
    layout, name = found.job.layout, source.run.name
    gpus = layout.data * layout.pipeline
    table = Table(
        title=f"Plan, a prediction and no measurement: a step of {found.job.size.name} on {gpus} GPUs, "
        f"data {layout.data}, expert {layout.expert}, pipeline {layout.pipeline}, "
        f"{layout.micro_batch} x {found.job.row} x {found.job.accumulate}"
    )
    table.add_column("what")
    table.add_column("predicted", justify="right")
    table.add_column("from")
    kinds = sorted(((k, s) for k, s in found.kinds.items() if k != OPTIMIZER), key=lambda kind: -kind[1])
    for kind, seconds in kinds[:SHOWN]:
        table.add_row(f"compute: {kind}", _ms(seconds), PROFILE)
    table.add_row("compute: other kinds", _ms(sum(seconds for _, seconds in kinds[SHOWN:])), PROFILE)
    origins = {OPTIMIZER: PROFILE, HOST: f"{PROFILE}: no kernel ran", BUBBLE: "the slowest stage's micro-batch"}
    for part, seconds in found.parts.items():
        if part == COMPUTE or not (seconds or found.hidden.get(part)):
            continue
        hidden = f", {_ms(found.hidden[part])} more hidden" if found.hidden.get(part) else ""
        table.add_row(part, _ms(seconds), origins.get(part, "volume over rate") + hidden)
    table.add_row("a step", _ms(found.seconds), "their sum", end_section=True)
    ratio = efficiency(source, rates, found, hosts)
    table.add_row("tokens/s/GPU", f"{found.tokens_per_s_per_gpu:,.0f}", "")
    table.add_row("of the receipt's layout", f"{ratio:.1%}", f"{source.run.gpus} GPUs: {name}", end_section=True)
    for what in KERNELS:
        if what in rates and (found.parts[what] or found.hidden.get(what)):
            row = f"{rates[what].bytes_per_second / GB:.0f} GB/s", f"measured inside a host: {rates[what].receipt}"
            table.add_row(f"rate of {what}", *row)
    if gpus > hosts.gpus:
        table.add_row("rate between hosts, a GPU", f"{hosts.between / GB:g} GB/s", said_between(hosts))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
