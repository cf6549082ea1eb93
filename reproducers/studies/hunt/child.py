"""What the engine starts as an arm: the hunt itself, on one tree, until its time is over. ``--label``: the task."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import logging
import math
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

FIRST_CASES = 4  # of a target in the first round; each round after it has twice as many
SLICE_S = 8.0  # a target's share of the first round, likewise doubled
SHRINK_S = 8.0


class Hunt:
    """One process's hunt. ``rows``: what it tells its parent, a JSON object a line."""

    def __init__(self, task: dict[str, Any], tree: str) -> None:
        from reproducers.studies.hunt import trying
        from reproducers.studies.hunt.targets.target import Target

        self.task, self.tree, self.trying = task, tree, trying
        module = importlib.import_module(task["targets"])
        module.prepare(tree)
        only = task["only"]
        wanted: list[Target] = [t for t in module.TARGETS if only in (None, t.name) and t.name not in task["skip"]]
        self.targets = wanted[task["number"] :: task["jobs"]] if only is None else wanted
        self.deadline = math.inf
        self.known = {tuple(row) for row in task["known"]}  # (target, relation, what) told already

    def tell(self, **row: Any) -> None:
        """One row to the parent."""
        with Path(self.task["rows"]).open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    def run(self) -> None:
        """Rounds over the targets, each longer than the one before, until the time is over."""
        from reproducers.studies.hunt import drawing

        found = {t.name: f for t in self.targets if (f := self._function(t)) is not None}
        self.targets = [t for t in self.targets if t.name in found]
        self.deadline = time.time() + self.task["seconds"]  # imports take no share
        try:
            self._replay(found)
            for number in itertools.count() if self.targets else ():
                for target in self.targets:
                    self._explore(target, found[target.name], number)
        except drawing.Over:
            pass
        self.tell(ended=True)

    def _function(self, target: Any) -> Any:
        module, _, name = target.symbol.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            self.tell(absent=target.name, why=f"{type(error).__name__}: {error}".splitlines()[0])
            return None

    def _replay(self, found: dict[str, Any]) -> None:
        """The cases of the corpus first."""
        targets = {t.name: t for t in self.targets}
        for row in self.task["corpus"]:
            if target := targets.get(row["target"]):
                case = self.trying.Case(**row["case"] | {"weights": tuple(row["case"]["weights"])})
                self._judge(target, found[target.name], case, [row["relation"]])

    def _explore(self, target: Any, function: Any, number: int) -> None:
        """One round of a target: draw, and where a case fails shrink, confirm and tell it; then go on."""
        from reproducers.studies.hunt import drawing
        from reproducers.studies.hunt.targets.target import taken

        asked = ["runs", *self.trying.holding(target)]
        begun, counts = time.time(), Counter[str]()
        end = min(begun + SLICE_S * 2**number, self.deadline)
        self.tell(began=target.name)
        for step in itertools.count():
            failing: list[str] = []

            def fails(case: Any, failing: list[str] = failing) -> bool:
                counts["cases"] += 1
                try:
                    rows = self._new(target, function, case, failing or asked)
                    row = next(iter(rows), None)
                except self.trying.Refused:
                    counts["refused"] += 1
                    return False
                failing[:] = failing or ([row.relation] if row else [])
                return row is not None

            seed = self.task["seed"] * 1_000_003 + number * 1009 + step * 101 + self.task["number"]
            try:
                case = drawing.first(
                    drawing.space(target, taken(target, function)),
                    fails,
                    FIRST_CASES * 2**number,
                    seed,
                    SHRINK_S,
                    lambda: end,
                )
            except drawing.Over:
                case = None
            if case is None:
                break
            self._judge(target, function, case, failing)
        self.tell(tried=target.name, seconds=round(time.time() - begun, 1), **counts)
        if time.time() > self.deadline:
            raise drawing.Over

    def _new(self, target: Any, function: Any, case: Any, asked: list[str]) -> Any:
        """The failures of a case that were not told yet."""
        rows = self.trying.failures(target, function, case, asked, self.tree)
        return (row for row in rows if (target.name, row.relation, row.what) not in self.known)

    def _judge(self, target: Any, function: Any, case: Any, asked: list[str]) -> None:
        """Confirm what fails in a case, and tell it or why not."""
        try:
            rows = [*self._new(target, function, case, asked)]
        except self.trying.Refused:
            return
        if not rows:
            return
        self.known |= {(target.name, row.relation, row.what) for row in rows}
        first, *others = rows
        holds, why = self.trying.confirmed(target, function, case, first, self.tree)
        self.tell(
            **{
                "alarm" if holds else "dismissed": {
                    "target": target.name,
                    "symbol": target.symbol,
                    **dataclasses.asdict(first),
                    "also": {row.what: row.error for row in others},
                    "case": dataclasses.asdict(case),
                }
            },
            why=why,
        )


def main() -> None:
    """Hunt on ``--tree`` for the task's seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tree", required=True)
    parser.add_argument("--needs", action="append", default=[])
    parser.add_argument("--label", required=True)
    given, _ = parser.parse_known_args()
    task = json.loads(given.label)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    sys.path[:0] = [given.tree, *given.needs]
    import torch

    torch.set_num_threads(1)
    Hunt(task, given.tree).run()


if __name__ == "__main__":
    main()
