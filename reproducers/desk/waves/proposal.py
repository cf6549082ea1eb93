"""The proposal of waves, as text, JSON and calendar."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproducers.base.errors import PatchlaneError
from reproducers.record.schema import load_packs

if TYPE_CHECKING:
    from reproducers.desk.blockers import Blocker
    from reproducers.desk.waves.plan import Explanation, Plan, Wave


def plan_of(packs_root: Path, receipts: Path, today: datetime.date, size: int, gap: int) -> Plan:
    """The plan of the packs and receipts in two folders; the manifest is built from them, not read."""
    from reproducers.desk.waves.classes import bug_checks, wave_class
    from reproducers.desk.waves.plan import propose
    from reproducers.evidence import manifest

    packs = load_packs(packs_root)
    entries = manifest.build(packs, receipts)
    classes = {pack.id: wave_class(pack, bug_checks(entries[pack.id], receipts)) for pack in packs}
    return propose(packs, entries, classes, today, size, gap)


def as_json(plan: Plan, waves: Sequence[Wave]) -> str:
    """The plan as JSON text."""
    kinds = {item.pack.id: item.kind for item in plan.explanations}
    content = {
        "schema_version": 1,
        "date": str(plan.asked),
        "size": plan.size,
        "gap": plan.gap,
        "last_filing": {"date": str(plan.filed.date), "packs": plan.filed.packs} if plan.filed else None,
        "waves": [
            {
                "number": wave.number,
                "date": str(wave.date),
                "why": wave.why,
                "repositories": wave.repositories,
                "packs": [
                    {"id": pack.id, "title": pack.title, "class": kinds[pack.id], "as": pack.filing.decision}
                    for pack in wave.packs
                ],
            }
            for wave in waves
        ],
        "explanations": [
            {
                "pack": item.pack.id,
                "wave": item.wave,
                "class": item.kind,
                "why": item.why,
                "blockers": _blockers(item.blockers),
                "by_then": _blockers(item.by_then),
            }
            for item in plan.explanations
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _blockers(found: Sequence[Blocker]) -> list[dict[str, Any]]:
    return [{"rule": blocker.rule, "what": blocker.what, "remedy": blocker.remedy} for blocker in found]


def show(plan: Plan, waves: Sequence[Wave]) -> None:
    """Print the waves as tables and one line of explanation a pack."""
    from rich.console import Console
    from rich.table import Column, Table

    out = Console(highlight=False, markup=False)
    kinds = {item.pack.id: item.kind for item in plan.explanations}
    for wave in waves:
        out.print(f"Wave {wave.number}: {wave.date:%A} {wave.date} ({wave.why})", soft_wrap=True)
        table = Table("pack", "class", "as", "repository", Column("title", overflow="fold"))
        for pack in wave.packs:
            table.add_row(pack.id, kinds[pack.id], pack.filing.decision, pack.upstream.repo, pack.title)
        out.print(table)
    if not plan.waves:
        out.print("Nothing is ready, because:" if plan.explanations else "Nothing is ready: there is no pack.")
    for item in plan.explanations:
        out.print(said(item), soft_wrap=True)


def said(item: Explanation) -> str:
    """One line: in which wave and why, or why in none and what mends it."""
    if item.wave is None:
        return f"{item.pack.id}  out: " + "; ".join(f"{b.what} [fix: {b.remedy}]" for b in item.blockers)
    late = "; ".join(f"{b.what} [fix: {b.remedy}]" for b in item.by_then)
    return f"{item.pack.id}  wave {item.wave}: {item.why}" + (f"; too old by then: {late}" if late else "")


def write_calendar(plan: Plan, waves: Sequence[Wave], path: Path) -> None:
    """Write the waves' iCalendar file; PatchlaneError when there is no wave or the file cannot be written."""
    from reproducers.base.files import write_atomic
    from reproducers.desk.waves.calendar import calendar

    if not waves:  # a calendar without an event is not valid
        print(f"{path} not written: no wave", file=sys.stderr)
        return
    try:
        write_atomic(path, calendar(plan, waves))
    except OSError as error:
        raise PatchlaneError(f"--ics {path}: {error.strerror}", "name a file in a folder that you may write") from error
