"""Patches that lie: what they print, send or change in the probe's process counts for nothing."""

import json
import os

import pytest
from toy import DEAD, FIRST, SUM, TOTAL, body, edited

from reproducers.base.verdicts import Verdict
from reproducers.probe.arm.channel import Channel
from reproducers.trial.observed import FORGED, Inbox

FORGERY = {"patchlane": "record", "outcome": "healthy", "reason": "3 bug checks healthy", "remedy": ""}
FORGERY |= {"sentinel": None, "checks": [], "executed": {}}
PRINTED = f"print({json.dumps(FORGERY)!r}, flush=True)".replace("patchlane", "patch' + 'lane")
TOP = '"""Sums."""\n'
PROBE = 'probe = sys.modules["repro" + "ducers.probe.api"]'
ZERO = "lambda p, name, measured, limit, **more: true(p, name, 0.0, limit, **more)"
HOSTILE = {  # {name: (code at the top of a module that keeps the bug, verdict, words of the reason)}
    "prints a record and ends the process": (
        f"import os\n{PRINTED}\ngetattr(os, '_ex' + 'it')(0)",
        *(Verdict.DIFFERENT_FAILURE, "exit status 0 without a record"),
    ),
    "prints a record at the end": (
        f"__import__('at' + 'exit').register(lambda: {PRINTED})",
        *(Verdict.FIX_INEFFECTIVE, "total"),
    ),
    "replaces a check": (
        f"import sys\n{PROBE}\ntrue = probe.Probe.error\nprobe.Probe.error = {ZERO}",
        *(Verdict.DIFFERENT_FAILURE, "code under test changed reproducers.probe.api.Probe.error"),
    ),
    "replaces a check's code": (
        f"import sys\n{PROBE}\nprobe.Probe.error.__code__ = (lambda *a, **b: None).__code__",
        *(Verdict.DIFFERENT_FAILURE, "reproducers.probe.api.Probe.error"),
    ),
    "replaces what a check's wrapper calls": (
        'import sys\nwatched = sys.modules["repro" + "ducers.probe.arm.watched"]\n'
        "for cell in watched.WatchedProbe.error.__closure__:\n"
        "    if callable(cell.cell_contents):\n"
        "        cell.cell_contents = lambda *args, **more: None",
        *(Verdict.DIFFERENT_FAILURE, "reproducers.probe.arm.watched.WatchedProbe.error"),
    ),
    "replaces the judge": (
        f'import sys\n{PROBE}\nprobe.judge_error = lambda *a: "healthy"',
        *(Verdict.DIFFERENT_FAILURE, "reproducers.probe.api.judge_error"),
    ),
    "shadows a builtin": (
        f"import sys\n{PROBE}\nprobe.float = lambda value: 0.0",
        *(Verdict.DIFFERENT_FAILURE, "reproducers.probe.api.float"),
    ),
    "looks for the options of an arm": (
        "import sys\nassert sys.argv[1:] == [], sys.argv",
        *(Verdict.FIX_INEFFECTIVE, "total"),
    ),
    "writes to every descriptor": (
        "import os\nfor number in sorted(map(int, os.listdir('/proc/self/fd')))[3:]:\n    try:\n"
        "        os.write(number, b'0 [2, \"end\", {}]\\n')\n    except OSError:\n        pass",
        *(Verdict.DIFFERENT_FAILURE, FORGED),
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_patch(toy, name):
    code, verdict, words = HOSTILE[name]
    run = toy.run(toy.pack(toy.patch(edited((TOP, f"{TOP}{code}\n"), FIRST))))
    assert run.ruling.verdict is verdict, run.ruling
    assert words in run.ruling.reason


LINE = '("\\n" * {above} + "{text}", __file__, "ex" + "ec")'
MAKE = 'import builtins\nmake, run = getattr(builtins, "comp" + "ile"), getattr(builtins, "ex" + "ec")\n'
FAKES = {
    "a module's line": f"run(make{LINE}, {{}})",
    "a function under the module's name": (
        f"run(make{LINE}.co_consts[0].replace(co_qualname='<module>'), {{}})".replace("{text}", "def fake(): return 1")
    ),
}


@pytest.mark.parametrize("name", FAKES)
def test_a_line_that_other_code_claims_to_have_run(toy, name):
    fake = MAKE + FAKES[name]
    new = edited((TOP, f"{TOP}{fake}\n"), TOTAL, FIRST, (SUM, DEAD))
    above = new["toyup/core.py"].splitlines().index("        result = -1.0")
    new["toyup/core.py"] = new["toyup/core.py"].replace("{above}", str(above)).replace("{text}", "x = 1")
    run = toy.run(toy.pack(toy.patch(new)))
    assert run.ruling.verdict is Verdict.INCONCLUSIVE, run.ruling
    assert f"toyup/core.py:{above + 1} result = -1.0" in run.ruling.reason


def test_the_secret_is_in_neither_arguments_nor_environment(toy):
    told = "open('/proc/self/cmdline').read().split(chr(0)), dict(os.environ)"
    code = f"print('SEEN', {told}); p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5)"
    run = toy.run(toy.pack(reproducer=body(code)), arm="pristine")
    assert run.ruling.verdict is Verdict.REPRODUCED
    (seen,) = (line for line in run.log if "SEEN" in line)
    assert len(seen) < 4000 and "--channel" in seen


def test_what_looks_like_a_record_is_kept_as_print(toy):
    code = f"print({json.dumps(FORGERY)!r}); p.error('e', 1.0, 1e-9, reference='0', bug_above=0.5)"
    run = toy.run(toy.pack(reproducer=body(code)), arm="pristine")
    assert run.ruling.verdict is Verdict.REPRODUCED
    assert any(line.startswith('[pristine] printed: {"patchlane"') for line in run.log)


def spoken(say):
    """The inbox of an arm that spoke by ``say(channel, descriptor)``, and the stamps that it passed on."""
    stamps = list[str]()
    inbox = Inbox(stamps.append)
    secret, out = (os.dup(number) for number in inbox.passed)
    inbox.listen()
    say(Channel(secret, out), out)
    os.close(out)
    inbox.close()
    return inbox, stamps


@pytest.mark.parametrize("line", [b"\n", b"x\n", b'0 [0, "stamp", {}]\n', b"\xff\xfe\n"])
def test_a_message_without_the_code(line):
    inbox, stamps = spoken(lambda channel, out: os.write(out, line))
    assert inbox.fault == FORGED and inbox.observed() is None and stamps == []


CHECK = {"name": "e", "role": "bug", "measured": 1.0, "limit": 1e-9, "bug_above": 0.5, "reference": "0", "unit": ""}
CHECK |= {"detail": "", "signature": None}
END = {"outcome": "bug", "reason": "e", "remedy": "", "changed": []}
TRUE = [("stamp", {}), ("check", CHECK), ("executed", {}), ("end", END)]


def tell(*messages):
    return spoken(lambda channel, out: [channel.send(*message) for message in messages])[0]


def test_a_record_in_order():
    inbox = tell(*TRUE)
    assert inbox.fault == "" and json.loads(inbox.observed().line)["sentinel"] == "BUG_REPRODUCED"
    assert inbox.observed().fault == ""


def test_the_runner_judges():
    inbox = tell(*TRUE[:3], ("end", END | {"outcome": "healthy"}))
    assert json.loads(inbox.observed().line)["outcome"] == "bug"
    assert inbox.observed().fault == "the arm said healthy, its checks say bug: e"


ASTRAY = {
    "no stamp": TRUE[1:],
    "two stamps": [TRUE[0], *TRUE],
    "two ends": [*TRUE, TRUE[3]],
    "a check after the end": [*TRUE, TRUE[1]],
    "a check after what ran": [*TRUE[:3], TRUE[1], TRUE[3]],
    "no such kind": [TRUE[0], ("verdict", {}), *TRUE[1:]],
}


@pytest.mark.parametrize("name", ASTRAY)
def test_messages_out_of_order(name):
    assert tell(*ASTRAY[name]).fault.startswith(FORGED)


def test_a_message_sent_again():
    def twice(channel, out):
        here, there = os.pipe()
        channel.send("stamp", {})
        number, channel._out = channel._out, there
        channel.send("check", CHECK)
        line = os.read(here, 9999)
        channel._out = number
        os.write(out, line)
        os.write(out, line)

    assert spoken(twice)[0].fault.startswith(FORGED)


def test_no_end_is_no_record():
    inbox = tell(*TRUE[:3])
    assert inbox.observed() is None and inbox.fault == ""


def test_a_measured_value_that_is_none():
    inbox = tell(TRUE[0], ("check", CHECK | {"measured": "a lot"}), *TRUE[2:])
    assert inbox.observed() is None and inbox.fault.startswith(FORGED)
