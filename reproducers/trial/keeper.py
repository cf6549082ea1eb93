"""Stand between the runner and one arm, so that no process of the arm outlives the arm or the runner.

``python -I -S keeper.py SCRATCH COMMAND...`` runs the command and ends with its exit status or signal. Then it kills
every process that the command started, daemons too: on Linux this process adopts them. When standard input closes, it
does the same and removes the folder SCRATCH: the runner closes it to stop the arm, and the system closes it when the
runner is killed. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINUX = sys.platform == "linux"
PATIENCE_S = 10.0


def prctl(option: int, value: int) -> None:
    """Set an option of this process, on Linux."""
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _start(command: list[str]) -> int:
    """Fork and execute the command in its own session, without standard input; it dies with the keeper."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(command[0], command)
    finally:
        os._exit(127)


def parents() -> dict[int, int]:
    """{process: its parent} of every process on this host; empty without /proc."""
    above = {}
    # Not glob: it asks for each file's status, and fails when a process ends between the two.
    with contextlib.suppress(FileNotFoundError):
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (folder / "stat").read_text(errors="replace")
                above[int(folder.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    return above


def descendants() -> list[int]:
    """This process's children, their children, and so on."""
    above, family = parents(), {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in above.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return sorted(family - {os.getpid()})


def _reap(arm: int, status: int | None) -> int | None:
    """Collect every child that has ended; returns the arm's wait status, or ``status`` until the arm ends."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            status = ended if pid == arm else status
    return status


def _end_family(arm: int, status: int | None) -> int | None:
    """Kill all descendants until none is left; returns the arm's wait status."""
    deadline = time.monotonic() + PATIENCE_S
    if not LINUX:  # without /proc, at least the arm's own group
        with contextlib.suppress(OSError):
            os.killpg(arm, signal.SIGKILL)
    while time.monotonic() < deadline:
        status = _reap(arm, status)
        family = descendants()
        if not family and (status is not None or LINUX):
            break
        for pid in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return _reap(arm, status)


def _leave(status: int | None) -> None:
    """End as the arm did."""
    if status is not None and os.WIFSIGNALED(status):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if status is not None else 1)


def main() -> None:
    """Run the command of the command line to its end, or to the end of standard input."""
    scratch, *command = sys.argv[1:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    arm = _start(command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the arm alone holds its output open
    os.dup2(nowhere, 2)
    status, stopped = None, False
    while status is None and not stopped:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        status = _reap(arm, status)
        stopped = 0 in ready
    status = _end_family(arm, status)
    if stopped:
        import shutil

        os.chdir("/")
        shutil.rmtree(scratch, ignore_errors=True)
    _leave(status)


if __name__ == "__main__":
    main()
