"""Proof that the patches run: the lines of them that a run's first steps executed, by layer.

``python -m model.coverage RUN`` prints a run directory's table; exit 1 if a pack that the model consumes never ran.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import os
import platform
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from model.patched.overlay import Overlay
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.probe.codehash import nested
from reproducers.probe.watch import Ranges, Watch
from reproducers.training.coverage import BUILD, OUTSIDE, CompiledKernel, CoverageRecord, HunkCoverage, PackCoverage
from reproducers.upstream.patching import Hunk
from reproducers.upstream.store import Tree

if TYPE_CHECKING:
    from torch import nn

    from model.patched.proof.places import PlaceHooks

STEPS = 2  # the first compiles; the second shows the cost of watching


class Coverage:
    """Watches the first ``steps`` steps of a run and the first of each of ``OCCASIONS``; else it is not there.

    Build and wrap the model inside ``with coverage.building():`` (some patches act only there), ``attach`` it, and give
    every step to ``with coverage.step():``, from its forward to its optimizer.
    """

    def __init__(self, overlay: Overlay, steps: int = STEPS, wanted: Collection[str] = ()) -> None:
        """``wanted``: packs that the run has to execute (``model.patched.overlay.wanted``)."""
        self._overlay, self._steps, self._wanted = overlay, steps, wanted
        self._tree = Path(os.path.commonpath([tree.path.resolve() for tree in overlay.trees.values()]))
        self._hunks = {
            applied.pack.id: [_placed(hunk, tree, self._tree) for hunk in applied.hunks(tree.path)]
            for name, tree in overlay.trees.items()
            for applied in overlay.applied.get(name, [])
        }
        self._watch = Watch(self._tree, _ranges(self._hunks))
        self._running = self._stopped = False
        self._occasions: set[str] = set()  # those that were watched
        self.news = False  # whether there is more to record than ``record`` has told
        self._places: PlaceHooks | None = None
        self.seconds_building = 0.0
        self.seconds_watched: list[float] = []

    @property
    def watched(self) -> bool:
        """Whether the steps to watch are over."""
        return self._stopped

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Watch imports and all that is made before the first step, as place "build"."""
        started = time.perf_counter()
        with self._watching(BUILD):
            yield
        self.seconds_building += time.perf_counter() - started

    def attach(self, model: nn.Module) -> None:
        """Have the layers of ``model``, wrapped or not, tell where each step is."""
        from model.patched.proof.places import PlaceHooks

        self._places = PlaceHooks(model, self._watch.at)

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
    def once(self, occasion: str) -> Iterator[None]:
        """One of ``OCCASIONS``: its first time is watched, as the place of this name."""
        if occasion in self._occasions:
            yield
            return
        self._occasions.add(occasion)
        with self._watching(occasion):
            yield
        self.news = True
        if self._stopped:
            self._stop()

    @contextlib.contextmanager
    def _watching(self, place: str) -> Iterator[None]:
        """Watch the block; if it raises, stop watching at once."""
        if self._running:
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
        self._running = True

    def _stop(self) -> None:
        if self._places is not None:
            self._places.remove()
        if self._running:
            self._watch.stop()
        self._running, self._stopped, self.news = False, True, True

    def record(self) -> CoverageRecord:
        """The lines seen and the step times so far."""
        self.news = False
        report = self._watch.report()
        packs = {
            applied.pack.id: PackCoverage(
                title=applied.pack.title,
                consumed_by=[f"{self._overlay.device} by default"] if applied.pack.id in self._wanted else [],
                hunks=[self._hunk(hunk, report) for hunk in self._hunks[applied.pack.id]],
            )
            for applied in self._overlay.packs
        }
        foreign = [
            f"{self._short(file)}:{name}"
            for file, watched in report.items()
            for name, shas in watched["functions"].items()
            if name != "<module>" and not set(shas["process"]) <= set(shas["tree"])
        ]
        return CoverageRecord(
            device=self._overlay.device,
            python=platform.python_version(),
            packs=packs,
            foreign=foreign,
            seconds_building=self.seconds_building,
            seconds_watched=self.seconds_watched,
        )

    def _short(self, file: str) -> str:
        """A watched file's path inside its own tree."""
        roots = [tree.path.resolve() for tree in self._overlay.trees.values()]
        path = self._tree / file
        return next(path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))

    def _hunk(self, hunk: Hunk, report: dict[str, Any]) -> HunkCoverage:
        watched, path = report[hunk.path], self._tree / hunk.path
        hit = {n for n in watched["lines"] if hunk.first <= n <= hunk.last}
        inside = _inside_functions(path)
        ran = hit & inside
        lines = sorted(ran or hit)
        kernels = [c for c in watched["compiled"] if c["first"] <= hunk.last and hunk.first <= c["last"]]
        places = {place: files[str(path)] for place, files in self._watch.places.items() if str(path) in files}
        by_place = {place: sorted(executed.intersection(lines)) for place, executed in places.items()}
        of = {k["first"]: [place for place, executed in places.items() if k["first"] in executed] for k in kernels}
        return HunkCoverage(
            file=self._short(hunk.path),
            first=hunk.first,
            last=hunk.last,
            state="ran" if ran else "compiled" if kernels else "loaded" if lines else "never",
            lines=lines,
            places={place: executed for place, executed in by_place.items() if executed},
            compiled=[CompiledKernel(**k, places=of[k["first"]]) for k in kernels],
            at_import=path.suffix == ".py" and not inside.intersection(range(hunk.first, hunk.last + 1)),
        )


def _placed(hunk: Hunk, tree: Tree, root: Path) -> Hunk:
    """The hunk with its path from ``root``, the folder of all merged trees."""
    return Hunk(hunk.name, (tree.path.resolve() / hunk.path).relative_to(root).as_posix(), hunk.first, hunk.last)


def _ranges(hunks: dict[str, list[Hunk]]) -> Ranges:
    ranges: Ranges = {}
    for hunk in itertools.chain(*hunks.values()):
        ranges.setdefault(hunk.path, []).append([hunk.first, hunk.last])
    return ranges


@functools.cache
def _inside_functions(path: Path) -> set[int]:
    """The lines of a source file that belong to a function, which an import does not run."""
    if path.suffix != ".py":
        return set()
    tree = ast.parse(path.read_bytes())
    code: CodeType = compile(tree, str(path), "exec", dont_inherit=True)
    lines = {n or 0 for part in nested(code) if part.co_flags & inspect.CO_NEWLOCALS for _, _, n in part.co_lines()}
    return lines - {n for node in ast.walk(tree) for n in _decorators(node)}


def _decorators(node: ast.AST) -> range:
    """The lines of a function's decorators: the import runs them, though a function's code begins with the first."""
    decorators = getattr(node, "decorator_list", None)
    return range(decorators[0].lineno, node.lineno) if decorators else range(0)  # type: ignore[attr-defined]


def require(record: CoverageRecord, overlay: Overlay, device: str) -> None:
    """Raise PatchlaneError if a pack of the overlay runs by default on ``device`` and nothing of its patch executed.

    The error names the pack, and each hunk as file:line.
    """
    packs = {applied.pack.id for applied in overlay.packs}
    rows = []
    for name, pack in record.missing(device).items():
        if name in packs:
            hunks = "".join(f"\n    {hunk.where} ({hunk.state})" for hunk in pack.hunks)
            rows.append(f"{name}, which runs by default, never ran:{hunks}")
    rows += [f"{name} is applied and not in coverage.json" for name in sorted(packs - set(record.packs))]
    if rows:
        kept = ",".join(sorted(packs - set(record.missing(device)))) or "none"
        raise PatchlaneError(
            "patches that the model needs did not run:\n  " + "\n  ".join(rows),
            f"the path that runs them, as packs/README.md has it; or --patches {kept}",
        )
