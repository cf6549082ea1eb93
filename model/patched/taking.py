"""Take the runs of a plan side by side: each on GPUs of its own, after the run whose checkpoint it begins with."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from model.patched.runs import PatchedRun, Plan
from patchlane.base.wording import count

CHECKPOINTS = "checkpoints"


class Ended(NamedTuple):
    """How a run ended: the exit code of its last command, -1 where it never began, and why."""

    code: int
    why: str = ""


class _Gpus:
    """GPUs that runs take and give back, whole requests only, so that no two wait for each other's."""

    def __init__(self, names: Sequence[str]) -> None:
        self.every = list(names)
        self._free, self._changed = list(names), threading.Condition()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[list[str]]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            mine = [self._free.pop(0) for _ in range(count)]
        try:
            yield mine
        finally:
            with self._changed:
                self._free += mine
                self._changed.notify_all()


class Taking:
    """Runs of a plan in ``out``/NAME, their output in ``out``/NAME.log. ``tell`` is given a line of progress."""

    def __init__(self, plan: Plan, out: Path, gpus: Sequence[str], tell: Callable[[str], None]) -> None:
        self.plan, self.out, self.tell, self._gpus = plan, out, tell, _Gpus(gpus)
        self._ended: dict[str, Future[Ended]] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def all(self) -> dict[str, Ended]:
        """How each run ended. A run that needs more GPUs than there are never begins."""
        self.out.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max(len(self.plan.runs), 1)) as pool:
            for name, run in self.plan.runs.items():  # in order: whom a run waits for has been submitted
                self._ended[name] = pool.submit(self._ended_so, name, run)
            try:
                return {name: ended.result() for name, ended in self._ended.items()}
            except BaseException:
                self._stop()
                raise

    def _stop(self) -> None:
        self._stopped = True
        for process in list(self._running):
            process.terminate()

    def _ended_so(self, name: str, run: PatchedRun) -> Ended:
        """How the run ended; a disk that fails it is not the end of the others."""
        try:
            return self._one(name, run)
        except OSError as error:
            return Ended(-1, f"{error.filename or self.out}: {error.strerror or error}")

    def _one(self, name: str, run: PatchedRun) -> Ended:
        if run.gpus > len(self._gpus.every):
            return Ended(-1, f"it takes {count(run.gpus, 'GPU')}, this host shows {len(self._gpus.every)}")
        if run.gpus and (ahead := run.ahead()):
            self.tell(f"{name}: its kernels are compiled")
            if code := self._call(name, ahead, self._gpus.every[:1]):
                return Ended(code, "its kernels do not compile")
        if run.after and self._ended[run.after].result().code:
            return Ended(-1, f"{run.after} failed, with whose checkpoint it begins")
        with self._gpus.taken(run.gpus) as mine:
            self._begin(name, run)
            began = time.monotonic()
            self.tell(f"{name}: begins" + (f" on GPU {', '.join(mine)}" if mine else " on the CPU"))
            code = self._call(name, run.command(self.out / name), mine)
            self.tell(f"{name}: {'failed' if code else 'ended'} after {time.monotonic() - began:.0f} s")
        return Ended(code)

    def _begin(self, name: str, run: PatchedRun) -> None:
        """Give the run the checkpoint that it begins with, unless it has one."""
        own = self.out / name / CHECKPOINTS
        if run.after and not own.exists():
            partial = own.with_name(f".{CHECKPOINTS}")  # of an earlier time, that was broken off
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(self.out / run.after / CHECKPOINTS, partial, copy_function=_linked)
            partial.rename(own)

    def _call(self, name: str, command: list[str], gpus: list[str]) -> int:
        if self._stopped:
            return -1
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        if not gpus:
            environment["OMP_NUM_THREADS"] = "1"  # tensors are small: threads wait longer than they work
        with (self.out / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
            self._running.add(process)
            try:
                return process.wait()
            finally:
                self._running.discard(process)


def _linked(source: str, target: str) -> str:
    """A hard link, for checkpoints are never written to again; a copy where the disk has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
