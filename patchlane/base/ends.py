"""How a command ends: an expected failure prints its remedy, a fault of our own writes a log worth sending."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from patchlane.base import disk
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit
from patchlane.base.wording import printable


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
        try:
            self.rich_proxied_file.write(printable(text) if isinstance(text, str) else text)
        except BrokenPipeError:
            _unread()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each line, as a stream does."""
        for line in lines:
            self.write(line)


def _interrupt(signum: int, frame: object) -> None:
    """End a polite kill like Ctrl-C: children die with us. A second one, as schedulers send, does not cut it short."""
    signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt


def run(
    command: Callable[[], object],
    *,
    interrupted: Callable[[], str],
    spoken: Callable[[str], str] = str,
    wanting: Callable[[Exception], str] = lambda error: "",
    streams: Sequence[str] = ("stdout", "stderr"),
) -> None:
    """Run a command and map each of its ends to one of the project's exit codes, without a traceback.

    ``interrupted``: what it says then; ``spoken``: a message as this command line says it; ``wanting``: the message for
    an import that failed for want of a package, "" for other errors; ``streams``: those on which all is made printable.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us: what is printed goes nowhere
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process
    for name in streams:
        setattr(sys, name, Printable(getattr(sys, name)))
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup it is ignored
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        command()
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
        if message := wanting(error):
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
