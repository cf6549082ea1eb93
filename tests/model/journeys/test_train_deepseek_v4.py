"""DeepSeek-V4 by ``python -m model.train``: its loss falls, and a run that was ended and resumed is the run that never
was, bit for bit."""

import pytest
from train_kit import good, held_out, measured, steps, train

from model.families.sizes import SIZES
from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"first": "v4_tiny", "deterministic": True, "evaluate_every": 2, "save_every": 3, "diagnose_every": 3}


@pytest.fixture(scope="module", params=["fp32", pytest.param("muon", marks=pytest.mark.long)])
def runs(request, stack, text, tmp_path_factory):
    """(one of six steps, one ended in its fourth and resumed)."""
    folder, own = tmp_path_factory.mktemp(request.param), {"fp32": True}
    own = {"set": "optimizer=muon", "bf16": True} if request.param == "muon" else own
    good(train(stack, folder / "whole", text, steps=6, weights=folder / "whole.txt", **own, **COMMON))
    good(train(stack, folder / "parts", text, steps=6, stop_after=4, **own, **COMMON))
    good(train(stack, folder / "parts", text, steps=6, weights=folder / "parts.txt", **own, **COMMON))
    return folder / "whole", folder / "parts"


def test_a_resumed_run_is_the_whole_one(runs):
    whole, parts = runs
    assert measured(parts) == measured(whole) and len(measured(whole)) == 6
    assert held_out(parts) == held_out(whole) != []
    ended = [run.with_suffix(".txt").read_text().splitlines() for run in runs]
    assert ended[0] == ended[1] != []


def test_a_diagnosis_names_every_layer_with_experts_and_every_kind(runs):
    size = SIZES["v4_tiny"]
    found = history.diagnoses(history.read(runs[0]))
    assert [one.step for one in found] == [3, 6]
    experts = {str(number) for kind in ("hash_moe", "topk_moe") for number in size.numbers(kind)}
    for one in found:
        assert set(one.router_load) == experts | {"MTP-1"} and min(one.router_load.values()) >= 1
        assert set(one.gradient_norms) == set(size.norm_groups) and min(one.gradient_norms.values()) > 0


def test_its_loss_falls(stack, text, tmp_path):
    changed = {"steps": 30, "learning_rate": 2.5e-3, "fp32": True, "save_every": 0, "evaluate_every": 30}
    good(train(stack, tmp_path / "run", text, **{**COMMON, **changed}))
    losses = [record.loss for record in steps(tmp_path / "run")]
    assert sum(losses[-5:]) / 5 < 0.75 * sum(losses[:2]) / 2
