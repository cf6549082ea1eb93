"""Run one arm: the reproducer in a child process, with limits on time and memory, its output captured live.

Each arm runs under ``keeper.py`` in its own scratch folder, which also takes its temporary files. The runner holds a
lock in this folder while it lives, and the folder is TMPDIR of every process of the arm. So the next run finds the
processes and folders of a dead runner, and removes them. No other variable is there for this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from patchlane.base import clock, disk
from patchlane.base.wording import Repeats
from reproducers.probe.checks import Outcome
from reproducers.probe.watch import Ranges
from reproducers.record.receipt import Arm, Check, Executed, Facts, Stamp, record_of, stamp_of
from reproducers.record.schema import ROOT
from reproducers.trial import keeper
from reproducers.trial.observed import Inbox, Observed
from reproducers.upstream.store import INTERPRETER

KEPT_ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC")
KEEPER = Path(__file__).with_name("keeper.py")
DRAWING = ("hypothesis", "_hypothesis_globals", "sortedcontainers")  # what a reproducer that draws cases imports
LENT = {"cpu": (*DRAWING, "numpy"), "cuda": DRAWING}  # Triton's interpreter does not work with every numpy
MARK = "TMPDIR"  # the variable that holds the arm's scratch folder, in the environment of all its processes
PREFIX, LOCK = "python-", ".patchlane.lock"
POLL_S = 0.1
IDLE_SHARE = 0.1  # of one core: an arm that uses less and waits less for a core or a disk is idle; two ranks that wait
# for each other over gloo use 0.034 of a core
WALL_FACTOR = 20
PATIENCE_S = 15.0
SHM = "/dev/shm/"
WATCH, CENSUS = "watch.json", "census.json"
Sink = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """The facts that a census arm takes, {call: [fact]}; None: all that there is time for."""

    facts: dict[str, list[str]] | None = None


@dataclass(frozen=True)
class ArmSpec:
    """The input of one child. It never tells whether ``tree`` is patched.

    ``timeout_s``: seconds of processor time; simultaneous work of several cores counts once.
    """

    reproducer: Path
    tree: Path
    needs: list[Path]
    lane: str
    seed: int
    label: str
    watch: Ranges
    timeout_s: float
    memory_gib: float
    cache: Path
    threads: int = 1
    gpu: str | None = None  # the only GPU that it sees; None: every GPU of the runner
    until: Callable[[Check], bool] | None = None  # the arm is ended at the first check of which this holds
    census: Wanted | None = None  # it is a census arm, which takes these facts
    installed: bool = True  # the tree lies in a folder as an installed package does, or as in a checkout


@dataclass(frozen=True)
class Misused:
    """A fault of the reproducer: what, where, and whether a value that the tree gave may be its cause."""

    said: str
    remedy: str
    measured: bool = False


@dataclass
class ArmResult:
    """The record of what the child sent, if it sent all, and how it ended.

    ``ended_at``: the check at which the arm was ended, of which ``ArmSpec.until`` held; then there is no record.
    ``misused``: the reproducer's own fault, where it is one that no tree can be judged by.
    """

    outcome: Outcome
    reason: str
    exit_code: int
    seconds: float
    peak_gib: float
    output: list[str]
    stamp: Stamp | None = None
    remedy: str = ""
    sentinel: str | None = None
    checks: list[Check] = field(default_factory=list)
    executed: dict[str, Executed] = field(default_factory=dict)
    census: Facts = field(default_factory=dict)
    ended_at: Check | None = None
    misused: Misused | None = None

    def arm(self) -> Arm:
        """The arm in the form of a receipt."""
        return Arm(
            outcome=self.outcome,
            reason=self.reason,
            remedy=self.remedy,
            exit_code=self.exit_code,
            seconds=round(self.seconds, 2),
            peak_gib=round(self.peak_gib, 3),
            sentinel=self.sentinel,
            checks=self.checks,
            executed=self.executed,
        )


@dataclass(frozen=True)
class Stop:
    """Why an arm was stopped, and the option or step that lets it finish."""

    reason: str
    remedy: str


_children: set[subprocess.Popen[str]] = set()
_children_lock = threading.Lock()
_stopped = threading.Event()  # after an interrupt, a newly started arm ends at once


def kill_children() -> None:
    """End every running arm and its processes, and what is fetched; their ``run_arm`` raises KeyboardInterrupt."""
    _stopped.set()
    clock.kill_running()
    with _children_lock:
        for child in _children:
            _close(child)


def _close(child: subprocess.Popen[str]) -> None:
    """Tell the keeper to end its arm."""
    assert child.stdin is not None
    with contextlib.suppress(OSError):
        child.stdin.close()


def _own() -> set[int]:
    """This process's own children. Those of a dead keeper become its children too, from the first call on."""
    keeper.prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)
    return {child.pid for child in psutil.Process().children()}


def _kill_orphans(before: set[int]) -> None:
    """Kill what a killed keeper left: it may have given up the arm's environment, its session and its output."""
    for _ in range(100):
        with _children_lock:
            known = before | clock.running() | {child.pid for child in _children}
            orphans = [child for child in psutil.Process().children() if child.pid not in known]
        for orphan in orphans:
            with contextlib.suppress(psutil.Error, ChildProcessError):
                for process in [*orphan.children(recursive=True), orphan]:
                    process.kill()
                os.waitpid(orphan.pid, 0)
        if not orphans:
            return


def _end(child: subprocess.Popen[str], scratch: Path, before: set[int]) -> None:
    """End the arm and its processes, even if the arm has killed or stopped its keeper."""
    _close(child)
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(child.pid).children(recursive=True):
                process.kill()
        child.kill()
        child.wait()
    _kill_marked(scratch)
    if child.returncode == -signal.SIGKILL:
        _kill_orphans(before)


def _kill_marked(scratch: Path) -> None:
    """Kill every process whose environment names this scratch folder."""
    mark = os.fsencode(f"{MARK}={scratch}")
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A temporary folder whose lock this process holds; removed afterwards with all that the arm left in it."""
    with disk.writing(Path(tempfile.gettempdir()), disk.SCRATCH_REMEDY):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = _locked(folder / f"{LOCK}-new")
        (folder / f"{LOCK}-new").rename(folder / LOCK)  # no other run ever sees it unlocked while this one lives
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock:
            lock.close()


def _locked(path: Path) -> IO[bytes] | None:
    """The file, created if absent, and locked; None if another process holds the lock."""
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


@functools.cache
def remove_leftovers(place: Path) -> None:
    """Remove from ``place`` the scratch folders of killed runners, and end their arms' processes."""
    for path in place.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            lock = _locked(path) if path.stat().st_uid == os.getuid() else None
            if lock:
                _kill_marked(path.parent)
                shutil.rmtree(path.parent, ignore_errors=True)
                lock.close()


def _environment(spec: ArmSpec, scratch: Path) -> dict[str, str]:
    families = ("NCCL_", "NVSHMEM_", "TORCH_SYMM", "LC_")
    kept = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT or k.startswith(families)}
    # a wheel finds its neighbours' libraries by relative paths in one site-packages; here trees lie apart
    folders = sorted({str(library.parent) for need in spec.needs for library in need.glob("*/lib/*.so*")})
    inherited = [kept["LD_LIBRARY_PATH"]] if kept.get("LD_LIBRARY_PATH") else []
    return kept | {
        **({"LD_LIBRARY_PATH": ":".join([*folders, *inherited])} if folders else {}),
        MARK: str(scratch),
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *_lent(scratch, sys.prefix, spec.lane)))),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPYCACHEPREFIX": str(_bytecode(spec)),
        "TRITON_CACHE_DIR": str(spec.cache / "triton"),
        "TILELANG_CACHE_DIR": str(spec.cache / "tilelang"),
        "TORCHINDUCTOR_CACHE_DIR": str(spec.cache / "inductor"),
        "OMP_NUM_THREADS": str(spec.threads),
        **({"CUDA_VISIBLE_DEVICES": spec.gpu} if spec.gpu else {}),
        **({"CUDA_VISIBLE_DEVICES": ""} if spec.lane == "cpu" else {}),  # before an import of upstream asks for a GPU
        "PYTHONFAULTHANDLER": "1",
    }


def _lent(scratch: Path, prefix: str, lane: str) -> list[Path]:
    """A folder of links to what an arm imports that the interpreter under ``prefix`` has from elsewhere.

    Beside a bundle that is among the engine's requirements, of which an arm must see nothing else.
    """
    found = [importlib.util.find_spec(name) for name in LENT[lane]]
    origins = [Path(spec.origin) for spec in found if spec and spec.origin]
    if not (elsewhere := [path for path in origins if not path.is_relative_to(prefix)]):
        return []
    folder = scratch / "lent"
    folder.mkdir()
    for path in elsewhere:
        part = path.parent if path.name == "__init__.py" else path
        beside = (part.parent.glob(f"{part.stem}{more}") for more in (".libs", "-*.dist-info"))  # its version is told
        for one in (part, *itertools.chain(*beside)):
            (folder / one.name).symlink_to(one)
    return [folder]


def _bytecode(spec: ArmSpec) -> Path:
    """The bytecode folder of this arm's trees: no arm runs bytecode that was compiled from another tree.

    Arms share the bytecode of the interpreter's own libraries, which costs seconds to compile.
    """
    names = "\n".join(str(path) for path in (spec.tree, *spec.needs))
    folder = spec.cache / "bytecode" / hashlib.sha256(os.fsencode(names)).hexdigest()
    shared = spec.cache / "bytecode" / INTERPRETER
    for library in {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}:
        link, common = (base / library.lstrip("/") for base in (folder, shared))
        if not any(parent.is_symlink() for parent in (link, *link.parents)):
            common.mkdir(parents=True, exist_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(common)
    os.utime(folder)
    return folder


def _installed(spec: ArmSpec) -> Path:
    """The tree under a name as an installed package has it; the same each time, so that bytecode is found again."""
    name = hashlib.sha256(os.fsencode(str(spec.tree))).hexdigest()[:32]
    link = (
        spec.cache / "installed" / name / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(spec.tree)
    return link


def _command(spec: ArmSpec, tree: Path, scratch: Path, inbox: Inbox) -> list[str]:
    census = ["--census", str(scratch / CENSUS)] if spec.census else []
    command = [sys.executable, "-s", "-P", str(spec.reproducer), "--tree", str(tree)]
    for need in spec.needs:
        command += ["--needs", str(need)]
    return [
        *command,
        *("--lane", spec.lane, "--seed", str(spec.seed), "--label", spec.label, "--watch", str(scratch / WATCH)),
        *("--channel", *map(str, inbox.passed)),
        *census,
    ]


def run_arm(spec: ArmSpec, sink: Sink) -> ArmResult:
    """Run the arm; ``sink`` gets each line as it comes. Every failure of the child becomes an outcome.

    Raises PatchlaneError if this host refuses a scratch folder, KeyboardInterrupt after ``kill_children``, and what
    ``sink`` raised, once the arm has ended.
    """
    remove_leftovers(Path(tempfile.gettempdir()))
    with _scratch_folder() as scratch:
        with disk.writing(scratch, disk.SCRATCH_REMEDY):
            (scratch / WATCH).write_text(json.dumps(spec.watch))
            (scratch / CENSUS).write_text(json.dumps(spec.census.facts if spec.census else None))
        if not os.access(spec.cache, os.W_OK):  # a store that can only be read serves too, but keeps nothing compiled
            spec = dataclasses.replace(spec, cache=scratch / "cache")
        with disk.writing(spec.cache, disk.STORE_REMEDY):
            environment = _environment(spec, scratch)
            tree = _installed(spec) if spec.installed else spec.tree
        transcript = Transcript(sink)
        started, inbox, before = time.monotonic(), Inbox(transcript.begin, spec.until), _own()
        try:
            with disk.writing(scratch, "end other processes, or run again later"), _children_lock:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPER), str(scratch), *_command(spec, tree, scratch, inbox)],
                    cwd=scratch,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    pass_fds=inbox.passed,
                )
                _children.add(child)
        except BaseException:
            inbox.drop()
            raise
        inbox.listen()
        meter = Meter(psutil.Process(child.pid), spec)
        if _stopped.is_set():
            _close(child)
        try:
            reader = threading.Thread(target=transcript.read, args=(child,), daemon=True)
            reader.start()
            stop = meter.watch(child, inbox.enough)
            _end(child, scratch, before)
            reader.join(timeout=10)
            inbox.close()
            transcript.begin("")
        finally:
            _end(child, scratch, before)
            meter.remove_shared_memory()
            with _children_lock:
                _children.discard(child)
    if _stopped.is_set():
        raise KeyboardInterrupt
    if transcript.error:
        raise transcript.error
    output = transcript.lines
    if inbox.ended_at:
        return _cut(child.returncode, inbox.ended_at, time.monotonic() - started, meter.peak_gib, output)
    observed = inbox.observed()
    if observed:
        output.append(observed.line)
        sink(observed.line)
    fault = inbox.fault or (observed.fault if observed else "")
    result = _result(child.returncode, stop, time.monotonic() - started, meter.peak_gib, output, fault)
    result.census = inbox.census()
    if result.outcome == "different":
        result.misused = _misused(result, observed)
    return result


UNBEGUN = "correct it there; a module that a host may lack goes to lanes.LANE.requires in pack.yaml"


def _misused(result: ArmResult, observed: Observed | None) -> Misused | None:
    """The reproducer's fault: a call that the probe could not take, or an error before the probe began."""
    if observed is not None and observed.misused is not None:
        return Misused(result.reason, result.remedy, observed.misused)
    lines = [match[1] for text in result.output if (match := re.search(r'/reproducer\.py", line (\d+)', text))]
    if result.stamp is not None or result.exit_code != 1 or not lines:
        return None
    said = next((text for text in reversed(result.output) if re.match(r"\w[\w.]*(Error|Exception)\b", text)), "")
    return Misused(f"reproducer.py:{lines[-1]}: it ends before the probe begins: {said}", UNBEGUN)


class Transcript:
    """What an arm printed, its stamp first: lines that come before the stamp wait for it, and for nothing else.

    What upstream prints again and again is kept a few times, and counted at the end.
    What the arm prints is no record, even if it looks like one. ``error`` is the sink's, which gets nothing more: both
    threads that call it have to read on, or the arm's record were lost.
    """

    def __init__(self, sink: Sink) -> None:
        self.lines: list[str] = []
        self.error: Exception | None = None
        self._sink, self._early, self._begun = sink, list[str](), False
        self._repeats = Repeats()
        self._lock = threading.Lock()  # the stamp comes in another thread than the lines

    def read(self, child: subprocess.Popen[str]) -> None:
        """Take the child's lines until its output ends."""
        assert child.stdout is not None
        for line in child.stdout:
            text = line.rstrip("\n")
            if not self._repeats.keep(text):
                continue
            with self._lock:
                self._early.append(f"printed: {text}" if '"patchlane"' in text else text)
                if self._begun:
                    self._pass_on()
        with self._lock:
            self._early += self._repeats.rest()
            if self._begun:
                self._pass_on()

    def begin(self, stamp: str) -> None:
        """Pass the stamp on, then all that waits for it. Only the first call has an effect; without a stamp: ""."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._early[:0] = [stamp] if stamp else []
                self._pass_on()

    def _pass_on(self) -> None:
        self.lines += self._early
        try:
            for line in self._early if self.error is None else ():
                self._sink(line)
        except Exception as error:
            self.error = error
        self._early.clear()


class Meter:
    """An arm's use of processor time, memory and files in /dev/shm, held to the limits of its spec.

    A busy machine never stops an arm: time counts only while the arm computes, and an arm that spends its time waiting
    for a core or a disk is not idle.
    """

    def __init__(self, keeper: psutil.Process, spec: ArmSpec) -> None:
        self.keeper, self.spec = keeper, spec
        self.started = self.last = self.quiet_since = time.monotonic()
        self.processor = self.quiet_processor = 0.0  # seconds, over all cores
        self.waited = 0.0  # seconds since ``quiet_since`` in which it ran or waited for a core or a disk
        self.spent = 0.0  # seconds in which it computed, on any number of cores
        self.peak_gib = 0.0
        self.shared: set[str] = set()  # files in /dev/shm that it opened, without those there before
        self.there_before = set(_shared_files())

    def watch(self, child: subprocess.Popen[str], enough: threading.Event) -> Stop | None:
        """Wait for the child's end: None if it ended by itself or ``enough`` is set, else why it must be stopped."""
        while child.poll() is None and not enough.is_set():
            with contextlib.suppress(psutil.Error):
                self.sample()
            if stop := self.stop():
                return stop
            with contextlib.suppress(subprocess.TimeoutExpired):  # not sleep: an arm's end is seen at once
                child.wait(POLL_S)
        return None

    def sample(self) -> None:
        """Bring the figures up to date. Raises psutil.Error if a process ends meanwhile; sample again then."""
        family = self.keeper.children(recursive=True)
        now, resident, waiting = time.monotonic(), 0, not family  # on a busy machine the keeper has not started it yet
        ended = self.keeper.cpu_times()
        processor = ended.children_user + ended.children_system
        for process in family:
            with process.oneshot():
                times = process.cpu_times()
                processor += times.user + times.system + times.children_user + times.children_system
                resident += process.memory_info().rss
                waiting |= process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
            self.shared |= _opened(process.pid) - self.there_before
        self.peak_gib = max(self.peak_gib, (resident + sum(map(_size, self.shared))) / 2**30)
        gained = max(0.0, processor - self.processor)
        self.spent += min(gained, now - self.last)
        self.waited += (now - self.last) * waiting
        self.processor, self.last = max(processor, self.processor), now
        if max(self.processor - self.quiet_processor, self.waited) > IDLE_SHARE * (now - self.quiet_since):
            self.quiet_since, self.quiet_processor, self.waited = now, self.processor, 0.0

    def stop(self) -> Stop | None:
        """Why the last sample requires a stop; None if the arm may go on."""
        limit, now = self.spec.timeout_s, time.monotonic()
        longer = f"--timeout {max(600, 2 * limit):g}"
        if self.peak_gib > self.spec.memory_gib:
            field = f"lanes.{self.spec.lane}.memory_gib in {self.spec.reproducer.parent.name}/pack.yaml"
            reason = f"over {self.spec.memory_gib:g} GiB of memory ({self.peak_gib:.1f} GiB)"
            return Stop(reason, f"on a host that has more, raise {field}")
        if self.spent > limit:
            return Stop(f"over {limit:g} s of processor time", longer)
        if now - self.quiet_since > limit:
            return Stop(f"hung: {limit:g} s without using the processor", longer)
        if now - self.started > WALL_FACTOR * limit:
            return Stop(f"over {WALL_FACTOR * limit:g} s of wall time", longer)
        return None

    def remove_shared_memory(self) -> None:
        """Remove the arm's files from /dev/shm."""
        for name in self.shared:
            with contextlib.suppress(OSError):
                Path(name).unlink()


def _shared_files() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for folder, _, names in os.walk(SHM):
            yield from (f"{folder.rstrip('/')}/{name}" for name in names)


def _opened(pid: int) -> set[str]:
    """The files in /dev/shm that a process has open."""
    names = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if name.startswith(SHM) and not name.endswith(" (deleted)"):
                    names.add(name)
    return names


def _size(name: str) -> int:
    """Bytes that a file takes on disk, 0 if it is gone."""
    try:
        return Path(name).stat().st_blocks * 512
    except OSError:
        return 0


EXPECTED_EXIT: dict[Outcome, int] = {"bug": 0, "healthy": 0, "cannot_test": 77, "different": 1}
NO_ROOM = (f"[Errno {errno.ENOSPC}]", os.strerror(errno.ENOSPC))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals have no names
        return str(number)


def _cut(code: int, check: Check, seconds: float, peak: float, output: list[str]) -> ArmResult:
    """The result of an arm that was ended at a check: this check alone."""
    reason = f"ended at its first failing check: {check.name}"
    outcome: Outcome = "bug" if check.shows_bug else "different"
    stamp = stamp_of(output[0]) if output else None
    return ArmResult(outcome, reason, code, seconds, peak, output, stamp, checks=[check], ended_at=check)


def _result(code: int, stop: Stop | None, seconds: float, peak: float, output: list[str], fault: str = "") -> ArmResult:
    """The arm's result. A record counts only without a fault, and if it agrees with the exit status."""
    stamp = stamp_of(output[0]) if output else None
    record = record_of(output[-1]) if output else None
    outcome: Outcome = record.outcome if record else "different"
    reason, remedy = (record.reason, record.remedy) if record else ("", "")
    if code < 0:
        outcome, reason = "different", f"died of signal {_signal_name(-code)}"
    elif fault:
        outcome, reason = "different", fault
    elif not record or not stamp:
        outcome, reason = "different", f"exit status {code} without a {'record' if stamp else 'stamp'}"
    elif EXPECTED_EXIT.get(outcome) != code:
        outcome, reason = "different", f"exit status {code} contradicts its record ({outcome})"
    if stop is None and outcome == "different" and any(word in line for line in output for word in NO_ROOM):
        stop = Stop(f"no space left on a disk of this host: {reason}", f"{disk.STORE_REMEDY}; {disk.SCRATCH_REMEDY}")
    if stop:  # a limit or this host stopped it: no verdict on the code under test
        outcome, reason, remedy = "cannot_test", stop.reason, stop.remedy
    sentinel = record.sentinel if record and record.outcome == outcome else None
    observed = (record.checks, record.executed) if record else ([], {})
    return ArmResult(outcome, reason, code, seconds, peak, output, stamp, remedy, sentinel, *observed)
