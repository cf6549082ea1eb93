"""Which implementation a layer runs, and why: chosen once, said once in the log, never changed behind one's back."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from reproducers.base.errors import CannotTestHere

logger = logging.getLogger("model.paths")


@dataclass(frozen=True)
class Path:
    """A chosen implementation and the reason for it."""

    name: str
    reason: str


def choose(layer: str, requested: str, able: dict[str, str | None]) -> Path:
    """The requested path, or under "auto" the first that works.

    ``able`` maps each path, best first, to what it lacks here (None: nothing). CannotTestHere when the requested path
    lacks something, or no path works.
    """
    if requested != "auto":
        if requested not in able:
            raise CannotTestHere(f"{layer} has no path {requested!r}", f"choose one of: auto, {', '.join(able)}")
        lack = able[requested]
        if lack is not None:
            raise CannotTestHere(f"{layer}: path {requested} was asked for and {lack}", "ask for another, or auto")
        return Path(requested, "asked for")
    lacks: list[str] = []
    for name, lack in able.items():
        if lack is None:
            return Path(name, "; ".join(lacks) or "the best there is")
        lacks.append(f"{name}: {lack}")
    raise CannotTestHere(f"{layer}: no path works here: {'; '.join(lacks)}", "python -m reproducers.doctor")


def announce(chosen: Iterable[tuple[str, str, Path]]) -> None:
    """One line for each (layer, kind, path) in the log."""
    for layer, kind, path in chosen:
        logger.info("layer %s, %s: path %s, %s", layer, kind, path.name, path.reason)
