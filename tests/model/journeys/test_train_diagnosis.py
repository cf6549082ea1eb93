"""Diagnosed steps: their figures are the step's own, the same in each layout, and a slow rank is named."""

import pytest
from train_kit import good, kinds_sum_to_the_norm, steps, train

from model.families.sizes import SIZES
from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"steps": 4, "save_every": 0, "evaluate_every": 9, "fp32": True, "set": "diagnose_every=1"}
TINY = SIZES["nam56r_tiny"]
ATTENTION = {*map(str, TINY.numbers("mla") + TINY.numbers("dsa")), "MTP-1"}


def diagnosed(out):
    return history.diagnoses(history.read(out))


LAYOUTS = {
    "one": {"accumulate": 2, "steps": 1},
    "pp": {"world": 2, "pp": 2, "accumulate": 2, "steps": 1},
    # data parallel, and each forward pass of the second rank takes a second longer
    "slow": {"world": 2, "accumulate": 1, "slow": (1, 1.0), "late_reads": True},
}


@pytest.fixture(scope="module")
def runs(stack, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis")
    for name, layout in LAYOUTS.items():
        good(train(stack, folder / name, text, **COMMON | layout))
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_kinds_sum_to_the_norm_and_layers_to_the_load(runs, name):
    records = diagnosed(runs / name)
    assert kinds_sum_to_the_norm(runs / name) == [*range(1, 1 + LAYOUTS[name].get("steps", 4))]
    for record, step in zip(records, steps(runs / name), strict=True):
        assert tuple(record.gradient_norms) == TINY.norm_rows
        assert min(record.gradient_norms.values()) > 0
        assert [*map(int, record.router_load)] == TINY.numbers("moe")
        mean = sum(record.router_load.values()) / len(record.router_load)
        assert mean == pytest.approx(step.expert_load, rel=1e-6)
        assert record.attention_logits.keys() == ATTENTION
        assert min(record.attention_logits.values()) > 0


def test_two_ranks_find_what_one_does(runs):
    """Of the same weights and rows; other layouts draw other first weights."""
    one, two = (diagnosed(runs / name)[0] for name in ("one", "slow"))
    for name in ("router_load", "attention_logits", "gradient_norms"):
        assert getattr(two, name) == pytest.approx(getattr(one, name), rel=1e-4), name


def test_a_slow_rank_is_named_after_some_intervals(runs):
    records = diagnosed(runs / "slow")
    assert [len(record.rank_seconds) for record in records] == [0, 2, 2, 2]
    assert [record.slowest for record in records] == [None, 1, 1, 1]
    [event] = history.events(history.read(runs / "slow"), "straggler")
    assert (event.step, event.detail["rank"]) == (4, 1)
