"""Programs and servers of others have a limit in time, and end with all that they started."""

import ast
import subprocess
import threading
import time

import pytest

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere
from patchlane.base.exits import Exit
from reproducers.record.schema import ROOT


def test_at_the_limit_the_program_and_its_children_end(tmp_path):
    """A grandchild holds the output open, as git's helpers do."""
    mark = tmp_path / "alive"
    script = f"(sleep 60; touch {mark}) & echo $! > {tmp_path}/pid; sleep 60"
    with pytest.raises(CannotTestHere, match=r"git fetch: no end within 0\.5 s") as caught:
        clock.run(["sh", "-c", script], 0.5, "git fetch", capture_output=True)
    assert caught.value.exit_code is Exit.CANNOT_TEST and caught.value.remedy
    pid = (tmp_path / "pid").read_text().strip()
    for _ in range(100):
        state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
        if not state.strip() or state.startswith("Z"):
            break
        time.sleep(0.05)
    assert not state.strip() or state.startswith("Z")


def test_what_it_says_and_how_it_ends():
    done = clock.run(["sh", "-c", "cat; echo no >&2; exit 3"], 30, input=b"given", capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"given", b"no\n")
    assert clock.run(["cat"], 30, capture_output=True, text=True).stdout == "", "it is not waited for an answer"
    with pytest.raises(FileNotFoundError):
        clock.run(["no-such-program"], 30)


def test_an_interrupt_ends_what_other_threads_wait_for():
    ended = []
    thread = threading.Thread(target=lambda: ended.append(clock.run(["sleep", "60"], 60).returncode))
    thread.start()
    while not clock._running:
        time.sleep(0.01)
    clock.kill_running()
    thread.join(30)
    assert ended == [-9]


STARTS = {"run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput", "system", "popen"}
UNLIMITED = {  # {file: programs that it starts without a limit in the call}
    "patchlane/base/clock.py": 1,  # the one place
    "reproducers/trial/arms.py": 1,  # arms, which ``Meter`` limits, and with them these
    "reproducers/probe/stamp.py": 1,
    "reproducers/probe/lanes/tilelang.py": 1,
    "reproducers/probe/lanes/kept.py": 1,
}
CONNECTING = {"requests", "urllib.request", "http.client", "pypi_simple", "httpx", "aiohttp", "urllib3"}


def nodes(kind):
    """(file, node) of each node of the kind in the engine."""
    for path in (*(ROOT / "patchlane").rglob("*.py"), *(ROOT / "reproducers").rglob("*.py")):
        name, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kind))


def test_no_program_is_started_without_a_limit():
    started = [
        name
        for name, call in nodes(ast.Call)
        if getattr(call.func, "attr", "") in STARTS
        and getattr(getattr(call.func, "value", None), "id", "") in ("subprocess", "os")
        and "timeout" not in {word.arg for word in call.keywords}
    ]
    assert {name: started.count(name) for name in started} == UNLIMITED


def test_each_request_has_a_limit():
    """Two modules open connections: of a session each request has one, and so has the one of --data."""
    named = [(name, alias.name) for name, node in nodes(ast.Import) for alias in node.names]
    named += [(name, node.module) for name, node in nodes(ast.ImportFrom)]
    assert {name for name, module in named if module in CONNECTING} == {
        "reproducers/upstream/index.py",
        "patchlane/known/data.py",
    }
