"""The claims of a reproducer: named checks with a measured value, a limit and a reference. Standard library only."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

State = Literal["bug", "healthy", "different", "passed", "failed", "skipped", "noted"]
Outcome = Literal["bug", "healthy", "different", "cannot_test"]

SENTINELS = (
    "BUG_REPRODUCED",
    "FIX_VALIDATED",
    "MEMORY_SAVE_VERIFIED",
    "BITWISE_IDENTICAL",
    "REGRESSION_GUARD_PASSED",
)


class CannotTest(Exception):
    """This host, lane or tree cannot decide the question; ``remedy`` is the command or step that mends it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def gpu_full(error: BaseException) -> CannotTest | None:
    """What to raise in place of ``error`` if a GPU had too little memory: others may use it, or it is a small one."""
    said = f"{type(error).__name__}: {error}"
    full = re.search(r"OutOfMemoryError|CUDA (error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED", said)
    remedy = "nvidia-smi, which names who uses the GPU; then again when it is free, or on a GPU with more memory"
    return CannotTest(said.splitlines()[0].split(" Including ")[0], remedy) if full else None


class Signature(NamedTuple):
    """How a crash by the bug looks: exception type, pattern of its message, end of a path in its traceback.

    ``frame`` is a path suffix such as ``mamba_ssm/ops/tilelang/mamba3/mamba3_mimo_bwd.py``; the whole traceback is
    searched, so a wrapper around the raise does not hide it.
    """

    exception: str
    message: str
    frame: str

    def matches(self, error: BaseException) -> bool:
        """Whether ``error`` is this crash."""
        files = [Path(f.filename).as_posix() for f in traceback.extract_tb(error.__traceback__)]
        return (
            self.exception in {cls.__name__ for cls in type(error).__mro__}
            and re.search(self.message, str(error)) is not None
            and any(name.endswith("/" + self.frame) for name in files)
        )


class Check(NamedTuple):
    """One named claim. ``role`` says what a failure means: the bug itself, a broken neighbour, or nothing.

    ``bug_above``: the least number that shows the bug. ``signature``: of the crash that shows it.
    """

    name: str
    role: str  # bug, guard, note or digest
    state: str  # bug, healthy or different; passed or failed; noted or skipped
    measured: float | str | None = None
    limit: float | str | None = None
    reference: str = ""
    unit: str = ""
    detail: str = ""
    bug_above: float | None = None
    signature: tuple[str, ...] | None = None

    def line(self) -> str:
        """One line for people: state, name, measured value against its limit and reference."""
        measured, limit = (f"{v:.4g}" if isinstance(v, float | int) else v for v in (self.measured, self.limit))
        value = "" if measured is None else f": {measured}{self.unit and ' ' + self.unit}"
        value += ("" if limit is None else f" (limit {limit})") + (self.reference and f" vs {self.reference}")
        return f"[{self.state:>9}] {self.name}{value}{self.detail and f' -- {self.detail}'}"


def judge_error(measured: float, limit: float, bug_above: float) -> str:
    """Healthy at or under ``limit``; the bug at or over ``bug_above``; anything else, NaN included, is different."""
    if not math.isfinite(measured):
        return "different"
    return "healthy" if measured <= limit else "bug" if measured >= bug_above else "different"


def judge(checks: list[Check]) -> tuple[str, str]:
    """(outcome, reason): any different bug check decides first, then the bug, then health; guards do not decide."""
    bugs = [c for c in checks if c.role == "bug"]
    for state in ("different", "bug"):
        if names := [c.name for c in bugs if c.state == state]:
            return state, "; ".join(names)
    reason = f"{len(bugs)} bug check{'s'[: len(bugs) > 1]} healthy"
    return ("healthy", reason) if bugs else ("different", "the reproducer made no bug check")


def worst_drawn(
    measure: Callable[..., float], space: dict[str, Any], count: int, seed: int, bad: Callable[[float], bool]
) -> tuple[float, str]:
    """(largest ``measure(**case)`` over ``count`` cases drawn from ``space``, what was drawn).

    ``space``: {argument: hypothesis strategy}. A value that is not finite is the largest. Where ``bad`` holds of the
    largest, the case that is told is the simplest one that hypothesis finds with such a value. Errors propagate.
    """
    from hypothesis import HealthCheck, Phase, find, given, settings, strategies
    from hypothesis import seed as seeded

    cases, seen = strategies.fixed_dictionaries(space), list[tuple[float, dict[str, Any]]]()

    def measured(case: dict[str, Any]) -> float:
        value = float(measure(**case))
        return value if math.isfinite(value) else math.inf

    def draw(case: dict[str, Any]) -> None:
        seen.append((measured(case), case))

    # the same cases wherever this seed is run: no database of earlier failures, no time limit
    options: dict[str, Any] = {
        "max_examples": count,
        "database": None,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    }
    seeded(seed)(settings(phases=[Phase.generate], **options)(given(cases)(draw)))()
    worst, case = max(seen, key=lambda pair: pair[0])
    if bad(worst):
        phases = settings(phases=[Phase.generate, Phase.shrink], **options)
        case = find(cases, lambda case: bad(measured(case)), settings=phases, random=Random(seed))
    told = ", ".join(f"{name} {value}" for name, value in case.items())
    return worst, f"{len(seen)} cases drawn with seed {seed}; {'simplest bad' if bad(worst) else 'worst'}: {told}"


def bits_sha256(values: tuple[Any, ...]) -> str:
    """Hash of tensors (dtype, shape, bytes in row-major order), ``bytes`` or None, in this order."""
    digest = hashlib.sha256()
    for value in values:
        if value is None or isinstance(value, bytes):
            data = value or b""
            digest.update(f"{type(value).__name__} {len(data)}\0".encode() + data)
        else:
            digest.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
            flat = value.detach().cpu().clone(memory_format=sys.modules["torch"].contiguous_format).reshape(-1)
            digest.update(flat.view(sys.modules["torch"].uint8).numpy().data)
    return digest.hexdigest()
