"""A script of this folder in a process of its own: Triton is set up, for a GPU or its interpreter, once a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reproducers.record.schema import ROOT

HERE = Path(__file__).parent


def run(script, *arguments, **environment):
    """The last line that the script prints, as JSON; skips with what it says where it exits 77."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, env=env)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])
