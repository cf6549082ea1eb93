"""How a plain command ends, as the wheel's do: typer's are tried in tests/base/test_cli.py."""

import os
import subprocess
import sys

import pytest

from reproducers.record.schema import ROOT

START = """
import sys
from patchlane.base import ends
from patchlane.base.errors import CannotTestHere, PatchlaneError
def command():
    {body}
ends.run(command, interrupted=lambda: "interrupted", wanting=lambda error: "wanted" if "absent" in str(error) else "")
"""


def ended(body, **options):
    command = [sys.executable, "-c", START.format(body=body)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **options)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("print('said')", 0, ""),
        ("raise SystemExit(77)", 77, ""),
        ("raise PatchlaneError('what', 'mend it')", 2, "error: what\n  fix: mend it\n"),
        ("raise CannotTestHere('what')", 77, "error: what\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("import absent", 77, "wanted\n"),
        ("open('/absent/x', 'w')", 3, "fault"),
        ("raise OSError(28, 'no room', 'x')", 2, "error: x: no room\n  fix: "),
        ("raise KeyError(1)", 3, "fault"),
    ],
)
def test_each_end_has_its_code(body, code, said):
    done = ended(body, capture_output=True)
    assert (done.returncode, done.stderr.startswith(said), "Traceback" in done.stderr) == (code, True, False)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_reader_that_is_gone_is_an_interrupt(size):
    """Few characters meet it when all is flushed, many when they are printed."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = ended(f"print('x' * {size})", stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (130, "")
