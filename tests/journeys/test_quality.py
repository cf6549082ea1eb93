"""The project's own checks: lint, format, types."""

import importlib.util
import subprocess
import sys

import pytest

from reproducers.record.schema import ROOT


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_clean(command, tmp_path):
    name, *args = command.split()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "mypy":
        args = [f"--cache-dir={ROOT / '.mypy_cache'}"]
    done = subprocess.run([sys.executable, "-m", name, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
