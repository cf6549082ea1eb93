"""Parts of a run's pictures: figures without a display, smoothing, marks of resumed and bad steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from patchlane.base.files import replacing
from patchlane.base.optional import load

BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9730d", "#2b8a57", "#c0392b", "#8a8f98"
MORE = ("#7b4fb0", "#b8860b", "#17889b", "#c2569b", "#5c4033", "#4d6b8a")  # of curves beside these


def figure(rows: int, title: str, height: float) -> tuple[Any, list[Any]]:
    """A figure of ``rows`` panels over one x axis, and the panels. Raises CannotTestHere without matplotlib."""
    figures = load("matplotlib.figure", "matplotlib")
    load("matplotlib.backends.backend_agg", "matplotlib")
    drawn = figures.Figure(figsize=(10, height), dpi=120, layout="constrained")
    panels = drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for panel in panels:
        panel.grid(True, color="#e3e5e8", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.xaxis.set_major_locator(
            load("matplotlib.ticker", "matplotlib").MaxNLocator(integer=True, steps=[1, 2, 5, 10])
        )
        panel.margins(x=0.01)
    panels[0].set_title(title, loc="left", fontsize=12)
    return drawn, list(panels)


def save(drawn: Any, path: Path) -> Path:
    """Write the picture whole or not at all."""
    drawn.align_ylabels()
    with replacing(path) as scratch:
        drawn.savefig(scratch)
    return path


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """Median of the ``width`` values around each, fewer at the ends: it drops outliers and keeps bends in place."""
    last = len(values) - 1
    reach = [min(width // 2, i, last - i) for i in range(last + 1)]
    return [statistics.median(values[i - r : i + r + 1]) for i, r in enumerate(reach)]


def window(count: int) -> int:
    """Steps to smooth over: a twentieth of ``count``, from 5 to 101, always odd."""
    return min(max(count // 20, 5), 101) | 1


def legend(panel: Any, columns: int = 1) -> None:
    """Upper right, legible over curves."""
    panel.legend(loc="upper right", ncols=columns, framealpha=0.92, edgecolor="none")


def colors(count: int) -> list[Any]:
    """``count`` colours: different ones up to ten, of more a scale from dark to bright."""
    maps = load("matplotlib", "matplotlib").colormaps
    return list(maps["tab10"].colors[:count] if count <= 10 else maps["viridis"].resampled(count).colors)


def mark(panel: Any, steps: Sequence[int], label: str, color: str) -> None:
    """A vertical line at each step, named once."""
    for nth, step in enumerate(steps):
        panel.axvline(step, color=color, linewidth=1, linestyle=":", label=label if nth == 0 else None)
