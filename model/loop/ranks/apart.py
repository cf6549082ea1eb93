"""A rank under torchrun in a process of its own session, which may end its checkpoint after torchrun has killed.

torchrun hands a SIGTERM on to its ranks' process groups and kills these 30 s later (``SubprocessHandler.close``, torch
2.13, where ``--shutdown-timeout`` is another number; earlier ones have no option). Of a large model one copy to host
memory may take that long. So what torchrun starts only waits and hands signals on, and its child is the rank. By
default the rank dies with it, as torchrun means it to: a rank that waits for one that has ended must go before the next
attempt. Once all ranks have agreed to stop, and from a checkpoint's begin to the next step, it lives on: there ranks
wait for each other by gloo alone, which tells at once of one that has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from types import FrameType

PARENT_DEATH = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>: of the thread that asks, so all here is for the main one
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_keeper: int | None = None  # the process that torchrun knows, in its child


def under_torchrun() -> bool:
    """Whether a torchrun agent has started this rank."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def live() -> None:
    """Under torchrun on Linux: go on in a child. Call it before there are threads."""
    global _keeper
    if _keeper is not None or not under_torchrun() or sys.platform != "linux":
        return
    keeper = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    rank = os.fork()
    if rank:
        _keep(rank, held)
    os.setsid()
    _keeper = keeper
    bind()
    signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _keep(rank: int, held: set[signal.Signals | int]) -> None:
    """Hand on signals until ``rank`` ends, and end as it does."""

    def hand_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for number in HANDED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    if code < 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # Python's own handlers, until the default is back
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def bind() -> None:
    """From now on die with the process that torchrun knows, at once where it has died."""
    if _keeper is not None:
        _prctl(signal.SIGKILL)
        if os.getppid() != _keeper:
            os.kill(os.getpid(), signal.SIGKILL)


def outlive() -> None:
    """From now on live on when torchrun kills."""
    if _keeper is not None:
        _prctl(0)


def _prctl(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PARENT_DEATH, number, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
