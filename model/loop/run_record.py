"""``run.json``, written before a run's first step: code, patches, data, recipe, host capability."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
from typing import Any

from model.data.rows.blend import Blend
from model.definition.recipes import Recipe
from model.families.family import Family
from model.kinds import catalogue
from model.kinds.path import Choice
from model.kinds.run import Run
from model.patched import lock, seams
from model.patched.overlay import Overlay
from patchlane.base.errors import CannotTestHere
from reproducers.probe import stamp
from reproducers.record.schema import ROOT
from reproducers.upstream import git

FILE = "run.json"


@dataclasses.dataclass(frozen=True)
class Batching:
    """How a step's rows are computed: may change on resume, and changes losses by rounding or the step's size."""

    micro_batch: int
    accumulate: int
    ranks: int  # data-parallel ones
    bf16: bool

    def changes(self, before: dict[str, Any]) -> dict[str, tuple[int, int]]:
        """{field: (before, now)} of what differs from ``before``, another's ``asdict``; empty for an empty one."""
        now = dataclasses.asdict(self)
        return {name: (before[name], value) for name, value in now.items() if before.get(name, value) != value}


def changes(now: dict[str, Any], before: dict[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    """{field: (before, now)} of hyperparameters that differ, None where one is not set; empty without ``before``."""
    fields = [] if before is None else [*now, *(field for field in before if field not in now)]
    both = {field: ((before or {}).get(field), now.get(field)) for field in fields}
    return {field: pair for field, pair in both.items() if pair[0] != pair[1]}


def commit() -> dict[str, Any] | None:
    """This project's commit and whether files differ from it; None outside a clone."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return {"sha": head, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*words: str) -> str | None:
    try:
        done = git.git(*words, cwd=ROOT)
    except CannotTestHere:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def choices(chosen: dict[str, Choice], run: Run) -> dict[str, str]:
    """{kind: path} of a run, and when the host reads a step's figures; these decide which seams it needs."""
    return {kind: choice.name for kind, choice in chosen.items()} | {"reads": "late" if run.late_reads else "at once"}


def of(
    size: Family, recipe: Recipe, run: Run, ranks: int, data: Blend, built: Overlay, chosen: dict[str, Choice]
) -> dict[str, Any]:
    """The content of run.json; it names the host's capabilities, never the host."""
    return {
        "schema_version": 1,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "project": commit(),
        "size": size.model_dump(mode="json"),
        "recipe": recipe.model_dump(mode="json"),
        "run": run.model_dump(mode="json"),
        "ranks": ranks,
        "paths": {kind: dataclasses.asdict(path) for kind, path in chosen.items()},
        "patches": lock.as_record(built),
        "seams": seams.as_record(catalogue.seams(choices(chosen, run)), [built.root(name) for name in built.trees]),
        "stack": built.stack.name,
        "needs": built.stack.needs[built.device],
        **_data(data),
        "host": {"alias": os.environ.get("PATCHLANE_HOST", "local"), **stamp.capability()},
        "versions": stamp.versions(),
    }


def _data(blend: Blend) -> dict[str, Any]:
    """The dataset; of a blend its digest and each dataset with name and weight. Further held-out sets, if any."""
    every = [
        {**said, **part.dataset.record.corpus.model_dump(mode="json")}
        for said, part in zip(blend.described(), blend.parts, strict=True)
    ]
    found: dict[str, Any] = {"dataset": {"digest": blend.digest}}
    if len(every) > 1:
        found["datasets"] = every
    else:
        found["dataset"] |= blend.record.corpus.model_dump(mode="json")
    if blend.held_out:
        held = ({"name": part.name, "digest": part.dataset.record.digest} for part in blend.held_out)
        found["held_out"] = [
            said | part.dataset.record.corpus.model_dump(mode="json")
            for said, part in zip(held, blend.held_out, strict=True)
        ]
    return found


def text(statement: dict[str, Any]) -> bytes:
    return (json.dumps(statement, indent=1, ensure_ascii=False) + "\n").encode()
