"""The table of a run's coverage: pack, file:line, executed by layer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model.records.records import Train
from reproducers.training.coverage import CoverageRecord, HunkCoverage, PackCoverage

if TYPE_CHECKING:
    from rich.table import Table

IDLE = ("never", "imported only")


def executed_by(hunk: HunkCoverage) -> str:
    """ "5 dsa, 5 dsa backward: 12 of 20 lines"; for kernels, their compiler."""
    if not hunk.executed:
        return IDLE[hunk.state == "loaded"]
    parts = []
    if hunk.lines:
        parts.append(f"{', '.join(hunk.places)}: {len(hunk.lines)} of {hunk.last - hunk.first + 1} lines")
    for kernel in hunk.compiled:
        parts.append(f"{', '.join(kernel.places) or 'compiled'}: {kernel.compiler} kernel of line {kernel.first}")
    return "\n".join(parts)


def rows(pack: PackCoverage) -> list[tuple[str, str]]:
    """(file:lines, executed by) of each hunk; hunks of a file that did not execute share a row."""
    idle: dict[tuple[str, str], list[str]] = {}
    ran = []
    for hunk in pack.hunks:
        if hunk.executed:
            ran.append((hunk.where, executed_by(hunk)))
        else:
            idle.setdefault((hunk.file, executed_by(hunk)), []).append(f"{hunk.first}-{hunk.last}")
    return ran + [(f"{file}:{','.join(lines)}", state) for (file, state), lines in idle.items()]


def table(record: CoverageRecord) -> Table:
    """A row for each hunk that ran, and a row a file for the others."""
    from rich.table import Table

    grid = Table("pack", "file:lines", "executed by layer")
    grid.columns[1].overflow = "fold"
    for name, pack in record.packs.items():
        lost = name in record.missing()
        for number, (where, state) in enumerate(rows(pack)):
            style = "red" if lost else "dim" if state in IDLE else None
            grid.add_row(name if number == 0 else "", where, state, style=style)
    return grid


def cost(record: CoverageRecord, steps: Sequence[Train]) -> str:
    """The cost of watching, in one line, beside the median of the run's ``steps`` after the watched ones."""
    watched = ", ".join(f"{s:.2f}" for s in record.seconds_watched)
    total = record.seconds_building + sum(record.seconds_watched)
    after = [step.seconds.total for step in steps[len(record.seconds_watched) :]]
    off = f"{statistics.median(after):.2f} s a step (median of {len(after)})" if after else "not measured"
    return (
        f"{total:.1f} s watched (building {record.seconds_building:.2f} s, steps {watched} s); with watching off: {off}"
    )
