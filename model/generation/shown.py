"""Progress of what comes ahead of the first token, on standard error where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress

from reproducers.base import cli


@contextmanager
def stage(said: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar of ``total`` parts, or one that only moves; it goes when it is full. What is given advances it."""
    console = cli.console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(said, total=total)
        yield lambda parts: bar.update(task, advance=parts)
