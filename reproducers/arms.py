"""Run one arm: the reproducer in a child process with a timeout, a memory limit and captured, live output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from reproducers.schema import ROOT
from reproducers.watch import Ranges

KEPT_ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CC")
POLL_S = 0.1
Sink = Callable[[str], None]


@dataclass(frozen=True)
class ArmSpec:
    """What one child is given. It is never told whether ``tree`` is patched."""

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


@dataclass
class ArmResult:
    """What came back: the child's own record where there is one, and how it ended."""

    outcome: str
    reason: str
    exit_code: int
    seconds: float
    peak_gib: float
    output: list[str]
    stamp: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "remedy": self.record.get("remedy", ""),
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 2),
            "peak_gib": round(self.peak_gib, 3),
            "sentinel": self.record.get("sentinel"),
            "checks": self.record.get("checks", []),
            "executed": self.record.get("executed", {}),
        }


_children: set[int] = set()
_children_lock = threading.Lock()
_stopped = threading.Event()  # once interrupted, an arm that a repeat still starts ends at once


def kill_children() -> None:
    """Kill every arm that is still running, with all its descendants."""
    _stopped.set()
    with _children_lock:
        for pid in list(_children):
            _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(psutil.Error):  # descendants that left for a session of their own
        for process in psutil.Process(pid).children(recursive=True):
            process.kill()
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(spec: ArmSpec) -> dict[str, str]:
    families = ("NCCL_", "NVSHMEM_", "TORCH_SYMM", "LC_")
    kept = {k: v for k, v in os.environ.items() if k in KEPT_ENVIRONMENT or k.startswith(families)}
    # in one site-packages a wheel finds its neighbours' libraries by a path relative to itself; trees lie apart
    folders = sorted({str(library.parent) for need in spec.needs for library in need.glob("*/lib/*.so*")})
    inherited = [kept["LD_LIBRARY_PATH"]] if kept.get("LD_LIBRARY_PATH") else []
    return kept | {
        **({"LD_LIBRARY_PATH": ":".join([*folders, *inherited])} if folders else {}),
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPYCACHEPREFIX": str(spec.cache / "pycache"),
        "TRITON_CACHE_DIR": str(spec.cache / "triton"),
        "TILELANG_CACHE_DIR": str(spec.cache / "tilelang"),
        "OMP_NUM_THREADS": str(spec.threads),
        "PYTHONFAULTHANDLER": "1",
    }


def _command(spec: ArmSpec, watch: Path) -> list[str]:
    command = [sys.executable, "-s", "-P", str(spec.reproducer), "--tree", str(spec.tree)]
    for need in spec.needs:
        command += ["--needs", str(need)]
    return [
        *command,
        *("--lane", spec.lane, "--seed", str(spec.seed), "--label", spec.label, "--watch", str(watch)),
    ]


def run_arm(spec: ArmSpec, sink: Sink) -> ArmResult:
    """Run the arm; ``sink`` gets each line as it comes. Whatever goes wrong in the child becomes an outcome."""
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        watch = Path(scratch) / "watch.json"
        watch.write_text(json.dumps(spec.watch))
        started = time.monotonic()
        child = subprocess.Popen(
            _command(spec, watch),
            cwd=scratch,
            env=_environment(spec),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with _children_lock:
            _children.add(child.pid)
            if _stopped.is_set():
                _kill_group(child.pid)
        try:
            output: list[str] = []
            reader = threading.Thread(target=_read, args=(child, output, sink), daemon=True)
            reader.start()
            ended, peak = _supervise(child, spec, started)
            _kill_group(child.pid)
            reader.join(timeout=10)
        finally:
            _kill_group(child.pid)
            child.wait()
            with _children_lock:
                _children.discard(child.pid)
    return _result(child.returncode, ended, time.monotonic() - started, peak, output)


def _read(child: subprocess.Popen[str], output: list[str], sink: Sink) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        output.append(line.rstrip("\n"))
        sink(output[-1])


def _supervise(child: subprocess.Popen[str], spec: ArmSpec, started: float) -> tuple[str, float]:
    """(why it was stopped or "", peak resident GiB of the child and its descendants)."""
    peak, process = 0.0, psutil.Process(child.pid)
    while child.poll() is None:
        peak = max(peak, _resident_gib(process))
        if peak > spec.memory_gib:
            _kill_group(child.pid)
            return f"killed: {peak:.1f} GiB resident is over the limit of {spec.memory_gib:g} GiB", peak
        if time.monotonic() - started > spec.timeout_s:
            _kill_group(child.pid)
            return f"killed: over the time limit of {spec.timeout_s:g} s", peak
        time.sleep(POLL_S)
    return "", peak


def _resident_gib(process: psutil.Process) -> float:
    try:
        family = [process, *process.children(recursive=True)]
        return float(sum(p.memory_info().rss for p in family)) / 2**30
    except psutil.Error:
        return 0.0


def json_line(line: str, kind: str) -> dict[str, Any]:
    """The probe's JSON line of that kind ("stamp" or "record"), or nothing."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and value.get("patchlane") == kind else {}


EXPECTED_EXIT = {"bug": 0, "healthy": 0, "cannot_test": 77, "different": 1}


def _result(code: int, ended: str, seconds: float, peak: float, output: list[str]) -> ArmResult:
    """A record counts only when it is the last line and the exit status agrees with it."""
    stamp = json_line(output[0], "stamp") if output else {}
    record = json_line(output[-1], "record") if output else {}
    outcome, reason = record.get("outcome", "different"), record.get("reason", "")
    if ended:
        outcome, reason = "different", ended
    elif code < 0:
        outcome, reason = "different", f"died of signal {signal.Signals(-code).name}"
    elif not record or not stamp:
        outcome, reason = "different", f"exit status {code} without a {'record' if stamp else 'stamp'}"
    elif EXPECTED_EXIT.get(outcome) != code:
        outcome, reason = "different", f"exit status {code} contradicts its record ({outcome})"
    return ArmResult(outcome, reason, code, seconds, peak, output, stamp, record)
