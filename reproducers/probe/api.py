"""The probe, through which a reproducer imports upstream from the given tree, measures, records and reports.

``main(reproduce, pack=5, package="mamba_ssm")`` prints what is tested first and the result last; the runner's arms
(``watched.py``) print both as JSON. The probe is never told whether its tree is patched. Standard library only at
import; ``export`` copies what a reproducer uses of it into a single file. Exit status: 0 when it decided (bug or
healthy), 1 when it failed in some other way, 2 usage, 77 when it cannot test here.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import sys
import traceback
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reproducers.probe.checks import CannotTest, Check, Signature, bits_sha256, gpu_full, judge_error, worst_drawn
from reproducers.probe.ranks import Rank
from reproducers.probe.stamp import DISTRIBUTIONS, version

if TYPE_CHECKING:
    from reproducers.probe.measuring import Operators, Places

__all__ = ["CannotTest", "Probe", "Signature"]
# packages that pip cannot install without nvcc; a checkout can be imported as it is
SOURCES = {"mamba_ssm": "git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba DIR"}
T = TypeVar("T")


class Probe:
    """One arm's notebook. Attributes: ``tree`` (import root), ``lane`` ("cpu" or "cuda"), ``seed``, ``rank``.

    ``rank`` is this process among those of ``ranks``, or a world of one.
    """

    rank = Rank()

    def __init__(self, package: str, args: argparse.Namespace) -> None:
        self.package, self.lane, self.seed, self.args = package, args.lane, args.seed, args
        self.tree, self.checks = Path(), list[Check]()

    def open(self) -> None:
        """Find the package, in the given tree or installed, and print what is tested."""
        self.tree = locate(self.package, self.args.tree, "--tree")
        parts = [f"{version(self.package, self.tree)} in {self.tree}", f"{self.lane} lane", f"seed {self.seed}"]
        parts += [f"{d.name} {d.version}" for d in importlib.metadata.distributions() if d.name in DISTRIBUTIONS]
        print(*parts, f"python {sys.version.split()[0]}", sep=", ", flush=True)

    def close(self, outcome: str, reason: str, remedy: str) -> None:
        """Print the outcome."""
        word = "BUG_REPRODUCED" if outcome == "bug" else outcome.upper()
        print(f"{word}: {reason}{remedy and f' (remedy: {remedy})'}", flush=True)

    def upstream(self, name: str) -> types.ModuleType:
        """Import upstream module ``name`` from the tree.

        Raises CannotTest if the tree has no such module or a dependency is missing, RuntimeError if the code
        came from outside the tree. Every other error propagates: it is a different failure.
        """
        return self.importing(lambda: importlib.import_module(name))

    def importing(self, call: Callable[[], T]) -> T:
        """The value of ``call``; raises as ``upstream`` if it imports a missing module or one from outside the tree."""
        try:
            value = call()
        except ModuleNotFoundError as error:
            missing = (error.name or str(error)).split(".")[0]
            if missing == self.package:
                raise CannotTest(f"this tree has no module {error.name}") from error
            raise absent(missing, "--needs") from error
        self.check_origin()
        return value

    def namespace(self, package: str | None = None) -> None:
        """Register a package without running its ``__init__`` (which may need compiled extensions).

        By default the package under test, from the tree; otherwise one that it needs, from ``--needs`` or installed.
        """
        name = package or self.package
        module = types.ModuleType(name)
        module.__path__ = [str((self.tree if name == self.package else locate(name, None, "--needs")) / name)]
        sys.modules[name] = module

    def check_origin(self) -> None:
        """Raises RuntimeError if a module of the package under test was imported from outside the tree."""
        for name, module in sys.modules.copy().items():  # other threads may import meanwhile
            origin = getattr(module, "__file__", None) if name.split(".")[0] == self.package else None
            if origin and not Path(origin).resolve().is_relative_to(self.tree.resolve()):
                raise RuntimeError(f"{name} was imported from {origin}, not from the tree under test {self.tree}")

    def triton_interpreter(self) -> None:
        """CPU lane: run Triton kernels under its interpreter; call before the first ``upstream``."""
        from reproducers.probe.lanes.triton import interpret_triton

        interpret_triton()

    def megatron_cpu(self, **parallel: int) -> None:
        """Start Megatron-Core in this rank, on the CPU lane with stand-ins for CUDA names; serves both lanes.

        A world of one outside ``ranks``. Call before the first ``upstream``; ``parallel`` goes to
        ``initialize_model_parallel``.
        """
        from reproducers.probe.lanes.megatron import megatron_lane, start_megatron

        megatron_lane(self.lane)
        start_megatron(self.upstream, self.seed, self.rank, **parallel)

    def ranks(self, world: int, work: Callable[[int], T]) -> list[T]:
        """The values of ``work(rank)`` in ``world`` forked processes; their checks and executed lines join this arm's.

        ``work`` calls ``megatron_cpu`` itself and records a check of a given name on one rank only. Call before this
        process touches a GPU. Raises RuntimeError if a rank fails; the log has its traceback.
        """
        from reproducers.probe.ranks import run_ranks

        return run_ranks(self, world, work)

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        """A ``with`` block for timed code: there the runner does not follow executed lines, which costs time."""
        return contextlib.nullcontext()

    def lower(self, func: Any, **configs: Any) -> str:
        """CUDA source of a TileLang function for sm_90a, no GPU needed; ``configs`` are pass configs.

        For example ``**{"tl.disable_tma_lower": True}``. Compiler errors propagate.
        """
        from reproducers.probe.lanes.tilelang import lower

        return lower(func, configs)

    def nvcc(self, source: str) -> dict[str, int]:
        """Compile CUDA source of ``lower`` for sm_90a: registers, spill bytes and stack of its largest kernel.

        Raises CannotTest without nvcc, RuntimeError with its first error if it rejects the source.
        """
        from reproducers.probe.lanes.tilelang import nvcc

        return nvcc(source)

    def transformer_engine(self) -> types.ModuleType:
        """``transformer_engine.pytorch``; call before the first ``upstream`` that imports it.

        On the cpu lane ``lanes/transformer_engine.py`` stands in for its C++ extension; its Python is the real one.
        """
        from reproducers.probe.lanes.transformer_engine import import_transformer_engine

        return import_transformer_engine(self.lane)

    def waits(self, call: Callable[[], Any]) -> Places:
        """The places where ``call`` makes the host wait for a GPU, {"file:line": times}.

        On a GPU those that PyTorch warns of; on the cpu lane those where code of the tree reads a tensor's values, or
        a size that depends on them.
        """
        from reproducers.probe.measuring import host_waits

        return host_waits(call, self.tree, self.lane)

    def operators(self, call: Callable[[], Any]) -> Operators:
        """How many operators ``call`` runs (``.count``) and how many elements they write (``.written``); any lane."""
        from reproducers.probe.measuring import Operators

        operators = Operators()
        with operators:
            call()
        return operators

    def launches(self, call: Callable[[], Any]) -> tuple[int, int]:
        """Kernels, copies and fills of ``call`` on the GPU, and copies to the host among them; CUDA lane only.

        (0, 0) where the profiler sees nothing; the first profile of a process starts it, so measure twice.
        """
        from reproducers.probe.measuring import gpu_launches

        return gpu_launches(call)

    def milliseconds(self, call: Callable[[], Any], repeats: int, warm: int) -> float:
        """Median milliseconds of ``repeats`` calls after ``warm``, unwatched, GPU idle included; CUDA lane only."""
        from reproducers.probe.measuring import gpu_milliseconds

        with self.unwatched():
            return gpu_milliseconds(call, repeats, warm)

    def graph(self, call: Callable[[], T]) -> tuple[Any, T]:
        """(CUDA graph, value of ``call`` in it), warmed up and captured; CUDA lane only.

        The first error inside the capture is the one raised; the process is then unfit for more GPU work.
        """
        from reproducers.probe.measuring import cuda_graph

        return cuda_graph(call)

    def attempt(self, name: str, call: Callable[[], T], signature: Signature) -> T | None:
        """Bug check: run ``call``; raising by ``signature`` is the bug, any other error a different failure.

        Returns the call's value, or None if it raised: follow with ``error`` to show that the value is right.
        Raises CannotTest if a GPU's memory did not do, here and in ``guard_attempt``.
        """
        limit = f"no {signature.exception} /{signature.message}/ from {signature.frame}"
        return self._call(name, call, "bug", limit, signature)

    def guard_attempt(self, name: str, call: Callable[[], T]) -> T | None:
        """Guard check: ``call`` must not raise. Returns its value, or None if it raised and the guard failed."""
        return self._call(name, call, "guard", "no exception", None)

    def _call(self, name: str, call: Callable[[], T], role: str, limit: str, bug: Any) -> T | None:
        good, bad = ("healthy", "different") if role == "bug" else ("passed", "failed")
        try:
            value, state, measured = call(), good, "returned"
        except CannotTest:
            raise
        except Exception as error:
            state = "bug" if bug and bug.matches(error) else bad
            if state == bad and (full := gpu_full(error)):
                raise full from error
            if state == bad or not any(c.state == "bug" and isinstance(c.measured, str) for c in self.checks):
                # of several bugs an issue quotes the first only; this frame tells nothing
                below = getattr(error.__traceback__, "tb_next", None)
                traceback.print_exception(type(error), error, below, file=sys.stdout)
            value, measured = None, f"{type(error).__name__}: {error}".splitlines()[0][:200]
        self._add(Check(name, role, state, measured, limit, signature=bug))
        return value

    def error(
        self, name: str, measured: float, limit: float, *, reference: str, bug_above: float = inf, unit: str = ""
    ) -> None:
        """Bug check on an error norm: healthy ≤ ``limit``, the bug ≥ ``bug_above``, in between a different failure."""
        state = judge_error(measured := float(measured), limit, bug_above)
        detail = "" if bug_above == inf else f"bug at or over {bug_above:.4g}"
        self._add(Check(name, "bug", state, measured, limit, reference, unit, detail, bug_above))

    def guard(self, name: str, measured: float, limit: float, *, reference: str, unit: str = "") -> None:
        """Guard check: behaviour next to the bug that must hold in both arms, ``measured`` ≤ ``limit``."""
        passed = judge_error(measured := float(measured), limit, inf) == "healthy"
        self._add(Check(name, "guard", "passed" if passed else "failed", measured, limit, reference, unit))

    def drawn(
        self,
        name: str,
        measure: Callable[..., float],
        limit: float,
        *,
        space: dict[str, Any],
        count: int,
        reference: str,
        bug_above: float = inf,
        unit: str = "",
    ) -> None:
        """Error norm over ``count`` cases that hypothesis draws with this run's seed, so that no shape can be foreseen.

        ``measure(**case)`` is the error of one case; ``space`` is {argument: hypothesis strategy}. The largest is a
        bug check as ``error`` has it where ``bug_above`` is given, otherwise a guard. An error of ``measure``
        propagates.
        """

        def bad(value: float) -> bool:
            return judge_error(value, limit, bug_above) == "different"

        worst, detail = worst_drawn(measure, space, count, self.seed, bad)
        if bug_above == inf:
            state = "failed" if bad(worst) else "passed"
            self._add(Check(name, "guard", state, worst, limit, reference, unit, detail))
        else:
            state = judge_error(worst, limit, bug_above)
            self._add(Check(name, "bug", state, worst, limit, reference, unit, detail, bug_above))

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
        if any(c.name == check.name for c in self.checks):
            raise ValueError(f"check {check.name!r} is recorded twice")
        self.checks.append(check)
        print(check.line(), flush=True)


def absent(package: str, option: str) -> CannotTest:
    """The error for a missing package; its remedy: install it, or give a folder of its sources by ``option``."""
    python = f"with a Python as it names (this is {sys.version.split()[0]})"
    how = f"{SOURCES[package]}, then" if package in SOURCES else f"install what the header lists, {python}, or"
    return CannotTest(f"{package} is not installed", f"{how} {option} DIR that holds {package}/")


def locate(package: str, tree: str | None, option: str) -> Path:
    """The import root of ``package``: the given tree, or where it is installed. Raises CannotTest if it is missing."""
    spec = PathFinder.find_spec(package, [tree] if tree else None)
    if spec is None or not spec.submodule_search_locations:
        raise absent(package, option)
    return Path(next(iter(spec.submodule_search_locations))).parent
