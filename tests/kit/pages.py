"""The documents, and what a verb prints under --help."""

import contextlib
import io
import os
import runpy
import signal
import sys
import warnings
from functools import cache
from unittest import mock

from reproducers.record.schema import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "ci" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def help_of(module, *command):
    """What a verb prints under --help, without colours, on a wide terminal; run in this process, for a start costs."""
    said, handlers = io.StringIO(), {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    plain = {"COLUMNS": "250", "TERM": "dumb", "NO_COLOR": "1"}
    try:
        with (
            mock.patch.dict(os.environ, plain),
            mock.patch.object(sys, "argv", [module, *command, "--help"]),
            contextlib.redirect_stdout(said),
            warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # a test has imported it already
        ):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as ended:
        assert ended.code == 0, (module, ended.code)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return said.getvalue()
