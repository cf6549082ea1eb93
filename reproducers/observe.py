"""What a reproducer may claim: named checks with a measured value, a limit and a reference. Standard library only."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, Literal

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


@dataclass(frozen=True)
class Signature:
    """How a crashing bug looks: exception type name, message pattern, and a frame inside an upstream file.

    ``frame`` is a path suffix such as ``mamba_ssm/ops/tilelang/mamba3/mamba3_mimo_bwd.py``; the innermost
    traceback entries are searched, so a wrapper around the raise does not hide it.
    """

    exception: str
    message: str
    frame: str

    def matches(self, error: BaseException) -> bool:
        names = {cls.__name__ for cls in type(error).__mro__}
        files = [PurePath(f.filename).as_posix() for f in traceback.extract_tb(error.__traceback__)]
        return (
            self.exception in names
            and re.search(self.message, str(error)) is not None
            and any(name.endswith("/" + self.frame) for name in files)
        )


@dataclass(frozen=True)
class Check:
    """One named claim. ``role`` says what a failure means: the bug itself, a broken neighbour, or nothing."""

    name: str
    role: Literal["bug", "guard", "note", "digest"]
    state: State
    measured: float | str | None = None
    limit: float | str | None = None
    reference: str = ""
    unit: str = ""
    detail: str = ""

    def line(self) -> str:
        """One line for people: state, name, measured value against its limit and reference."""
        text = f"[{self.state:>9}] {self.name}"
        if self.measured is not None:
            text += f": {_number(self.measured)}{self.unit and ' ' + self.unit}"
        if self.limit is not None:
            text += f" (limit {_number(self.limit)})"
        if self.reference:
            text += f" vs {self.reference}"
        return text + (f" -- {self.detail}" if self.detail else "")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def judge_error(measured: float, limit: float, bug_above: float | None) -> State:
    """Healthy at or under ``limit``; the bug at or over ``bug_above``; anything else, NaN included, is different."""
    if math.isfinite(measured) and measured <= limit:
        return "healthy"
    if bug_above is not None and math.isfinite(measured) and measured >= bug_above:
        return "bug"
    return "different"


def bits_sha256(values: tuple[Any, ...]) -> str:
    """Hash of tensors (dtype, shape, bytes in row-major order), ``bytes`` or None, in this order."""
    digest = hashlib.sha256()
    for value in values:
        if value is None or isinstance(value, bytes):
            data = value or b""
            digest.update(f"{type(value).__name__} {len(data)}\0".encode() + data)
        else:
            digest.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(sys.modules["torch"].uint8).numpy().data)
    return digest.hexdigest()


@dataclass
class Observations:
    """The checks of one arm, in order, and the outcome they add up to."""

    checks: list[Check] = field(default_factory=list)

    def add(self, check: Check) -> Check:
        if any(c.name == check.name for c in self.checks):
            raise ValueError(f"check {check.name!r} is recorded twice")
        self.checks.append(check)
        return check

    def outcome(self) -> tuple[Outcome, str]:
        """(outcome, reason): any different check decides first, then the bug, then health; guards do not decide."""
        bugs = [c for c in self.checks if c.role == "bug"]
        if not bugs:
            return "different", "the reproducer made no bug check"
        for state in ("different", "bug"):
            hits = [c for c in bugs if c.state == state]
            if hits:
                return state, "; ".join(c.name for c in hits)  # type: ignore[return-value]
        return "healthy", f"{len(bugs)} bug checks healthy"

    def sentinel(self) -> str | None:
        """The sentinel these checks earn on their own; FIX_VALIDATED needs two arms and is the runner's."""
        return "BUG_REPRODUCED" if self.outcome()[0] == "bug" else None
