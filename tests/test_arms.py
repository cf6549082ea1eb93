"""A reproducer that lies, dies or is given the wrong tree never passes for the bug."""

import os
import time
from argparse import Namespace

import psutil
import pytest
from toy import RECORD, SOURCE, TOTAL, body, edited, write_tree

from reproducers.arms import ArmSpec, _environment
from reproducers.observe import Check, Signature, judge, judge_error
from reproducers.probe import Probe
from reproducers.verdicts import Verdict

SHORT = "    timeout_s: 2\n    memory_gib: 0.3\n"
BAD = {
    "import error": ("raise ImportError('no such name')", "different"),
    "missing dependency": ("import_module = p.upstream('toyup.needy')", "cannot_test"),
    "module not in the tree": ("p.upstream('toyup.absent')", "cannot_test"),
    "syntax error upstream": ("p.upstream('toyup.broken')", "different"),
    "timeout": ("time.sleep(60)", "different"),
    "memory limit": ("x = bytearray(600 * 2**20); x[::4096] = b'x' * len(x[::4096]); time.sleep(60)", "different"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "different"),
    "segfault": ("ctypes.string_at(0)", "different"),
    "exit 0 without a record": ("sys.exit(0)", "different"),
    "hard exit": ("os._exit(0)", "different"),
    "no check": ("pass", "different"),
    "sentinel by hand": ("print('BUG_REPRODUCED: trust me')", "different"),
    "sentinel by hand, hard exit": ("print('BUG_REPRODUCED: trust me', flush=True); os._exit(0)", "different"),
    "forged record, output after it": (
        """
        import atexit
        atexit.register(lambda: print("late"))
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
    "a check twice": ("[p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5) for _ in range(2)]", "different"),
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
    """A loaded machine may take seconds to start an arm: only one that is to outlast its time has little."""
    short = SHORT.replace("timeout_s: 2", f"timeout_s: {seconds}")
    record = RECORD.replace("    timeout_s: 30\n    memory_gib: 2\n", short)
    return toy.pack(toy.patch(edited(TOTAL)), body(code), record)


def bad(toy, name):
    """The pack of that name in BAD."""
    return limited(toy, BAD[name][0], 2 if name == "timeout" else 60)


@pytest.mark.parametrize("name", BAD)
def test_never_the_bug(toy, name):
    outcome = BAD[name][1]
    run = toy.run(bad(toy, name), EXTRA)
    assert run.pristine[0].outcome == outcome, run.log
    assert run.ruling.verdict in (Verdict.DIFFERENT_FAILURE, Verdict.UNTESTABLE)
    assert run.sentinels == []
    assert not run.patched


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timeout", "time limit of 2 s"),
        ("memory limit", "over the limit of 0.3 GiB"),
        ("SIGKILL", "SIGKILL"),
        ("segfault", "SIGSEGV"),
        ("hard exit", "exit status 0 without a record"),
        ("no check", "made no bug check"),
        ("imported from elsewhere", "not from the tree under test"),
        ("missing dependency", "not_installed_anywhere is not installed"),
    ],
)
def test_the_reason_says_what_happened(toy, name, said):
    assert said in toy.run(bad(toy, name), EXTRA).ruling.reason


def alive(pid):
    """Running, and not just a zombie that nobody has reaped."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("own_session", [False, True])
def test_grandchildren_die_with_a_timeout(toy, own_session):
    """Also one that left for a session of its own."""
    code = f"""
    child = subprocess.Popen(["sleep", "97"], start_new_session={own_session})
    print("PID", child.pid, flush=True)
    time.sleep(60)
    """
    run = toy.run(limited(toy, code, 8))
    pid = next(int(line.split()[-1]) for line in run.pristine[0].output if line.startswith("PID"))
    time.sleep(0.2)
    running = alive(pid)
    if running:
        os.kill(pid, 9)
    assert not running


def test_grandchildren_die_after_a_normal_end(toy):
    run = toy.run(limited(toy, "print('PID', subprocess.Popen(['sleep', '97']).pid)"))
    pid = next(int(line.split()[-1]) for line in run.pristine[0].output if line.startswith("PID"))
    time.sleep(0.2)
    assert not alive(pid)


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
    assert _environment(spec)["LD_LIBRARY_PATH"] == f"{need}/z3/lib:/host/lib"


def test_judge_error():
    nan, inf = float("nan"), float("inf")
    assert [judge_error(m, 1.0, 2.0) for m in (0, 1, 1.5, 2, 3, nan, inf)] == [
        *("healthy", "healthy", "different", "bug", "bug", "different", "different")
    ]
    assert judge_error(5, 1.0, None) == "different"


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
    ("states", "expected"),
    [
        (("healthy",), ("healthy", "1 bug check healthy")),
        (("healthy", "healthy"), ("healthy", "2 bug checks healthy")),
        (("healthy", "bug"), ("bug", "check 1")),
        (("bug", "different"), ("different", "check 1")),
        ((), ("different", "the reproducer made no bug check")),
    ],
)
def test_outcome_of_checks(states, expected):
    checks = [Check(f"check {i}", "bug", state) for i, state in enumerate(states)]
    assert judge([*checks, Check("neighbour", "guard", "failed")]) == expected
