"""The one way a reproducer talks: import upstream from the given tree, measure, record, say what was seen.

``main(reproduce, pack=5, package="mamba_ssm")`` prints the stamp (JSON) first and the observation record (JSON) last.
The probe is never told whether its tree is patched. Standard library only; ``export`` inlines it into a single file.
Exit status of an arm: 0 when it decided (bug or healthy), 1 when it failed in some other way, 2 usage, 77 when it
cannot test here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
import traceback
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from reproducers.observe import CannotTest, Check, Observations, Signature, bits_sha256, judge_error
from reproducers.ranks import Rank
from reproducers.ranks import run as run_ranks
from reproducers.stamp import capability, file_sha256, versions
from reproducers.watch import Watch

__all__ = ["CannotTest", "Probe", "Signature", "main"]
T = TypeVar("T")


class Probe:
    """One arm's notebook. Attributes: ``tree`` (import root), ``lane`` ("cpu" or "cuda"), ``seed``."""

    def __init__(self, package: str, tree: Path, lane: str, seed: int, watch: Watch) -> None:
        self.package, self.tree, self.lane, self.seed = package, tree, lane, seed
        self._watch = watch
        self.rank = Rank()
        self.observations = Observations()

    def upstream(self, name: str) -> types.ModuleType:
        """Import upstream module ``name`` from the tree.

        Raises CannotTest when the tree has no such module or a dependency is missing, RuntimeError when the code
        came from anywhere but the tree. Every other error propagates: it is a different failure.
        """
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or str(error)
            if missing.split(".")[0] == self.package:
                raise CannotTest(f"this tree has no module {missing}") from error
            raise CannotTest(f"dependency {missing} is not installed", "python -m reproducers.doctor") from error
        self._watch.hook_triton()
        self.check_origin()
        return module

    def namespace(self, package: str | None = None) -> None:
        """Register a package without running its ``__init__`` (which may need compiled extensions).

        By default the package under test, from the tree; otherwise one that it needs, from wherever it is found.
        """
        name = package or self.package
        root = _locate(name, self.tree if name == self.package else None) / name
        module = types.ModuleType(name)
        module.__path__ = [str(root)]
        sys.modules[name] = module

    def check_origin(self) -> None:
        """Refuse to go on if any module of the package under test was imported from outside the tree."""
        tree = self.tree.resolve()
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None)
            if name.split(".")[0] != self.package or not origin:
                continue
            if not Path(origin).resolve().is_relative_to(tree):
                raise RuntimeError(f"{name} was imported from {origin}, not from the tree under test {tree}")

    def triton_interpreter(self) -> None:
        """CPU lane: run Triton kernels under its interpreter; call before the first ``upstream``."""
        lane = importlib.import_module("reproducers.lane_triton")
        lane.enable()

    def megatron_cpu(self, **parallel: int) -> None:
        """Start Megatron-Core in this rank (a world of one outside ``ranks``), on the CPU lane with stand-ins for CUDA
        names; serves both lanes.

        Call before the first ``upstream``; ``parallel`` goes to ``initialize_model_parallel``.
        """
        lane = importlib.import_module("reproducers.lane_megatron")
        lane.enable(self.lane)
        lane.start(self.upstream, self.seed, self.rank, **parallel)

    def ranks(self, world: int, work: Callable[[int], None]) -> None:
        """Run ``work(rank)`` in ``world`` forked processes; their checks and executed lines join this arm's.

        ``work`` calls ``megatron_cpu`` itself and records a check of a given name on one rank only. Call before this
        process touches a GPU. Raises RuntimeError when a rank fails, with its traceback in the log.
        """
        run_ranks(self, world, work)

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        """A ``with`` block whose lines are not watched, because watching costs time that it would measure."""
        return self._watch.paused()

    def merge(self, checks: list[Check], seen: Any) -> None:
        """Take in what a rank found."""
        for check in checks:
            self._add(check)
        self._watch.merge(seen)

    def seen(self) -> Any:
        """What this process's watch saw, for ``merge``."""
        return self._watch.seen()

    def lower(self, func: Any, **configs: Any) -> str:
        """CUDA source of a TileLang function for sm_90a, no GPU needed; ``configs`` are pass configs such as
        ``**{"tl.disable_tma_lower": True}``. Errors of the compiler propagate.

        Cached by content, except where tilelang itself is under test.
        """
        lane = importlib.import_module("reproducers.lane_tilelang")
        return str(lane.lower(func, configs, cached=self.package != "tilelang"))

    def nvcc(self, source: str) -> dict[str, int]:
        """Compile CUDA source of ``lower`` for sm_90a: registers, spill bytes and stack of its largest kernel.

        Raises CannotTest where there is no nvcc, RuntimeError with its first error when it rejects the source.
        """
        lane = importlib.import_module("reproducers.lane_tilelang")
        return dict(lane.nvcc(source))

    def transformer_engine(self) -> types.ModuleType:
        """``transformer_engine.pytorch`` from a need's tree; call before the first ``upstream`` that imports it.

        On the cpu lane its C++ extension is stood in for (``reproducers/lane_te.py``); its Python is the real one.
        """
        lane = importlib.import_module("reproducers.lane_te")
        return lane.enable(self.lane)  # type: ignore[no-any-return]

    def attempt(self, name: str, call: Callable[[], T], signature: Signature) -> T | None:
        """Bug check: run ``call``; raising by ``signature`` is the bug, any other error a different failure.

        Returns the call's value, or None when it raised: follow with ``error`` to show that the value is right.
        """
        expected = f"no {signature.exception} /{signature.message}/ from {signature.frame}"
        try:
            value = call()
        except CannotTest:
            raise
        except Exception as error:
            state = "bug" if signature.matches(error) else "different"
            earlier = [check for check in self.observations.checks if check.state == "bug"]
            if state == "different" or not any(isinstance(check.measured, str) for check in earlier):
                # of the bug the first, which an issue quotes; without this frame, which says nothing
                below = getattr(error.__traceback__, "tb_next", None)
                traceback.print_exception(type(error), error, below, file=sys.stdout)
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._add(Check(name, "bug", state, said, expected))  # type: ignore[arg-type]
            return None
        self._add(Check(name, "bug", "healthy", "returned", expected))
        return value

    def error(
        self,
        name: str,
        measured: float,
        limit: float,
        *,
        reference: str,
        bug_above: float | None = None,
        unit: str = "",
    ) -> None:
        """Bug check on an error norm: healthy ≤ ``limit``, the bug ≥ ``bug_above``, in between a different failure."""
        measured = float(measured)
        state = judge_error(measured, limit, bug_above)
        detail = f"bug at or over {bug_above:.4g}" if bug_above is not None else ""
        self._add(Check(name, "bug", state, measured, limit, reference, unit, detail))

    def guard(self, name: str, measured: float, limit: float, *, reference: str, unit: str = "") -> None:
        """Guard check: behaviour next to the bug that must hold in both arms, ``measured`` ≤ ``limit``."""
        measured = float(measured)
        passed = judge_error(measured, limit, None) == "healthy"
        self._add(Check(name, "guard", "passed" if passed else "failed", measured, limit, reference, unit))

    def guard_attempt(self, name: str, call: Callable[[], T]) -> T | None:
        """Guard check: ``call`` must not raise. Returns its value, or None when it did (and the guard failed)."""
        try:
            value = call()
        except CannotTest:
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stdout)
            said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._add(Check(name, "guard", "failed", said, "no exception"))
            return None
        self._add(Check(name, "guard", "passed", "returned", "no exception"))
        return value

    def digest(self, name: str, *tensors: Any) -> None:
        """Bitwise identity: a hash of dtypes, shapes and bytes that must be the same in both arms.

        ``tensors``: torch tensors on any device, or ``bytes`` (compiled code, say).
        """
        self._add(Check(name, "digest", "noted", bits_sha256(tensors), reference="the other arm, bit for bit"))

    def note(self, name: str, measured: float | str, *, unit: str = "", detail: str = "") -> None:
        """A measured number that decides nothing (peak bytes, time), kept in the record."""
        self._add(Check(name, "note", "noted", measured, unit=unit, detail=detail))

    def skip(self, name: str, reason: str) -> None:
        """A check that this host cannot make; it is reported as skipped, never as passed."""
        self._add(Check(name, "note", "skipped", detail=reason))

    def _add(self, check: Check) -> None:
        added = self.observations.add(check)
        if self.rank.world == 1:  # a rank's checks are printed when they join the arm's
            print(added.line(), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").strip())
    parser.add_argument("--tree", type=Path, help="import root of the package under test (default: as installed)")
    parser.add_argument("--needs", type=Path, action="append", default=[], help="further import roots")
    parser.add_argument("--lane", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", default="", help="release or SHA of the tree, for the stamp")
    parser.add_argument("--watch", type=Path, help="JSON: {path in tree: [[first line, last line], ...]}")
    parser.add_argument("--minimal", action="store_true", help="run minimal() alone; it raises where the bug is")
    return parser.parse_args()


def _locate(package: str, tree: Path | None) -> Path:
    """The import root that holds ``package``: the given tree, or wherever this interpreter has it installed."""
    spec = PathFinder.find_spec(package, [str(tree)] if tree else None)
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        where = f"in {tree}" if tree else "in this interpreter"
        raise CannotTest(f"package {package} is not {where}", "pass --tree DIR with the upstream sources")
    return Path(places[0]).parent


def _emit(kind: str, body: dict[str, Any]) -> None:
    print(json.dumps({"patchlane": kind, **body}, sort_keys=True), flush=True)


def _stamp(args: argparse.Namespace, pack: int, package: str, tree: Path | None) -> None:
    _emit(
        "stamp",
        {
            "pack": pack,
            "package": package,
            "label": args.label,
            "imported_from": str(tree) if tree else None,
            "lane": args.lane,
            "seed": args.seed,
            "reproducer_sha256": file_sha256(Path(sys.modules["__main__"].__file__ or "")),
            "host": capability(),
            "versions": versions(),
        },
    )


def _measure(reproduce: Callable[[Probe], None], probe: Probe, watch: Watch) -> tuple[str, str, str]:
    """(outcome, reason, remedy) of one arm; an error outside a named check is a different failure."""
    watch.start()
    try:
        reproduce(probe)
        probe.check_origin()
    except CannotTest as error:
        return "cannot_test", error.reason, error.remedy
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        return "different", f"{type(error).__name__}: {error}".splitlines()[0], ""
    finally:
        watch.stop()
    return (*probe.observations.outcome(), "")


def _run_minimal(minimal: Callable[[], None], prepare: Callable[[Probe], object] | None, probe: Probe) -> None:
    """Prepare the lane, run ``minimal``, and check where upstream came from; what it raises is printed, exit 1."""
    try:
        if prepare is not None:
            prepare(probe)
        minimal()
        probe.check_origin()
    except (CannotTest, ModuleNotFoundError) as error:
        print(f"CANNOT_TEST: {error}", flush=True)
        raise SystemExit(77) from None


def main(
    reproduce: Callable[[Probe], None],
    *,
    pack: int,
    package: str,
    minimal: Callable[[], None] | None = None,
    prepare: Callable[[Probe], object] | None = None,
) -> None:
    """Run ``reproduce`` as one arm and exit (see the module's docstring for output and exit status).

    ``minimal``: the bug in at most 15 lines, without the probe: raises where the bug is, returns where it is not.
    ``prepare`` runs before it under ``--minimal`` (stand-ins of the CPU lane, say); ``reproduce`` prepares itself.
    """
    args = _arguments()
    roots = [args.tree] if args.tree else []
    sys.path[:0] = [str(Path(p).resolve()) for p in [*roots, *args.needs]]
    if args.minimal and minimal is not None:
        place = _locate(package, args.tree.resolve() if args.tree else None)
        return _run_minimal(minimal, prepare, Probe(package, place, args.lane, args.seed, Watch(place, {})))
    probe, watch, tree = None, None, None
    try:
        tree = _locate(package, args.tree.resolve() if args.tree else None)
        _stamp(args, pack, package, tree)
        watch = Watch(tree, json.loads(args.watch.read_text()) if args.watch else {})
        probe = Probe(package, tree, args.lane, args.seed, watch)
        outcome, reason, remedy = _measure(reproduce, probe, watch)
    except CannotTest as error:
        _stamp(args, pack, package, tree)
        outcome, reason, remedy = "cannot_test", error.reason, error.remedy
    checks = probe.observations.checks if probe else []
    sentinel = "BUG_REPRODUCED" if outcome == "bug" and probe and probe.observations.sentinel() else None
    print(f"{sentinel or outcome.upper()}: {reason}{remedy and f' (remedy: {remedy})'}", flush=True)
    record = {
        "outcome": outcome,
        "reason": reason,
        "remedy": remedy,
        "sentinel": sentinel,
        "checks": [c.as_json() for c in checks],
        "executed": watch.report() if watch else {},
    }
    _emit("record", record)
    raise SystemExit({"bug": 0, "healthy": 0, "cannot_test": 77}.get(outcome, 1))
