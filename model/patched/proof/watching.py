"""Proof that the patches run: which of their lines a run's first steps executed, in which layer.

``python -m model.coverage RUN`` prints the table of a run directory, exit 1 where a pack that the model is said to
consume never ran.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from model.patched.overlay import Overlay
from model.patched.proof.record import BUILD, OUTSIDE, Compiled, HunkSeen, PackSeen, Record
from reproducers.base.errors import CannotTestHere, PatchlaneError
from reproducers.probe.codehash import nested
from reproducers.probe.watch import Ranges, Watch
from reproducers.upstream.patching import Hunk
from reproducers.upstream.store import Tree

if TYPE_CHECKING:
    from torch import nn

    from model.patched.proof.places import Places

STEPS = 2  # the first compiles; the second shows what watching costs a step


class Coverage:
    """Watches the first ``steps`` steps of a run; after these it removes itself.

    Build and wrap the model inside ``with coverage.building():`` (some patches act only there), ``attach`` it, and give
    every step to ``with coverage.step():``, from its forward to its optimizer.
    """

    def __init__(self, overlay: Overlay, steps: int = STEPS) -> None:
        self._overlay, self._steps = overlay, steps
        self._tree = Path(os.path.commonpath([tree.path.resolve() for tree in overlay.trees.values()]))
        self._hunks = {
            one.pack.id: [_placed(hunk, tree, self._tree) for hunk in one.hunks(tree.path)]
            for name, tree in overlay.trees.items()
            for one in overlay.applied.get(name, [])
        }
        self._watch = Watch(self._tree, _ranges(self._hunks))
        self._started = self._stopped = False
        self._places: Places | None = None
        self.seconds_building = 0.0
        self.seconds_watched: list[float] = []

    @property
    def watched(self) -> bool:
        """Whether the steps to watch are over: ``record`` is complete."""
        return self._stopped

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Around imports and all that is made before the first step; its place is "build"."""
        started = time.perf_counter()
        with self._watching(BUILD):
            yield
        self.seconds_building += time.perf_counter() - started

    def attach(self, model: nn.Module) -> None:
        """Have the model's layers tell where each step is: the whole model, wrapped or not."""
        from model.patched.proof.places import Places

        self._places = Places(model, self._watch.at)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One training step."""
        if self._stopped:
            yield
            return
        started = time.perf_counter()
        with self._watching(OUTSIDE):
            yield
        self.seconds_watched.append(time.perf_counter() - started)
        if len(self.seconds_watched) == self._steps:
            self._stop()

    @contextlib.contextmanager
    def _watching(self, place: str) -> Iterator[None]:
        """See what runs inside; all is undone at once when it raises."""
        if self._started:
            self._watch.resume()
        else:
            self._start()
        self._watch.hook_triton()
        self._watch.at(place)
        try:
            yield
        except BaseException:
            self._stop()
            raise
        self._watch.pause()

    def _start(self) -> None:
        try:
            self._watch.start()
        except ValueError as error:  # sys.monitoring: the tool id is in use
            raise CannotTestHere(f"lines cannot be watched: {error}", "end the debugger or profiler") from error
        self._started = True

    def _stop(self) -> None:
        if self._places is not None:
            self._places.remove()
        if not self._stopped:
            self._watch.stop()
        self._stopped = True

    def record(self) -> Record:
        """What was seen, with the step times so far."""
        report = self._watch.report()
        packs = {
            one.pack.id: PackSeen(
                title=one.pack.title,
                consumed_by=one.pack.consumed_by,
                hunks=[self._seen(hunk, report) for hunk in self._hunks[one.pack.id]],
            )
            for one in self._overlay.packs
        }
        foreign = [
            f"{self._short(file)}:{name}"
            for file, seen in report.items()
            for name, shas in seen["functions"].items()
            if name != "<module>" and not set(shas["process"]) <= set(shas["tree"])
        ]
        return Record(
            device=self._overlay.device, python=platform.python_version(), packs=packs, foreign=foreign,
            seconds_building=self.seconds_building, seconds_watched=self.seconds_watched,
        )  # fmt: skip

    def _short(self, file: str) -> str:
        """A watched file's path inside its own tree."""
        roots = [tree.path.resolve() for tree in self._overlay.trees.values()]
        path = self._tree / file
        return next(path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))

    def _seen(self, hunk: Hunk, report: dict[str, Any]) -> HunkSeen:
        seen, path = report[hunk.path], self._tree / hunk.path
        hit = {n for n in seen["lines"] if hunk.first <= n <= hunk.last}
        inside = _inside_functions(path)
        ran = hit & inside
        lines = sorted(ran or hit)
        kernels = [c for c in seen["compiled"] if c["first"] <= hunk.last and hunk.first <= c["last"]]
        places = {place: found[str(path)] for place, found in self._watch.places.items() if str(path) in found}
        by_place = {place: sorted(found.intersection(lines)) for place, found in places.items()}
        of = {one["first"]: [place for place, found in places.items() if one["first"] in found] for one in kernels}
        return HunkSeen(
            file=self._short(hunk.path), first=hunk.first, last=hunk.last,
            state="ran" if ran else "compiled" if kernels else "loaded" if lines else "never",
            lines=lines, places={place: found for place, found in by_place.items() if found},
            compiled=[Compiled(**one, places=of[one["first"]]) for one in kernels],
            at_import=path.suffix == ".py" and not inside.intersection(range(hunk.first, hunk.last + 1)),
        )  # fmt: skip


def _placed(hunk: Hunk, tree: Tree, root: Path) -> Hunk:
    """The hunk with its path from the folder that all merged trees lie in."""
    return Hunk(hunk.name, (tree.path.resolve() / hunk.path).relative_to(root).as_posix(), hunk.first, hunk.last)


def _ranges(hunks: dict[str, list[Hunk]]) -> Ranges:
    found: Ranges = {}
    for hunk in (hunk for some in hunks.values() for hunk in some):
        found.setdefault(hunk.path, []).append([hunk.first, hunk.last])
    return found


@functools.cache
def _inside_functions(path: Path) -> set[int]:
    """The lines of a source file that belong to a function: those that its import does not run."""
    if path.suffix != ".py":
        return set()
    code: CodeType = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    return {n or 0 for one in nested(code) if one.co_flags & inspect.CO_NEWLOCALS for _, _, n in one.co_lines()}


def require(record: Record, overlay: Overlay, device: str) -> None:
    """PatchlaneError when a pack of the overlay is consumed on ``device`` and nothing of its patch executed.

    Names pack, who should consume it, and each hunk as file:line.
    """
    ours = {one.pack.id for one in overlay.packs}
    rows = []
    for name, pack in record.missing(device).items():
        if name in ours:
            hunks = "".join(f"\n    {hunk.where} ({hunk.state})" for hunk in pack.hunks)
            rows.append(f"{name} is consumed by {'; '.join(pack.wanted_on(device))}, yet never ran:{hunks}")
    rows += [f"{name} is applied and not in coverage.json" for name in sorted(ours - set(record.packs))]
    if rows:
        kept = ",".join(sorted(ours - set(record.missing(device)))) or "none"
        raise PatchlaneError(
            "patches that the model is said to need did not run:\n  " + "\n  ".join(rows),
            f"choose the path that needs them; or --patches {kept}; or fix consumed_by in the pack's pack.yaml",
        )
