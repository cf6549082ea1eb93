"""The project's own checks: lint and format; `make lint` checks types too."""

import importlib.util
import subprocess
import sys

import pytest

from reproducers.record.schema import ROOT


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check"])
def test_clean(command, tmp_path):
    name, *args = command.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([sys.executable, "-m", name, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
