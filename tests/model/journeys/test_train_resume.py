"""A run that was ended and resumed is the run that never was, bit for bit."""

import pytest
from train_kit import checkpoints, good, held_out, measured, steps, train

from model.definition.memory import checkpoint_gib
from model.families.sizes import SIZES
from model.records import history

pytestmark = pytest.mark.upstream


SETTINGS = {
    "bf16": {"bf16": True},
    "fp32": {"fp32": True},
    "muon": {"set": "optimizer=muon", "bf16": True},
    "reshardable": {"set": "optimizer_format=fully_reshardable", "bf16": True},
}


@pytest.fixture(
    scope="module", params=["bf16", *(pytest.param(x, marks=pytest.mark.long) for x in ("fp32", "muon", "reshardable"))]
)
def runs(request, stack, text, tmp_path_factory):
    """(one of six steps, one ended in its fourth and resumed), held-out losses after the second, fourth and sixth."""
    folder = tmp_path_factory.mktemp(request.param)
    common = {"steps": 6, "evaluate_every": 2, "save_every": 3, "deterministic": True, **SETTINGS[request.param]}
    good(train(stack, folder / "whole", text, weights=folder / "whole.txt", **common))
    good(train(stack, folder / "parts", text, stop_after=4, **common))
    good(train(stack, folder / "parts", text, weights=folder / "parts.txt", **common))
    return folder / "whole", folder / "parts"


def test_every_step_measures_the_same(runs):
    whole, parts = runs
    assert measured(parts) == measured(whole)
    assert len(measured(whole)) == 6
    assert held_out(parts) == held_out(whole)
    assert [step for step, *_ in held_out(whole)] == [2, 4, 6]


def test_weights_masters_and_moments_end_the_same(runs):
    whole, parts = (run.with_suffix(".txt").read_text().splitlines() for run in runs)
    assert parts == whole
    kept = {"master", "exp_avg", "exp_avg_sq", "step"} | (
        {"momentum_buffer"} if "muon" in runs[0].parent.name else set()
    )
    assert kept == {line.split()[-2] for line in whole if line.split()[0].isdigit()}


def test_a_checkpoint_is_as_large_as_described(runs):
    """All but headers of small tensors. In fp32 training a weight is its own master, and kept twice."""
    optimizer = "muon" if "muon" in runs[0].parent.name else "adamw"
    if "fp32" not in runs[0].parent.name:
        saved = history.events(history.read(runs[0]), "checkpoint")[-1]
        assert saved.detail["gib"] == pytest.approx(checkpoint_gib(SIZES["nam56r_tiny"], optimizer), rel=0.1)


def test_the_record_reads_as_one_run(runs):
    whole, parts = (history.read(run) for run in runs)
    assert [record.step for record in history.events(parts, "resumed")] == [4]
    kinds = [(record.kind, record.step) for record in parts if record.kind != "event"]
    assert kinds == [(record.kind, record.step) for record in whole if record.kind != "event"]
    assert [record.step for record in history.events(parts, "checkpoint")] == [3, 4, 6]
    assert not (runs[1] / "metrics.superseded.jsonl").exists()


def test_steps_after_the_checkpoint_are_written_anew(stack, text, tmp_path):
    """As after a crash: the newest checkpoint is older than the last record."""
    common = {"steps": 6, "evaluate_every": 2, "save_every": 3, "deterministic": True, "fp32": True}
    ended = train(stack, tmp_path / "run", text, poison=(5, "weight"), **common)
    assert [one.code for one in ended] == [2]
    assert checkpoints(tmp_path / "run") == ["step_0000003"]
    assert steps(tmp_path / "run")[-1].step == 4
    good(train(stack, tmp_path / "run", text, **common))
    assert [record.step for record in steps(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    superseded = (tmp_path / "run" / "metrics.superseded.jsonl").read_text().splitlines()
    assert ['"train"' in line and '"step":4' in line for line in superseded].count(True) == 1
