"""A run by Muon: the same losses in each layout, what its checkpoints hold, and what does not go on from them."""

import pytest
from train_kit import checkpoints, copy, good, kinds_sum_to_the_norm, measured, train

from model.records import history
from model.reports import report
from model.saved import weights

pytestmark = [pytest.mark.upstream, pytest.mark.long]
# Losses as for AdamW (test_train_layouts.py) with the weights that were loaded. Newton-Schulz is in bf16, where a sum
# of fp32 in another order may round otherwise: after an update gradients are off by up to 2e-4, and a token whose
# experts or keys have nearly equal scores may take others.
LOSSES, LATER, ABSOLUTE, NORMS = 2e-6, 5e-4, 1e-6, 1e-2
MUON = {"set": ["optimizer=muon", "diagnose_every=2"], "learning_rate": 1e-3}
COMMON = {"steps": 5, "evaluate_every": 5, "save_every": 5, "deterministic": True, "fp32": True, **MUON}
LAYOUTS = {
    "dp": {"world": 2, "overlap_grads": True, "overlap_weights": True, "bucket": 50_000, "accumulate": 1},
    "ep": {"world": 2, "ep": 2, "accumulate": 1},
}


@pytest.fixture(scope="module")
def runs(stack, text, tmp_path_factory):
    """Two steps on one rank, then two more in each layout; what two ranks saved after four goes on on one."""
    folder = tmp_path_factory.mktemp("muon")
    good(train(stack, folder / "begun", text, stop_after=2, accumulate=2, **COMMON))
    for name, layout in {"one": {"accumulate": 2}, **LAYOUTS}.items():
        run = copy(folder / "begun", folder / name)
        good(train(stack, run, text, stop_after=None if name == "one" else 4, **layout, **COMMON))
    copy(folder / "dp", folder / "dp one")
    good(train(stack, folder / "dp one", text, accumulate=2, **COMMON))
    return folder


@pytest.mark.parametrize(("name", "count"), [("dp", 2), ("ep", 2), ("dp one", 3)])
def test_losses_are_those_of_one_rank(name, count, runs):
    want, got = measured(runs / "one", first=3), measured(runs / name, first=3)
    assert len(got) == count
    for ours, theirs in zip(got, want, strict=False):
        assert ours[:2] == theirs[:2]
        assert ours[2:6] == pytest.approx(theirs[2:6], rel=LOSSES if ours[0] == 3 else LATER, abs=ABSOLUTE)
        assert ours[6:] == pytest.approx(theirs[6:], rel=NORMS)


def test_it_learns_and_says_what_it_is(runs):
    losses = [loss for _, _, loss, *_ in measured(runs / "one")]
    assert losses[-1] < losses[0] - 0.1
    assert kinds_sum_to_the_norm(runs / "dp") == [2, 4]
    assert report.summarise(runs / "one").optimizer == "muon"


def test_another_optimizer_takes_its_weights_and_not_its_moments(runs, stack, text, tmp_path):
    other = COMMON | {"set": ["optimizer=adamw"]}
    (ended,) = train(stack, copy(runs / "begun", tmp_path / "other"), text, accumulate=2, **other)
    assert ended.code == 2 and "holds moments of muon, this run is of adamw" in ended.said
    assert "--set optimizer=muon; or python -m model.weights export" in ended.said and "Traceback" not in ended.said
    weights.export(runs / "begun", tmp_path / "weights")
    weights.bring(tmp_path / "weights", tmp_path / "new")
    good(train(stack, tmp_path / "new", text, accumulate=2, stop_after=1, **other))
    assert history.events(history.read(tmp_path / "new"), "imported weights")
    assert checkpoints(tmp_path / "new")[-1] == "step_0000001"
