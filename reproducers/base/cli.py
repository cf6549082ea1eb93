"""What every verb prints, and how it ends: an expected failure prints its remedy, a fault of our own writes a log worth
sending."""

from __future__ import annotations

import functools
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from reproducers.base import disk
from reproducers.base.errors import PatchlaneError
from reproducers.base.start import OURS, unimportable
from reproducers.base.verdicts import Exit
from reproducers.base.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

# Libraries of model/ draw bars on stderr, by control characters; its verbs' own texts there are our messages.
CLEANED = {"reproducers": ("stdout", "stderr"), "model": ("stdout",)}


class Printable:
    """A stream on which all that is printed is ``printable``: log lines, titles and messages are texts of others.

    rich's own escapes go past it, by the attribute that rich looks for; ``console`` cleans what rich prints.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write the text; returns its length, as a stream does, and refuses bytes as that does: click asks by them."""
        self.rich_proxied_file.write(printable(text) if isinstance(text, str) else text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each line, as a stream does."""
        for line in lines:
            self.write(line)


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


def _interrupt(signum: int, frame: object) -> None:
    """End a polite kill like Ctrl-C: children die with us. A second one, as schedulers send, does not cut it short."""
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us: what is printed goes nowhere
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process
    package = str(getattr(sys.modules["__main__"], "__package__", "")).partition(".")[0]
    for name in CLEANED.get(package, ("stdout", "stderr")):
        setattr(sys, name, Printable(getattr(sys, name)))
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup it is ignored
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        app()
    except PatchlaneError as error:
        print(printable(spoken(f"error: {error}")), file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
    except KeyboardInterrupt:
        print(interrupted(), file=sys.stderr)
        raise SystemExit(int(Exit.INTERRUPTED)) from None
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer and rich end with 1, a verdict's code
            _unread()
        if ended.code == Exit.INTERRUPTED:  # typer makes it of a KeyboardInterrupt, and says nothing
            print(interrupted(), file=sys.stderr)
        _flush()
        raise
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not disk.of_host(error):
            _fault(error)
        _refused(error)
    except Exception as error:
        if message := unimportable(error):
            print(printable(message), file=sys.stderr)
            raise SystemExit(int(Exit.CANNOT_TEST)) from None
        _fault(error)
    else:  # a plain function, not an app of typer, which always exits
        _flush()


def _flush() -> None:
    """What is still buffered meets a closed pipe or a full disk here, not at Python's own end, which has a code of its
    own for it, 120."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _unread()
    except OSError as error:
        _refused(error)


def _refused(error: OSError) -> NoReturn:
    """This host refused a file, or what is printed, which then goes nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop()
    print(printable(f"error: {disk.described(error)}"), file=sys.stderr)
    raise SystemExit(int(Exit.USAGE)) from None


def _unread() -> NoReturn:
    """Nobody reads what is printed: an interrupt."""
    _drop()
    raise SystemExit(int(Exit.INTERRUPTED)) from None


def _drop() -> None:
    """Let buffered output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fault(error: Exception) -> NoReturn:
    """Exit with FAULT and name the log that has the traceback."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="patchlane-fault-", suffix=".log", delete=False) as sink:
            traceback.print_exception(error, file=sink)
        log = sink.name
    except OSError:
        traceback.print_exception(error)
        log = "the lines above"
    said = f"fault of patchlane: {type(error).__name__}: {error}\n  log to report: {log}"
    print(printable(said), file=sys.stderr)
    raise SystemExit(int(Exit.FAULT)) from None
