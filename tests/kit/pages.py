"""The documents, and what a verb prints under --help."""

import os
import subprocess
import sys
from functools import cache

from reproducers.record.schema import ROOT

PAGES = [ROOT / "README.md", ROOT / "ci" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def help_of(module, *command):
    """What a verb prints under --help, colours and line breaks of a narrow terminal apart."""
    plain = os.environ | {"COLUMNS": "250", "TERM": "dumb", "NO_COLOR": "1"}
    line = [sys.executable, "-m", module, *command, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=plain)
    assert done.returncode == 0, (module, done.stderr)
    return done.stdout
