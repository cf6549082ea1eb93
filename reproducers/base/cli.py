"""What every verb prints, and how it ends: an expected failure prints its remedy, a fault of our own writes a log worth
sending."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from patchlane.base import ends
from patchlane.base.ends import Printable
from patchlane.base.wording import printable
from reproducers.base.start import OURS, unimportable

if TYPE_CHECKING:
    from rich.console import Console

# Libraries of model/ draw bars on stderr, by control characters; its verbs' own texts there are our messages.
CLEANED = {"reproducers": ("stdout", "stderr"), "model": ("stdout",)}


def console(**options: Any) -> Console:
    """A console of rich, with its options, that prints no control character but rich's own."""
    return _console_class()(**options)


@functools.cache
def _console_class() -> type[Console]:
    """Made when it is needed: most verbs print without rich, whose import takes long."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else part._replace(text=printable(part.text))

        @property
        def file(self) -> IO[str]:
            """The stream itself, also below a moving last line, whose proxy stands before ours."""
            stream = super().file
            return stream.rich_proxied_file if isinstance(stream, Printable) else stream

        @file.setter
        def file(self, new: IO[str]) -> None:
            self._file = new

    return Clean


SPOKEN: dict[str, str] = {}  # {module of a verb: its name under patchlane}, where it was called by that name
_left: list[Callable[[], tuple[str, list[str]]]] = []


def spoken(text: str) -> str:
    """The text with each ``python -m MODULE`` of a verb as this command line calls it."""
    return re.sub(r"python -m ([\w.]+)", lambda m: f"patchlane {SPOKEN[m[1]]}" if m[1] in SPOKEN else m[0], text)


def leaves(told: Callable[[], tuple[str, list[str]]]) -> None:
    """Have an interrupted verb say what ``told`` gives: what it left, and the arguments to add to go on from there."""
    _left[:] = [told]


def interrupted(add: Sequence[str] = (), what: str = "nothing is half-written, what was fetched is kept") -> str:
    """What a verb says that was interrupted: what it left, and the command that goes on."""
    for told in _left:
        what, add = told()
    name, *given = sys.argv
    verb = name if name.startswith("patchlane ") else f"python -m {_module(Path(name))}"
    more = [] if set(add) <= set(given) else add
    return f"interrupted: {what}\n  fix: {verb} {shlex.join([*given, *more])}".rstrip()


def _module(path: Path) -> str:
    """The dotted name of a verb's file."""
    parts = path.with_suffix("").parts
    start = max((n for n, part in enumerate(parts) if part in OURS), default=len(parts) - 1)
    return ".".join(part for part in parts[start:] if part != "__main__")


def guarded(app: Any) -> None:
    """Run a typer app and map each of its ends to one of the project's exit codes, without a traceback."""
    package = str(getattr(sys.modules["__main__"], "__package__", "")).partition(".")[0]
    streams = CLEANED.get(package, ("stdout", "stderr"))
    ends.run(app, interrupted=interrupted, spoken=spoken, wanting=unimportable, streams=streams)
