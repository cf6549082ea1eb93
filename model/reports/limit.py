"""The distance to the limit of a profiled run, as data and as tables, from its profile.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from model.profile import limits
from model.profile.bottlenecks import PHASES, Profile, ceiling_rows, markdown, phase_rows
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz

FILE = "profile.json"
NEW = "python -m model.train … --profile 11:13, on a GPU in bf16"


def read(run: Path) -> Profile | None:
    """The run's profile; None without one. Raises PatchlaneError if it cannot be read."""
    try:
        return Profile.model_validate_json(xz.data(run / FILE))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise PatchlaneError(f"{run / FILE}: {error}", "move the file away, or profile the run again") from error


def page(run: Path) -> str:
    """``profile.md`` of a profiled run. Raises PatchlaneError without a profile."""
    profile = read(run)
    if profile is None:
        raise PatchlaneError(f"{run} has no {FILE}", NEW)
    return markdown(profile)


def data(run: Path) -> dict[str, Any]:
    """{"limit": …} of each rank: phases, ceilings, kinds of work with their ratio. Empty without a profile of them."""
    profile = read(run)
    if profile is None or not any(rank.phases or rank.limits for rank in profile.ranks):
        return {}
    ranks = []
    for rank in profile.ranks:
        whole = limits.total(rank.limits)
        reached = rank.ceilings
        ranks.append(
            {
                "phases": [phase.model_dump() for phase in rank.phases],
                "flops_per_second": reached.flops_per_second if reached else None,
                "bytes_per_second": reached.bytes_per_second if reached else None,
                "skipped": reached.skipped if reached else None,
                "kinds": [limit.model_dump() | {"ratio": limit.ratio} for limit in rank.limits],
                "counted": whole.model_dump() | {"ratio": whole.ratio} if whole else None,
            }
        )
    return {"limit": {"device": profile.device, "step_seconds": profile.step_seconds, "ranks": ranks}}


def shown(run: Path) -> list[Table | str]:
    """Tables of rank 0's kinds of work, of all ranks' ceilings and of their phases; a line where there are none."""
    profile = read(run)
    if profile is None:
        return []
    first = profile.ranks[0] if profile.ranks else None
    if first is None or first.ceilings is None:
        return [f"{FILE} is from before ceilings were measured: {NEW} has the distance to the limit"]
    found: list[Table | str] = []
    if first.limits:
        steps = f"steps {profile.first_step} to {profile.first_step + profile.steps - 1}, rank 0"
        table = _table(limits.HEAD, limits.rows(first.limits), f"distance to the limit: {steps}")
        table.caption = escape(
            f"a step: {profile.step_seconds * 1e3:.2f} ms under the profiler; {limits.said(first.ceilings)}"
        )
        found.append(table)
    else:
        found.append(f"no distance to the limit: {limits.said(first.ceilings)}")
    for rows, title in ((ceiling_rows(profile.ranks), "every rank's limit"), (phase_rows(profile.ranks), PHASES)):
        if rows:
            found.append(_table(rows[0], rows[1:], title))
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    table = Table(title=escape(title))
    for name in head:
        table.add_column(name, justify="left" if name in ("kind of work", "by") else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
