"""Commands in processes forked from one that has the patched stack imported: each starts in a moment, not in seconds.

``Server`` is the client's side; run as a script this file is the server. It forks before torch.distributed, generators
or threads exist, so a child is what a new process would be after its imports, but for the overlay being "all" packs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlane.base.errors import CannotTestHere
from reproducers.probe.checks import CannotTest
from reproducers.record.schema import ROOT

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
LIMIT_S = 550.0  # of wall time, of which a busy machine takes much; less than pytest's own limit, which tells nothing


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (minus the signal's number), all it printed, what its function returned."""

    code: int
    said: str
    value: Any = None


class Child:
    """One that runs; ``wait`` once."""

    def __init__(self, server: Server, pid: int, folder: Path) -> None:
        self.server, self.pid, self.folder = server, pid, folder

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Ended:
        timer = threading.Timer(LIMIT_S, self.kill, (signal.SIGKILL,))
        timer.start()
        code = self.server.ask({"wait": self.pid})
        timer.cancel()
        value = self.folder / "value"
        return Ended(code, self.said(), json.loads(value.read_text()) if value.exists() else None)


class Server:
    """The process that forks; ``missing`` says what it lacks, empty when nothing. ``folder`` holds children's words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, 0
        command = [sys.executable, "-W", "ignore", __file__]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.missing: str = self._answer()

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the forking process ended"
        return json.loads(line)

    def start(self, call: str, *arguments: Any, environment: dict[str, str] | None = None, **named: Any) -> Child:
        """``call``, "module:function", with arguments that JSON can hold, in a new process."""
        self.started += 1
        folder = self.folder / f"child{self.started}"
        folder.mkdir()
        (folder / "said").touch()
        request = {"call": call, "arguments": arguments, "named": named, "folder": str(folder)}
        return Child(self, self.ask(request | {"environment": environment or {}}), folder)

    def run(self, call: str, *arguments: Any, **named: Any) -> Ended:
        return self.start(call, *arguments, **named).wait()

    def ranks(self, world: int, call: str, *arguments: Any, **named: Any) -> list[Child]:
        """``call`` in ``world`` processes with the environment that torchrun gives."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        places = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        return [self.start(call, *arguments, environment=place, **named) for place in places]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _prepare() -> str:
    """Import everything, with the overlay of all packs. Returns what is missing, or ""."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch

    torch.set_num_threads(1)
    from model.patched import overlay
    from reproducers.upstream.store import Store

    try:
        found = overlay.build(Store(), overlay.chosen("all"), "cpu")
        overlay.activate(found)
    except (CannotTestHere, CannotTest, OSError) as lacking:
        return str(lacking)
    for module in ("model.step.engine", "model.loop.trainer", "trained", "torch.utils.tensorboard"):
        importlib.import_module(module)
    lock = importlib.import_module("model.patched.lock")
    pictures = importlib.import_module("model.reports.pictures")
    session = importlib.import_module("model.loop.session")
    watching = session.Coverage(found)
    session.Coverage = lambda *_: watching  # type: ignore[attr-defined]
    # done, or what tests of their own look at: seconds in each child
    overlay.build, overlay.activate = lambda *_: found, lambda _: None  # type: ignore[assignment]
    lock.verify = lambda _: None  # type: ignore[attr-defined]
    pictures._loss = pictures._throughput = lambda run_dir, *_: run_dir  # type: ignore[attr-defined]
    gc.freeze()  # Megatron collects at each save: what was imported need not be looked through again
    return ""


def _serve() -> None:
    words = os.fdopen(os.dup(1), "w")  # the children's own output goes to their files
    os.dup2(2, 1)
    answer: Any = _prepare()
    while True:
        words.write(json.dumps(answer) + "\n")
        words.flush()
        line = sys.stdin.readline()
        if not line:
            return
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
            continue
        answer = os.fork()
        if answer == 0:
            _child(request)


def _child(request: dict[str, Any]) -> None:
    folder, code = Path(request["folder"]), 0
    with (folder / "said").open("wb") as said, open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        os.dup2(nothing.fileno(), 0)
    os.environ.update(request["environment"])
    module, _, function = request["call"].partition(":")
    try:
        value = getattr(importlib.import_module(module), function)(*request["arguments"], **request["named"])
        (folder / "value").write_text(json.dumps(value))
    except SystemExit as left:
        code = int(left.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
