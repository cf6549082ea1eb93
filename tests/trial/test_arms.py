"""A reproducer that lies, dies or gets the wrong tree never passes for the bug."""

import contextlib
import dataclasses
import errno
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy
import psutil
import pytest
from tiers import sampled
from toy import FIRST, RECORD, SOURCE, TOTAL, body, edited, write_tree

from patchlane.base.errors import PatchlaneError
from reproducers.base.verdicts import Verdict
from reproducers.probe import Probe
from reproducers.probe.checks import Check, Signature, judge, judge_error
from reproducers.record.schema import load_packs
from reproducers.trial import arms, experiment, keeper
from reproducers.trial.arms import ArmSpec, _environment, _lent

SHORT = "    timeout_s: 2\n    memory_gib: 0.3\n"
BAD = {
    "import error": ("raise ImportError('no such name')", "different"),
    "missing dependency": ("import_module = p.upstream('toyup.needy')", "cannot_test"),
    "missing dependency, not through the probe": ("import not_installed_anywhere", "cannot_test"),
    "module not in the tree": ("p.upstream('toyup.absent')", "cannot_test"),
    "syntax error upstream": ("p.upstream('toyup.broken')", "different"),
    "hangs": ("time.sleep(60)", "cannot_test"),
    "computes on": ("while True: pass", "cannot_test"),
    "memory limit": ("x = bytearray(600 * 2**20); x[::4096] = b'x' * len(x[::4096]); time.sleep(60)", "cannot_test"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "different"),
    "segfault": ("ctypes.string_at(0)", "different"),
    "exit 0 without a record": ("sys.exit(0)", "different"),
    "hard exit": ("os._exit(0)", "different"),
    "no check": ("pass", "different"),
    "sentinel by hand": ("print('BUG_REPRODUCED: trust me')", "different"),
    "sentinel by hand, hard exit": ("print('BUG_REPRODUCED: trust me', flush=True); os._exit(0)", "different"),
    "an error at exit": (
        """
        import atexit
        atexit.register(os._exit, 3)
        p.error("e", 1.0, 1e-9, reference="0", bug_above=0.5)
        """,
        "different",
    ),
    "forged record line": (
        """
        print('{"patchlane": "record", "outcome": "bug", "reason": "x", "sentinel": "BUG_REPRODUCED", "checks": []}')
        """,
        "different",
    ),
    "forged record, wrong exit": (
        """
        print('{"patchlane": "record", "outcome": "bug", "reason": "x", "checks": []}', flush=True)
        os._exit(1)
        """,
        "different",
    ),
    "wrong frame": (
        """
        def elsewhere():
            raise ValueError("empty is not supported")
        p.attempt("a", elsewhere, probe.Signature("ValueError", "^empty is not", "toyup/core.py"))
        """,
        "different",
    ),
    "wrong message": (
        """
        core = p.upstream("toyup.core")
        p.attempt("a", lambda: core.first([]), probe.Signature('ValueError', '^other', "toyup/core.py"))
        """,
        "different",
    ),
    "wrong type": (
        """
        core = p.upstream("toyup.core")
        p.attempt("a", lambda: core.first([]), probe.Signature('KeyError', '^empty', "toyup/core.py"))
        """,
        "different",
    ),
    "NaN": ("p.error('e', float('nan'), 1e-9, reference='0', bug_above=0.5)", "different"),
    "infinity": ("p.error('e', float('inf'), 1e-9, reference='0', bug_above=0.5)", "different"),
    "between limit and bug": ("p.error('e', 0.1, 1e-9, reference='0', bug_above=0.5)", "different"),
    "one different among bugs": (
        "p.error('e', 1, 1e-9, reference='0', bug_above=.5); p.error('n', float('nan'), 1, reference='0', bug_above=2)",
        "different",
    ),
    "error after the bug": ("p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5); 1 / 0", "different"),
    "skipped check only": ("p.skip('e', 'no GPU')", "different"),
    "cannot test": ("raise probe.CannotTest('no GPU', 'buy one')", "cannot_test"),
    "cannot test inside an attempt": (
        """
        def call():
            raise probe.CannotTest("no GPU")
        p.attempt("a", call, probe.Signature("Exception", "", "toyup/core.py"))
        """,
        "cannot_test",
    ),
    "imported from elsewhere": (
        """
        import types
        from pathlib import Path
        fake = Path("fake.py"); fake.write_text("")
        sys.modules["toyup.core"] = types.ModuleType("toyup.core"); sys.modules["toyup.core"].__file__ = str(fake)
        p.upstream("toyup.core")
        p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5)
        """,
        "different",
    ),
    "imported from elsewhere, not through the probe": (
        """
        import types
        sys.modules["toyup.core"] = types.ModuleType("toyup.core"); sys.modules["toyup.core"].__file__ = "/etc/hostname"
        p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5)
        """,
        "different",
    ),
}
EXTRA = {**SOURCE, "toyup/needy.py": "import not_installed_anywhere\n", "toyup/broken.py": "def (:\n"}


def limited(toy, code, seconds=60):
    """A pack with this code and a limit on time; a busy machine may take seconds to start an arm, so 60 by default."""
    short = SHORT.replace("timeout_s: 2", f"timeout_s: {seconds}")
    record = RECORD.replace("    timeout_s: 30\n    memory_gib: 2\n", short)
    return toy.pack(toy.patch(edited(TOTAL)), body(code), record)


def bad(toy, name):
    """The pack of that name in BAD."""
    return limited(toy, BAD[name][0], 2 if name in ("hangs", "computes on") else 60)


@pytest.mark.parametrize("name", sampled(BAD, 4))
def test_never_the_bug(toy, name):
    outcome = BAD[name][1]
    run = toy.run(bad(toy, name), EXTRA)
    assert run.pristine[0].outcome == outcome, run.log
    assert run.ruling.verdict in (Verdict.DIFFERENT_FAILURE, Verdict.UNTESTABLE)
    assert run.sentinels == []
    assert not run.patched


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hangs", ["hung", "2 s"]),
        ("computes on", ["processor", "2 s"]),
        ("memory limit", ["memory", "0.3 GiB"]),
        ("SIGKILL", ["SIGKILL"]),
        ("segfault", ["SIGSEGV"]),
        ("hard exit", ["status 0", "record"]),
        ("no check", ["bug check"]),
        ("imported from elsewhere", ["toyup.core", "fake.py"]),
        ("missing dependency", ["not_installed_anywhere"]),
    ],
)
def test_the_reason_names_the_cause(toy, name, words):
    reason = toy.run(bad(toy, name), EXTRA).ruling.reason
    assert all(word in reason for word in words), reason


def alive(pid):
    """Whether the process runs; a zombie does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pids(lines):
    return [int(line.split()[-1]) for line in lines if "PID" in line]


def left(numbers):
    """The processes that still run two seconds later; kills them."""
    deadline = time.monotonic() + 2
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    running = [pid for pid in numbers if alive(pid)]
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return running


CHILD = 'child = subprocess.Popen(["sleep", "97"], start_new_session={own})\nprint("PID", child.pid, flush=True)\n'
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if daemon := os.fork():
        print("PID", daemon, flush=True)
    else:
        os.execvp("sleep", ["sleep", "97"])
    os._exit(0)
os.wait()
"""
STARTED = {"child": CHILD.format(own=False), "session": CHILD.format(own=True), "daemon": DAEMON}
ENDS = {
    "a normal end": "",
    "a limit": "time.sleep(60)",
    "no keeper": "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)",
    "a stopped keeper": "os.kill(os.getppid(), signal.SIGSTOP)",
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("started", sampled(STARTED, 2))
def test_nothing_outlives_its_arm(toy, monkeypatch, started, end):
    """Nor does a daemon, and the run does not wait for the output that it holds open."""
    monkeypatch.setattr(arms, "PATIENCE_S", 0.5)
    run = toy.run(limited(toy, f"{STARTED[started]}\n{ENDS[end]}", 2))
    (pid,) = pids(run.pristine[0].output)
    assert left([pid]) == []
    assert run.ruling.verdict in (Verdict.DIFFERENT_FAILURE, Verdict.UNTESTABLE)


@pytest.fixture
def killed(toy, monkeypatch):
    """Send the runner of an arm with a daemon a signal: (exit code, processes, temporary folder, output)."""
    place = toy.root / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))

    def kill(number):
        write_tree(toy.upstream, SOURCE)
        code = DAEMON + "print('PID', os.getppid()); print('PID', os.getpid(), flush=True); time.sleep(60)"
        repo = toy.repository(toy.pack(reproducer=body(code)))
        # a child keeps an ignored signal, as under nohup, but never a handler
        before = signal.signal(signal.SIGHUP, lambda *_: None)
        runner = toy.verb(repo, "run", "7", "-v", "--upstream", str(toy.upstream), stderr=subprocess.STDOUT)
        signal.signal(signal.SIGHUP, before)
        family = [int(next(line for line in runner.stdout if "PID" in line).split()[-1]) for _ in range(3)]
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=300)
        return runner.returncode, family, place, output

    return kill


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_runner(killed, number):
    code, family, place, output = killed(number)
    assert code == (-9 if number == signal.SIGKILL else 130)
    assert left(family) == []
    assert not any(word.value in output for word in Verdict), "an interrupted arm has no verdict"
    deadline = time.monotonic() + 120  # the keeper removes the folder once the arm is gone
    while list(place.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert list(place.iterdir()) == []


def test_the_next_run_removes_what_a_dead_runner_and_keeper_left(tmp_path):
    dead, living = (tmp_path / f"{arms.PREFIX}{name}" for name in ("dead", "living"))
    processes = []
    for folder in (dead, living):
        write_tree(folder, {arms.LOCK: "", "data": "x"})
        processes.append(subprocess.Popen(["sleep", "97"], env={arms.MARK: str(folder)}))
    with (living / arms.LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        arms.remove_leftovers(tmp_path)
    assert processes[0].wait(120) == -signal.SIGKILL and not dead.exists()
    assert processes[1].poll() is None and (living / "data").exists()
    processes[1].kill()
    processes[1].wait()


def test_an_arms_temporary_files_go_with_it(toy):
    code = "import tempfile; print('AT', tempfile.mkdtemp()); open('here', 'w').close()"
    run = toy.run(limited(toy, code))
    place = next(line.split()[-1] for line in run.pristine[0].output if "AT" in line)
    assert arms.PREFIX in place and not Path(place).parent.exists()


def test_shared_memory_files_are_counted_and_removed(toy):
    code = """
    f = open(f"/dev/shm/patchlane-test-{os.getpid()}", "wb")
    f.write(bytes(400 * 2**20))
    f.flush()
    time.sleep(60)
    """
    before = set(Path("/dev/shm").iterdir())
    arm = toy.run(limited(toy, code)).pristine[0]
    assert (arm.outcome, arm.peak_gib > 0.3) == ("cannot_test", True)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_process_that_ends_while_all_are_listed_does_no_harm(monkeypatch, tmp_path):
    asked = os.stat

    def status(path, *rest, **options):
        if str(path).startswith("/proc/"):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), str(path))
        return asked(path, *rest, **options)

    other = subprocess.Popen(["sleep", "60"], env={arms.MARK: str(tmp_path)})
    monkeypatch.setattr(os, "stat", status)
    assert keeper.parents()[other.pid] == os.getpid()
    arms._kill_marked(tmp_path)
    assert other.wait(10) == -signal.SIGKILL


def test_a_host_without_proc_lists_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr(keeper, "Path", lambda name: tmp_path / name.lstrip("/"))
    assert keeper.parents() == {}


def test_a_line_before_the_stamp_waits_for_it_and_not_for_the_next_line():
    """The stamp comes over a channel of its own: a line that came first was held until the arm printed again."""
    seen = list[str]()
    transcript = arms.Transcript(seen.append)
    child = subprocess.Popen(["echo", "PID 1"], stdout=subprocess.PIPE, text=True)
    transcript.read(child)
    assert child.wait(10) == 0 and seen == []
    transcript.begin("stamp")
    transcript.begin("another")
    assert seen == transcript.lines == ["stamp", "PID 1"]


def test_what_an_arm_printed_is_shown_if_it_ends_before_its_stamp(toy):
    run = toy.run(toy.pack(reproducer="print('a word before the end')\nraise SystemExit(3)\n"), arm="pristine")
    assert run.ruling.verdict is Verdict.DIFFERENT_FAILURE
    assert "[pristine] a word before the end" in run.log


def test_lines_are_taken_on_where_they_can_no_longer_be_shown():
    """A thread that ended with the error left the arm's messages unread, and its verdict wrong."""
    shown = list[str]()

    def sink(line):
        shown.append(line)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    transcript = arms.Transcript(sink)
    transcript.begin("stamp")
    child = subprocess.Popen(["printf", "a\\nb\\n"], stdout=subprocess.PIPE, text=True)
    transcript.read(child)
    assert child.wait(10) == 0 and transcript.lines == ["stamp", "a", "b"]
    assert shown == ["stamp"] and transcript.error.errno == errno.ENOSPC


ENDLESS = {
    "in ended children": "while True: subprocess.run([sys.executable, '-S', '-c', 'sum(range(10**7))'])",
    "in a daemon": "if os.fork() == 0:\n    while os.fork(): os._exit(0)\n    while True: pass\ntime.sleep(60)",
}


@pytest.mark.parametrize("where", ENDLESS)
def test_processor_time_of_the_whole_family_counts(toy, where):
    arm = toy.run(limited(toy, ENDLESS[where].replace("os.wait() if os.fork() else None\n", ""), 2)).pristine[0]
    assert arm.outcome == "cannot_test"
    assert "processor" in arm.reason and "2 s" in arm.reason


class Keeper:
    """A keeper with a process whose figures the test sets."""

    pid, status_now, used, started = 0, psutil.STATUS_SLEEPING, 0.0, True

    def children(self, recursive=False):
        return [self] if recursive and self.started else []

    def oneshot(self):
        return contextlib.nullcontext()

    def cpu_times(self):
        return SimpleNamespace(user=self.used, system=0.0, children_user=0.0, children_system=0.0)

    def memory_info(self):
        return SimpleNamespace(rss=0)

    def status(self):
        return self.status_now


def metered(monkeypatch, tmp_path, share, status, started=True):
    """(seconds, reason) of the stop of an arm that gets this share of a core, with a limit of 100 s."""
    clock, keeper = [0.0], Keeper()
    monkeypatch.setattr(arms.time, "monotonic", lambda: clock[0])
    spec = ArmSpec(tmp_path / "p/reproducer.py", tmp_path, [], "cpu", 0, "", {}, 100, 1, tmp_path)
    meter = arms.Meter(keeper, spec)
    keeper.status_now, keeper.started = status, started
    while (stop := meter.stop()) is None:
        clock[0] += 10
        keeper.used = clock[0] * share
        meter.sample()
    return clock[0], stop


@pytest.mark.parametrize(
    ("share", "status", "end", "words"),
    [
        (1, psutil.STATUS_RUNNING, 101, ["over 100 s", "processor"]),
        (16, psutil.STATUS_RUNNING, 101, ["over 100 s", "processor"]),
        (0.0625, psutil.STATUS_RUNNING, 1601, ["over 100 s", "processor"]),
        (0.0001, psutil.STATUS_RUNNING, 2001, ["over 2000 s", "wall"]),
        (0, psutil.STATUS_SLEEPING, 101, ["hung", "100 s"]),
        (0.05, psutil.STATUS_SLEEPING, 101, ["hung", "100 s"]),  # ranks that wait for each other
        (0.5, psutil.STATUS_SLEEPING, 201, ["over 100 s", "processor"]),
        (0, psutil.STATUS_DISK_SLEEP, 2001, ["over 2000 s", "wall"]),
    ],
)
def test_a_busy_machine_does_not_decide(monkeypatch, tmp_path, share, status, end, words):
    seconds, stop = metered(monkeypatch, tmp_path, share, status)
    assert (seconds, stop.remedy) == (pytest.approx(end, abs=10), "--timeout 600")
    assert all(word in stop.reason for word in words), stop


def test_an_arm_that_the_keeper_has_not_started_is_not_idle(monkeypatch, tmp_path):
    seconds, stop = metered(monkeypatch, tmp_path, 0, psutil.STATUS_SLEEPING, started=False)
    assert seconds == pytest.approx(2001, abs=10) and "wall" in stop.reason


def test_an_arm_is_ended_at_the_check_that_is_asked_for(toy, monkeypatch):
    code = """
    p.guard("first", 0, 1, reference="0")
    p.guard("second", 2, 1, reference="0")
    p.guard("third", 2, 1, reference="0")
    time.sleep(60)
    """
    pack, real = limited(toy, code), arms.run_arm
    monkeypatch.setattr(experiment, "run_arm", lambda spec, sink: real(dataclasses.replace(spec, until=fails), sink))
    arm = toy.run(pack).pristine[0]
    assert (arm.outcome, [check.name for check in arm.checks]) == ("different", ["second"])
    assert arm.ended_at and arm.ended_at.name == "second"


def fails(check):
    return check.state == "failed"


def test_a_longer_time_can_be_given(toy):
    pack = limited(toy, "while time.process_time() < 3: pass", 1)
    assert toy.run(pack, timeout_s=60).ruling.verdict is Verdict.DIFFERENT_FAILURE
    stopped = toy.run(pack)
    assert (stopped.ruling.verdict, stopped.ruling.remedy) == (Verdict.UNTESTABLE, "--timeout 600")
    assert stopped.pristine[0].sentinel is None


def test_a_patched_arm_over_its_limit_contradicts_nothing(toy):
    slow = edited(TOTAL, FIRST, ("    result = 0.0\n", "    while True:\n        pass\n    result = 0.0\n"))
    run = toy.run(toy.pack(toy.patch(slow)), timeout_s=5)
    assert (run.ruling.verdict, run.patched[0].outcome) == (Verdict.UNTESTABLE, "cannot_test")


def test_a_full_disk_in_the_arm_is_no_verdict(toy):
    code = "raise OSError(28, os.strerror(28), 'somewhere')"
    arm = toy.run(limited(toy, code)).pristine[0]
    assert (arm.outcome, "TMPDIR" in arm.remedy) == ("cannot_test", True)


@pytest.mark.parametrize(
    "call",
    [
        "full()",
        "p.guard_attempt('value', full)",
        "p.attempt('value', full, probe.Signature('ValueError', '', 'core.py'))",
        "p.ranks(2, lambda rank: full())",
    ],
)
def test_a_gpu_without_room_is_no_verdict(toy, call):
    error = "type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory. 1 GiB is free. Including more')"
    arm = toy.run(toy.pack(reproducer=body(f"def full():\n    raise {error}\n\n{call}")), arm="pristine").pristine[0]
    assert (arm.outcome, arm.exit_code, arm.checks, "nvidia-smi" in arm.remedy) == ("cannot_test", 77, [], True)
    assert arm.reason.endswith("CUDA out of memory. 1 GiB is free.")


def test_a_scratch_folder_that_cannot_be_written_is_the_users_message(toy, monkeypatch):
    spec = ArmSpec(toy.pack().reproducer, toy.root, [], "cpu", 0, "", {}, 1, 1, toy.root / "cache")
    monkeypatch.setattr(tempfile, "mkdtemp", refuse(errno.ENOSPC))
    with pytest.raises(PatchlaneError) as refused:
        arms.run_arm(spec, print)
    assert "TMPDIR" in refused.value.remedy


def refuse(number):
    """A function that this host refuses by that errno."""

    def call(*args, **more):
        raise OSError(number, os.strerror(number), "/full")

    return call


def test_trees_do_not_share_bytecode_and_the_interpreters_is_shared(tmp_path):
    specs = [
        ArmSpec(tmp_path, tmp_path / name, [], "cpu", 0, "", {}, 1, 1, tmp_path / "cache") for name in ("one", "two")
    ]
    folders = [Path(_environment(spec, tmp_path)["PYTHONPYCACHEPREFIX"]) for spec in specs]
    library = sysconfig.get_path("purelib").lstrip("/")
    assert len({folder / str(tmp_path).lstrip("/") for folder in folders}) == 2
    assert len({(folder / library).resolve() for folder in folders}) == 1


def test_no_record_is_made_of_binary_output(toy):
    run = toy.run(limited(toy, "sys.stdout.buffer.write(bytes(range(256)))"))
    assert run.ruling.verdict is Verdict.DIFFERENT_FAILURE


def test_environment_is_small(toy, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", "/x")
    monkeypatch.setenv("MY_SECRET", "swordfish")
    run = toy.run(limited(toy, "print(sorted(os.environ), os.environ['PYTHONHASHSEED'])"))
    assert not any("SECRET" in line or "PYTHONSTARTUP" in line for line in run.log)


def test_libraries_of_needs_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/host/lib")
    need = write_tree(tmp_path, {"z3/lib/libz3.so.4.15": "", "z3/share/x.so": "", "torch/lib/readme": ""})
    spec = ArmSpec(need, need, [need], "cpu", 0, "", {}, 1, 1, need)
    assert _environment(spec, tmp_path)["LD_LIBRARY_PATH"] == f"{need}/z3/lib:/host/lib"


def test_an_arm_beside_a_bundle_can_draw_cases_and_sees_nothing_else_of_the_engines(tmp_path):
    assert _lent(tmp_path, sys.prefix, "cpu") == []
    (folder,) = _lent(tmp_path, "/elsewhere", "cuda")
    code = "import hypothesis, sys; from hypothesis import strategies, find; print(find(strategies.integers(), bool))"
    environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    names = {path.name for path in folder.iterdir() if path.suffix != ".dist-info"}
    assert names <= {"hypothesis", "_hypothesis_globals.py", "sortedcontainers"}


def test_an_arm_on_the_cpu_beside_a_bundle_has_the_bundle_s_numpy_and_tells_its_version(tmp_path, monkeypatch):
    """A host's own may be too new for Triton's interpreter; on a GPU nothing interprets kernels."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: numpy.__spec__ if name == "numpy" else None)
    assert _lent(tmp_path, "/elsewhere", "cuda") == []
    (folder,) = _lent(tmp_path, "/elsewhere", "cpu")
    code = "import numpy as n, importlib.metadata as m; print(n.ones(3) @ n.ones(3), m.version('numpy'), n.__file__)"
    environment = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["3.0", numpy.__version__, f"{folder}/numpy/__init__.py"], done.stderr


DRAWS = [pack for pack in load_packs() if "hypothesis" in pack.reproducer.read_text()]


@pytest.mark.parametrize("pack", DRAWS, ids=lambda pack: pack.id)
def test_a_host_without_the_library_that_draws_cannot_test(pack):
    assert all("hypothesis" in lane.requires for lane in pack.lanes.values())


def test_judge_error():
    nan, inf = float("nan"), float("inf")
    assert [judge_error(m, 1.0, 2.0) for m in (0, 1, 1.5, 2, 3, nan, inf)] == [
        *("healthy", "healthy", "different", "bug", "bug", "different", "different")
    ]
    assert judge_error(5, 1.0, inf) == "different"


def test_signature_needs_type_message_and_frame(tmp_path):
    path = write_tree(tmp_path, {"up/core.py": "def f():\n    raise ValueError('bad 3')\n"}) / "up/core.py"
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ValueError) as caught:
        names["f"]()
    assert Signature("ValueError", r"^bad \d$", "up/core.py").matches(caught.value)
    assert Signature("Exception", r"^bad \d$", "core.py").matches(caught.value)
    for wrong in (
        ("KeyError", "bad", "up/core.py"),
        ("ValueError", "^good", "up/core.py"),
        ("ValueError", "bad", "p/core.py"),
    ):
        assert not Signature(*wrong).matches(caught.value)


def test_a_second_check_of_one_name_is_refused():
    p = Probe("toyup", Namespace(lane="cpu", seed=0))
    p.note("a", 1)
    with pytest.raises(ValueError, match="twice"):
        p.guard("a", 0, 1, reference="0")


@pytest.mark.parametrize(
    ("states", "outcome", "word"),
    [
        (("healthy",), "healthy", "1"),
        (("healthy", "healthy"), "healthy", "2"),
        (("healthy", "bug"), "bug", "check 1"),
        (("bug", "different"), "different", "check 1"),
        ((), "different", "no bug"),
    ],
)
def test_outcome_of_checks(states, outcome, word):
    checks = [Check(f"check {i}", "bug", state) for i, state in enumerate(states)]
    decided, reason = judge([*checks, Check("neighbour", "guard", "failed")])
    assert decided == outcome and word in reason
    assert "neighbour" not in reason and "check 0" not in reason


@pytest.mark.parametrize("kept", ["nothing", "a child", "its session"])
def test_an_arm_that_kills_its_keeper_leaves_nothing_alive(toy, tmp_path, kept):
    """The daemon has given up the environment by which it could be found."""
    note = tmp_path / "pids"
    inner = "sleep 97 & echo $! >> NOTE; echo $$ >> NOTE; exec sleep 98" if kept == "a child" else "exec sleep 98"
    script = f"echo $$ >> NOTE; {inner}".replace("NOTE", str(note))
    code = f"""
    p.upstream("toyup")
    if os.fork() == 0:
        {"pass" if kept == "its session" else "os.setsid()"}
        if os.fork() == 0:
            os.execve("/bin/sh", ["sh", "-c", {script!r}], {{}})
        os._exit(0)
    while not os.path.exists({str(note)!r}):
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    """
    beside = subprocess.Popen(["sleep", "60"])
    try:
        run = toy.run(toy.pack(reproducer=body(code)))
        assert run.ruling.verdict == "DIFFERENT_FAILURE"
        assert [pid for pid in map(int, note.read_text().split()) if psutil.pid_exists(pid)] == []
        assert beside.poll() is None, "a process of the caller's own stays"
    finally:
        beside.kill()
        beside.wait()


GPU_HOST = '''"""Imports as Megatron does on four GPUs: CUDA's runtime reads the variable once, when first asked."""

import os

import torch

counted = []


def count():
    if not counted:
        counted.append(0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else 4)
    return counted[0]


torch._C._cuda_getDeviceCount, torch.cuda._is_compiled = count, lambda: True
torch.cuda.is_available()
'''
CPU_LANE = """
    from reproducers.probe.lanes.megatron import megatron_lane

    p.upstream("toyup.needy")
    megatron_lane(p.lane)
    p.error("e", 1.0, 1e-9, reference="0", bug_above=0.5)
"""


@pytest.mark.parametrize("visible", sampled(["0,1,2,3", None], 2))
def test_a_cpu_lane_runs_on_a_host_with_gpus_whatever_upstream_asks_when_it_is_imported(toy, monkeypatch, visible):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pack = toy.pack(toy.patch(edited(TOTAL)), body(CPU_LANE), RECORD)
    run = toy.run(pack, {**SOURCE, "toyup/needy.py": GPU_HOST}, arm="pristine")
    assert run.pristine[0].outcome == "bug", run.log


def test_what_upstream_prints_again_and_again_is_counted_in_the_log(toy):
    code = """
    for _ in range(500):
        print("state changed")
    p.error("e", 1.0, 1e-9, reference="0", bug_above=0.5)
    """
    (arm,) = toy.run(limited(toy, code), arm="pristine").pristine
    assert arm.outcome == "bug" and arm.output.count("state changed") < 5
    assert "(497 more times: state changed)" in arm.output
