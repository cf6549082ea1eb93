"""Charts of the report page: where each arm's number lies against its limit. Geometry only; a template draws it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reproducers.evidence.binding import ARMS

WIDTH, LEFT, RIGHT, ZERO_GAP = 320.0, 10.0, 310.0, 24.0
LOG_FROM = 30.0
BUG_ABOVE = re.compile(r"^bug at or over (\d[\d.]*(?:e[-+]?\d+)?)$")


@dataclass(frozen=True)
class Mark:
    """What one arm measured. ``x`` is None where the number is not finite and so lies on no axis."""

    arm: str
    value: float
    state: str
    x: float | None


@dataclass(frozen=True)
class Line:
    """A vertical line of the chart, its value and the side of its label that keeps it inside."""

    value: float
    x: float
    anchor: str


@dataclass(frozen=True)
class Chart:
    """One numeric check over the arms of a receipt; ``absent`` are the arms that ran without coming to it."""

    name: str
    role: str
    unit: str
    reference: str
    axis: str
    marks: list[Mark]
    absent: list[str]
    limit: Line
    bug: Line | None


@dataclass(frozen=True)
class Axis:
    """From values to places. A log axis keeps zero in a slot of its own, left of a gap."""

    kind: str
    low: float
    high: float
    start: float = LEFT

    def x(self, value: float) -> float | None:
        """The place of ``value``, None when it has none."""
        if not math.isfinite(value):
            return None
        if self.kind == "log":
            if value == 0:
                return LEFT
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(value)
        else:
            low, high = self.low, self.high
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (RIGHT - self.start), 2)


def axis(values: list[float]) -> Axis:
    """Log where the positive numbers differ by a factor of 30 and none is negative, otherwise linear with zero."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if positive and min(finite) >= 0 and max(positive) / min(positive) >= LOG_FROM:
        return Axis("log", min(positive), max(positive), LEFT + ZERO_GAP)
    low, high = min([0.0, *finite]), max([0.0, *finite])
    return Axis("linear", low, high if high > low else low + 1)


def bug_above(check: dict[str, Any]) -> float | None:
    """From which number on a check shows the bug, as its receipt says it."""
    found = BUG_ABOVE.match(check["detail"])
    return float(found[1]) if found else None


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def numeric(check: dict[str, Any]) -> bool:
    """Whether a check is a number with a limit, so that it can be drawn."""
    return _number(check["measured"]) and _number(check["limit"]) and math.isfinite(check["limit"])


def checks(receipt: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(arm, check) of each arm's last repeat, in the order that they were made."""
    for arm in ARMS:
        for run in (receipt.get(arm) or [])[-1:]:
            yield from ((arm, check) for check in run["checks"])


def charts(receipt: dict[str, Any]) -> list[Chart]:
    """All numeric checks of a receipt; a check whose limit differs between arms is drawn once for each limit."""
    found: dict[tuple[Any, ...], list[tuple[str, dict[str, Any]]]] = {}
    for arm, check in checks(receipt):
        if numeric(check):
            key = (check["name"], check["role"], check["limit"], bug_above(check))
            found.setdefault(key, []).append((arm, check))
    ran = [arm for arm in ARMS if receipt.get(arm)]
    return [_chart(group, ran) for group in found.values()]


def _chart(group: list[tuple[str, dict[str, Any]]], ran: list[str]) -> Chart:
    first = group[0][1]
    limit, bug = float(first["limit"]), bug_above(first)
    lines = [limit] if bug is None else [limit, bug]
    scale = axis([float(check["measured"]) for _, check in group] + lines)
    marks = [_mark(arm, check, scale) for arm, check in group]
    return Chart(
        name=first["name"],
        role=first["role"],
        unit=first["unit"],
        reference=first["reference"],
        axis=scale.kind,
        marks=marks,
        absent=[arm for arm in ran if arm not in {mark.arm for mark in marks}],
        limit=_line(limit, scale),
        bug=None if bug is None else _line(bug, scale),
    )


def _mark(arm: str, check: dict[str, Any], scale: Axis) -> Mark:
    return Mark(arm, check["measured"], check["state"], scale.x(float(check["measured"])))


def _line(value: float, scale: Axis) -> Line:
    x = scale.x(value)
    assert x is not None, "limits are finite"
    return Line(value, x, "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle")
