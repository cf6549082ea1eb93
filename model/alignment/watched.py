"""What modules get and give in a pass, kept by hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Seen = dict[str, Any]


class Watch:
    """``seen``: {name: what ``part`` of it gave} of the first call after each ``after``; ``ends``: what is called when
    the watch does."""

    def __init__(self, ends: ExitStack) -> None:
        self.seen: Seen = {}
        self.ends = ends

    def after(self, module: Any, name: str, part: Callable[[Any, Any], Any] = lambda given, output: output) -> None:
        """``part`` of the positional arguments of ``module`` and its output. Of a backward pass, which may compute it
        again, nothing is kept."""

        def hook(_: Any, given: Any, output: Any) -> None:
            if name not in self.seen:
                self.seen[name] = part(given, output)

        self.ends.callback(module.register_forward_hook(hook).remove)


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch, until the end of the block."""
    with ExitStack() as ends:
        yield Watch(ends)
