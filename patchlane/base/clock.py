"""Today's date, the date in --date, and the time that another program or a server may take."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from patchlane.base.errors import CannotTestHere, PatchlaneError

_running: set[subprocess.Popen[Any]] = set()
ANSWER_S = 30.0  # to connect, and for each next piece of an answer from a server
STEP_S = 600.0  # for a program that works on this host alone
FETCH_S = 3600.0  # to fetch one thing whole, which may have gigabytes; a silent server is given up before
BUILD_S = 6 * 3600.0  # for a build of the user's own


def today() -> datetime.date:
    """Today in UTC, as in receipts."""
    return datetime.datetime.now(datetime.UTC).date()


def day_of(text: str | None) -> datetime.date | None:
    """The date in ``text``, the value of --date; None without one. Raises PatchlaneError if it is no date."""
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError as error:
        raise PatchlaneError(f"--date {text}: not a date", "--date 2026-12-31") from error


def run(command: list[str], within_s: float, what: str = "", **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` with a limit in seconds of wall time: every program that others wrote is started here.

    At the limit the program and its children are killed, and CannotTestHere says what took so long. A program that asks
    gets no answer, unless ``input`` or ``stdin`` is given.
    """
    given = {
        "stdin": subprocess.DEVNULL,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if options.pop("capture_output", False) else {}),
    }
    data = options.pop("input", None)
    given |= {"stdin": subprocess.PIPE} if data is not None else {}
    with subprocess.Popen(command, **given | {"start_new_session": True} | options) as child:
        _running.add(child)
        try:
            out, err = child.communicate(data, within_s)
        except BaseException as error:
            _kill(child)
            if isinstance(error, subprocess.TimeoutExpired):
                said = f"{what or Path(command[0]).name}: no end within {within_s:g} s"
                raise CannotTestHere(said, "run again when the server or this host answers faster") from error
            raise
        finally:
            _running.discard(child)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def running() -> set[int]:
    """The processes that ``run`` waits for."""
    return {child.pid for child in list(_running)}


def kill_running() -> None:
    """Kill every program that ``run`` waits for in another thread, which an interrupt does not reach."""
    for child in list(_running):
        _kill(child)


def _kill(child: subprocess.Popen[Any]) -> None:
    """Kill the child with all that it started, if it has a session of its own: git's helpers hold its output open."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(child.pid) == child.pid:
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
