"""``python -m model.describe``: all figures of each size, without importing torch."""

import subprocess
import sys

import pytest

from model.definition import parameters
from model.definition.sizes import SIZES
from reproducers.record.schema import ROOT

# Runs a module as ``python -m`` does and says, last, which heavy packages came with it.
TRACED = """
import runpy, sys
sys.argv = ["describe", *sys.argv[1:]]
try:
    runpy.run_module("model.describe", run_name="__main__")
finally:
    print("heavy:", sorted({"torch", "megatron", "triton", "numpy"} & set(sys.modules)))
"""


def describe(*args):
    return subprocess.run([sys.executable, "-c", TRACED, *args], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("name", SIZES)
def test_prints_each_size_without_torch(name):
    done = describe(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"
    for figure in (f"{parameters.total(SIZES[name]):,}", "hybrid_flops", "activations"):
        assert figure in done.stdout


def test_a_layout_has_a_row_for_each_stage():
    done = describe("nam56r", "--dp", "8", "--ep", "4", "--pp", "4")
    assert done.returncode == 0, done.stderr
    for layers in ("1–13", "14–29", "30–36", "37–52"):
        assert layers in done.stdout


@pytest.mark.parametrize("args", [("nam57",), ("nam56r", "--dp", "8", "--ep", "3"), ("nam56r", "--pp", "40")])
def test_bad_input_is_told_how_to_mend(args):
    done = describe(*args)
    assert done.returncode not in (0, 1)
    assert "fix:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--dp", "--ep", "--pp", "--micro-batch"])
@pytest.mark.parametrize("value", ["0", "-3"])
def test_less_than_one_is_refused(option, value):
    done = describe("nam56r_tiny", option, value)
    assert done.returncode == 2 and option in done.stderr and "Traceback" not in done.stderr


def test_memory_grows_with_the_rows_length():
    """Activations alone, by as much as the row."""
    found = {}
    for sequence in ("4096", "16384"):
        done = describe("nam56r_wide", "--dp", "8", "--micro-batch", "4", "--sequence", sequence)
        assert done.returncode == 0, done.stderr
        (row,) = [line.split("│") for line in done.stdout.splitlines() if "1–52" in line and line.count("│") == 8]
        found[sequence] = [float(cell) for cell in row[3:7]]
    assert found["4096"][:3] == found["16384"][:3]
    assert found["16384"][3] == pytest.approx(4 * found["4096"][3], abs=0.3)
