"""Runs beside a base, and the command."""

import json
import math
import subprocess
import sys

import pytest
from recorded import step

from model.records.metrics import MetricsLog
from model.records.records import Phases
from model.reports.compare import compare
from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import ROOT


def phases(seconds):
    return Phases(data=0, forward_backward=seconds, optimizer=0)


def run(folder, numbers=range(1, 11), digest="a", change=lambda n: {}):
    with MetricsLog(folder) as log:
        log.event(0, "dataset", digest=digest)
        for n in numbers:
            log.write(step(n, **({"seconds": phases(1.0), "peak_gib": 40.0} | change(n))))
    return folder


@pytest.fixture
def base(tmp_path):
    return run(tmp_path / "base")


def test_a_run_equal_but_faster(base, tmp_path):
    other = run(tmp_path / "fast", change=lambda n: {"seconds": phases(9.0 if n <= 2 else 0.5), "peak_gib": 42.5})
    comparison = compare(base, other, tolerance=0)
    assert comparison.agrees and (comparison.first, comparison.last, comparison.steps) == (1, 10, 10)
    assert (comparison.worst_loss, comparison.mean_loss, comparison.worst_grad_norm) == (0, 0, 0)
    assert comparison.speed == 2.0 and comparison.peak_gib == 2.5


def test_a_single_step_that_is_off_disagrees(base, tmp_path):
    other = run(tmp_path / "off", change=lambda n: {"loss": 10 / n * (0.98 if n == 4 else 1), "grad_norm": 1.5})
    comparison = compare(base, other, tolerance=0.01)
    assert not comparison.agrees and comparison.worst_step == 4
    assert comparison.worst_loss == pytest.approx(0.02) and comparison.mean_loss == pytest.approx(-0.002)
    assert comparison.worst_grad_norm == 0.5
    assert compare(base, other, tolerance=0.03).agrees
    assert compare(base, other, tolerance=0.01, first=5).agrees


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("whose", ["ours", "base"])
def test_what_is_no_number_agrees_with_nothing(tmp_path, value, whose):
    bad, good = run(tmp_path / "bad", change=lambda n: {"loss": value} if n == 7 else {}), run(tmp_path / "good")
    comparison = compare(*((bad, good) if whose == "base" else (good, bad)), tolerance=1e9)
    assert not comparison.agrees and comparison.worst_step == 7
    assert comparison.worst_loss == comparison.mean_loss == math.inf


def test_steps_of_other_sizes_or_data_are_not_compared(base, tmp_path):
    with pytest.raises(PatchlaneError, match=r"twice: step 1\b"):
        compare(base, run(tmp_path / "twice", change=lambda n: {"tokens": 2000 * n}), 0.1)
    with pytest.raises(PatchlaneError) as caught:
        compare(base, run(tmp_path / "text", digest="b"), 0.1)
    assert caught.value.remedy.startswith("--data")
    with pytest.raises(PatchlaneError) as caught:
        compare(base, run(tmp_path / "later", numbers=range(11, 15)), 0.1)
    assert caught.value.remedy.startswith("--first")


def test_too_few_steps_have_no_speed(base, tmp_path):
    comparison = compare(base, run(tmp_path / "short", numbers=(1, 2)), 0)
    assert comparison.agrees and comparison.speed is None and comparison.peak_gib is None


def test_the_command(base, tmp_path):
    def call(*args):
        return subprocess.run(
            [sys.executable, "-m", "model.compare", *map(str, args)], cwd=ROOT, capture_output=True, text=True
        )

    same, off = run(tmp_path / "[same]"), run(tmp_path / "off", change=lambda n: {"loss": 11 / n})
    good = call(base, same)
    assert good.returncode == 0 and "[same]" in good.stdout and "yes" in good.stdout
    bad = call(base, same, off, "--json")
    assert bad.returncode == 1
    assert [json.loads(line)["agrees"] for line in bad.stdout.splitlines()] == [True, False]
    lost = call(base, tmp_path / "nowhere")
    assert lost.returncode == 2 and "metrics.jsonl" in lost.stderr and "Traceback" not in lost.stderr
