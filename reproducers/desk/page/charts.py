"""Charts of the report page, as places in pixels: each arm's number against its limit, a run's records by step.

A template draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reproducers.record.receipt import ArmName, Check, Details, is_number

WIDTH, LEFT, RIGHT, ZERO_GAP = 320.0, 10.0, 310.0, 24.0
TOP, BOTTOM = 18.0, 58.0
MOST = 300  # points of a curve, one a pixel
LOG_FROM = 30.0


@dataclass(frozen=True)
class Mark:
    """The number that an arm measured; its place ``x`` is None if the number is not finite."""

    arm: str
    value: float
    state: str
    x: float | None


@dataclass(frozen=True)
class Line:
    """A vertical line of the chart. ``anchor``: the SVG text-anchor that keeps its label inside the chart."""

    value: float
    x: float
    anchor: str


@dataclass(frozen=True)
class Chart:
    """One numeric check over the arms of a receipt; ``absent`` are the arms that ran but never reached it."""

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
    """Maps values to places. On a log axis zero has its own place, left of a gap."""

    kind: str
    low: float
    high: float
    start: float = LEFT

    def x(self, value: float) -> float | None:
        """The place of ``value``, None if it is not finite."""
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
    """A log axis if no value is negative and the positive ones span a factor of 30, else a linear one with zero."""
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if positive and min(finite) >= 0 and max(positive) / min(positive) >= LOG_FROM:
        return Axis("log", min(positive), max(positive), LEFT + ZERO_GAP)
    low, high = min([0.0, *finite]), max([0.0, *finite])
    return Axis("linear", low, high if high > low else low + 1)


@dataclass(frozen=True)
class Curve:
    """Values of a run by step. ``points``: of an SVG polyline; ``first`` and ``last`` are steps."""

    name: str
    points: str
    least: float
    greatest: float
    first: int
    last: int

    @property
    def ends(self) -> tuple[str, str]:
        """Least and greatest value in words."""
        low, high = (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" for value in (self.least, self.greatest))
        return low, high


def curve(name: str, values: Sequence[tuple[int, float]]) -> Curve | None:
    """The curve of (step, value) in their order, of many every so manieth; None of fewer than two finite ones."""
    found = [(step, value) for step, value in values if math.isfinite(value)]
    if len(found) < 2:
        return None
    steps, heights = [step for step, _ in found], [value for _, value in found]
    least, greatest, every = min(heights), max(heights), -(-len(found) // MOST)
    across, up = RIGHT - LEFT, BOTTOM - TOP
    points = [
        f"{LEFT + across * (step - steps[0]) / max(1, steps[-1] - steps[0]):.1f},"
        f"{BOTTOM - up * (value - least) / ((greatest - least) or 1.0):.1f}"
        for step, value in [*found[:-1:every], found[-1]]
    ]
    return Curve(name, " ".join(points), least, greatest, steps[0], steps[-1])


def charts(receipt: Details) -> list[Chart]:
    """A chart for each numeric check of a receipt; a check with another limit in another arm has a chart for each."""
    groups: dict[tuple[object, ...], list[tuple[ArmName, Check]]] = {}
    for arm, check in receipt.every_check():
        if check.numeric:
            groups.setdefault((check.name, check.role, check.limit, check.bug_above), []).append((arm, check))
    ran = [arm for arm, results in receipt.arms.items() if results]
    return [_chart(group, ran) for group in groups.values()]


def _chart(group: list[tuple[ArmName, Check]], ran: list[ArmName]) -> Chart:
    first = group[0][1]
    limit, bug = float(_value(first.limit)), first.bug_above
    lines = [limit] if bug is None else [limit, bug]
    scale = axis([_value(check.number) for _, check in group] + lines)
    marks = [_mark(arm, check, scale) for arm, check in group]
    return Chart(
        name=first.name,
        role=first.role,
        unit=first.unit,
        reference=first.reference,
        axis=scale.kind,
        marks=marks,
        absent=[arm for arm in ran if arm not in {mark.arm for mark in marks}],
        limit=_line(limit, scale),
        bug=None if bug is None else _line(bug, scale),
    )


def _value(number: float | str | None) -> float:
    assert is_number(number), "the check is numeric"
    return number


def _mark(arm: ArmName, check: Check, scale: Axis) -> Mark:
    return Mark(arm, _value(check.number), check.state, scale.x(_value(check.number)))


def _line(value: float, scale: Axis) -> Line:
    x = scale.x(value)
    assert x is not None, "limits are finite"
    return Line(value, x, "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle")
