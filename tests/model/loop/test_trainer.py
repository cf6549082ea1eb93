"""What a run's records count, and what they say of a run that goes on otherwise than it began."""

import json

import pytest
from train_kit import copy, good, held_out, steps, train

from model.data.rows.loader import Loader
from model.data.stored.dataset import Dataset
from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"steps": 4, "warmup": 2, "evaluate_every": 2, "save_every": 4, "learning_rate": 1e-3, "fp32": True}


@pytest.fixture(scope="module")
def begun(stack, text, tmp_path_factory):
    """A run of two steps of two rows."""
    out = tmp_path_factory.mktemp("trainer") / "begun"
    good(train(stack, out, text, stop_after=2, accumulate=2, **COMMON))
    return out


@pytest.fixture(scope="module")
def other(stack, text, begun):
    """It, gone on with steps of six rows, in bf16."""
    out = copy(begun, begun.with_name("other"))
    good(train(stack, out, text, accumulate=2, micro_batch=3, **COMMON | {"fp32": False, "bf16": True}))
    return out


def changes(out):
    return [
        (event.step, event.detail["what"], event.detail["before"], event.detail["now"])
        for event in history.events(history.read(out), "changed")
    ]


def test_tokens_are_those_consumed(other):
    assert [record.tokens for record in steps(other)] == [128, 256, 256 + 384, 256 + 768]


def test_a_changed_batch_or_precision_is_an_event(stack, text, begun, other):
    assert changes(other) == [(2, "micro_batch", 1, 3), (2, "bf16", False, True)]
    ranks = copy(begun, begun.with_name("ranks"))
    good(train(stack, ranks, text, world=2, accumulate=1, **COMMON))
    assert changes(ranks) == [(2, "accumulate", 2, 1), (2, "ranks", 1, 2)]
    same = copy(begun, begun.with_name("same"))
    good(train(stack, same, text, accumulate=2, **COMMON))
    assert changes(same) == []
    assert [record.tokens for record in steps(ranks)] == [record.tokens for record in steps(same)]
    assert held_out(ranks)[-1][:2] == held_out(same)[-1][:2]
    assert held_out(ranks)[-1][2] == pytest.approx(held_out(same)[-1][2], rel=2e-6)


def test_a_changed_hyperparameter_is_an_event_and_the_recipe_is_recorded(stack, text, begun):
    out = copy(begun, begun.with_name("recipe"))
    asked = ["weight_decay=0.05", "betas=[0.8, 0.9]", "aux_loss_coeff=0.01", "evaluate_rows=8", "schedule=constant"]
    good(train(stack, out, text, accumulate=2, set=asked, **COMMON))
    assert changes(out) == [
        (2, "schedule", "cosine", "constant"),
        (2, "betas", "0.9, 0.95", "0.8, 0.9"),
        (2, "weight_decay", 0.1, 0.05),
        (2, "aux_loss_coeff", 1e-4, 0.01),
    ]
    assert [record.learning_rate for record in steps(out)][2:] == [1e-3, 1e-3]
    record = json.loads((out / "run.from_2.json").read_text())
    assert record["recipe"]["betas"] == [0.8, 0.9] and record["recipe"]["indexer_loss_coeff"] == 1.0
    assert record["size"]["experts"]["aux_loss_coeff"] == 0.01


def test_held_out_rows_are_the_same_in_every_layout(text, begun, other):
    loader = Loader(Dataset(text), "valid", 64, 1)
    counted = int(sum(batch.loss_mask.sum() for batch in loader.first(64)))
    assert loader.consumed == loader.rows % 3 + 3 * (loader.rows // 3) and loader.rows % 3
    assert [tokens for _, tokens, _ in held_out(begun) + held_out(other)] == [counted] * 3


def test_no_step_has_a_rate_of_zero(begun):
    assert [record.learning_rate for record in steps(begun)] == pytest.approx([0.5e-3, 1e-3])


def test_a_warm_up_longer_than_the_run_is_an_event(stack, text, begun, tmp_path):
    good(train(stack, tmp_path / "cut", text, **COMMON | {"steps": 2, "warmup": 9}))
    [event] = history.events(history.read(tmp_path / "cut"), "warmup_cut")
    assert event.detail == {"asked": 9, "taken": 1}
    assert [record.learning_rate for record in steps(tmp_path / "cut")] == pytest.approx([1e-3, 1e-4])
    assert history.events(history.read(begun), "warmup_cut") == []
