"""Tables of a size: layers, parameters by part, FLOPs by both formulas, memory of each rank."""

from __future__ import annotations

from rich.table import Table

from model.definition import flops, memory, parameters, traffic
from model.definition.memory import Layout
from model.families import pattern
from model.families.family import Family
from model.kinds.ends import WORDS


def layer_map(size: Family) -> Table:
    """Each kind's symbol, count and layer numbers, one row a kind."""
    table = Table(title=f"{size.name}: {len(size.layers)} layers, hidden {size.hidden}, vocabulary {size.vocab}")
    for column in ("kind", "symbol", "count", "layers (1-based)"):
        table.add_column(column)
    for name, kind in size.kinds.items():
        numbers = size.numbers(name)
        table.add_row(kind.label, kind.symbol, str(len(numbers)), " ".join(map(str, numbers)))
    for row, said in size.remarks.items():
        table.add_row(row, "", str(len(said)), " ".join(said))
    symbols = pattern.megatron_pattern(size.layers, size.mtp, size.mtp_depths)
    table.add_row(f"{size.upstream} pattern", "", "", symbols)
    return table


def parameter_table(size: Family) -> Table:
    table = Table(title="Parameters")
    table.add_column("part")
    table.add_column("count", justify="right")
    table.add_column("share", justify="right")
    total = parameters.total(size)
    for part, count in parameters.by_part(size).items():
        table.add_row(part, f"{count:,}", f"{count / total:.2%}")
    table.add_row("total", f"{total:,}", "", end_section=True)
    main, active = parameters.total(size, mtp=False), parameters.active(size, mtp=False)
    for what, count in (
        ("active for one token", parameters.active(size)),
        ("without MTP", main),
        ("active without MTP", active),
        ("active without MTP and embedding", active - size.entrance.counts()[WORDS]),
    ):
        table.add_row(what, f"{count:,}", f"{count / total:.2%}")
    return table


def flops_table(size: Family) -> Table:
    table = Table(title=f"FLOPs per token of a training step, sequence {size.sequence}")
    table.add_column("what")
    table.add_column("GFLOP", justify="right")
    for part, value in flops.built(size).items():
        table.add_row(part, f"{value / 1e9:.3f}")
    table.add_row("matrix products built", f"{flops.total(size) / 1e9:.3f}", end_section=True)
    table.add_row(f"{size.upstream} hybrid_flops", f"{flops.megatron(size) / 1e9:.3f}")
    return table


def memory_table(size: Family, layout: Layout, sequence: int | None = None, optimizer: str = "adamw") -> Table:
    """GiB of a rank of each stage. ``sequence``: tokens of a row, the size's for None."""
    checkpoint = memory.checkpoint_gib(size, optimizer)
    table = Table(
        title=f"Estimated GiB of a rank: data {layout.data}, expert {layout.expert}, pipeline {layout.pipeline}, "
        f"micro-batch {layout.micro_batch} x {sequence or size.sequence}{', Muon' * (optimizer == 'muon')}; "
        f"a checkpoint has {checkpoint:.1f}, written in {checkpoint / memory.WRITTEN_GIB_PER_S:.0f} s beside the steps "
        f"where the disk takes {memory.WRITTEN_GIB_PER_S:.2f} GiB/s"
    )
    for column in ("stage", "layers", "weights", "gradients", "optimizer", "activations", "total"):
        table.add_column(column, justify="right")
    for stage, layers in enumerate(memory.stages(size, layout)):
        parts = memory.estimate(size, layout, stage, sequence, optimizer)
        cells = [f"{value:.1f}" for value in (*parts.values(), sum(parts.values()))]
        table.add_row(str(stage), f"{layers[0].number}–{layers[-1].number}", *cells)
    return table


def largest_table(found: list[tuple[Layout, float]], gib: float) -> Table:
    """What ``memory.largest`` found for GPUs of ``gib``; the first is the one that is proposed."""
    gpus = found[0][0].data * found[0][0].pipeline
    table = Table(
        title=f"Layouts for {gpus} GPUs of {gib:g} GiB, each with the most rows that fit {memory.FILLED:.0%} of it by "
        "the estimate; data parallelism alone first"
    )
    for column in ("data", "expert", "pipeline", "rows of a micro-batch", "GiB of the fullest rank"):
        table.add_column(column, justify="right")
    for layout, needed in found:
        numbers = (layout.data, layout.expert, layout.pipeline, layout.micro_batch)
        table.add_row(*map(str, numbers), f"{needed:.1f}")
    return table


def traffic_table(size: Family, layout: Layout, sequence: int | None = None) -> Table:
    """GB (1e9 bytes) that a rank of each stage sends in a step of one micro-batch."""
    table = Table(title="GB that a rank sends in a step of one micro-batch, by stage")
    stages = [traffic.volumes(size, layout, stage, sequence) for stage in range(layout.pipeline)]
    for column in ("collective", *map(str, range(layout.pipeline))):
        table.add_column(column, justify="left" if column == "collective" else "right")
    for name in stages[0]:
        table.add_row(name, *(f"{volumes[name] / traffic.GB:.2f}" for volumes in stages))
    return table
