"""The options of model.train: few, and a field that is asked for as one is told by its --set."""

import subprocess
import sys

import pytest

from reproducers.record.schema import ROOT


def call(*arguments):
    command = [sys.executable, "-m", "model.train", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (["--micro-batch", "3"], "micro_batch"),
        (["--ep", "2"], "expert_parallel"),
        (["--pp=2"], "pipeline_parallel"),
        (["--fp32"], "bf16"),
        (["--early-reads"], "late_reads"),
        (["--overlap-grads"], "overlap_grads"),
        (["--no-recompute"], "recompute"),
    ],
)
def test_a_field_as_an_option_is_told_by_its_set(given, field):
    done = call("cpu_tiny", *given)
    assert done.returncode == 2 and given[0].partition("=")[0] in done.stderr
    assert f"fix: --set {field}=" in done.stderr and "Traceback" not in done.stderr


def test_what_is_no_field_is_no_option():
    done = call("cpu_tiny", "--nothing", "1")
    assert done.returncode == 2 and "--nothing" in done.stderr and "--set" not in done.stderr
