"""A checkpoint opened for evaluation: its weights and how its text became tokens; what is refused."""

import json

import pytest
from data_kit import make_dataset
from train_kit import copy, good, train

from model.saved import weights

pytestmark = pytest.mark.upstream
COMMON = {"steps": 1, "save_every": 1, "fp32": True}


@pytest.fixture(scope="module")
def run(stack, text, tmp_path_factory):
    """A run of one step."""
    out = tmp_path_factory.mktemp("opened") / "run"
    good(train(stack, out, text, weights=out.with_suffix(".txt"), **COMMON))
    return out


def opened(stack, source, **named):
    return stack.run("trained:opened_weights", str(source), **{name: str(value) for name, value in named.items()})


def test_its_weights_are_those_that_the_run_ended_with(stack, run):
    ended = opened(stack, run)
    assert ended.code == 0, ended.said
    lines = run.with_suffix(".txt").read_text().splitlines()
    assert sorted(ended.value) == sorted(line for line in lines if not line.split()[0].isdigit())


def test_a_checkpoint_of_two_ranks_opens_as_its_exported_weights_do(stack, text, tmp_path):
    good(train(stack, tmp_path / "two", text, world=2, ep=2, **COMMON))
    weights.export(tmp_path / "two", tmp_path / "exported")
    weights.bring(tmp_path / "exported", tmp_path / "one")
    two, one = (opened(stack, tmp_path / name, data=text) for name in ("two", "one"))
    assert two.code == one.code == 0, two.said + one.said
    assert two.value == one.value


def test_no_checkpoint_a_damaged_one_and_another_tokenizer_are_refused(stack, run, text, tmp_path):
    damaged = copy(run, tmp_path / "damaged")
    next((damaged / "checkpoints" / "step_0000001").glob("*.distcp")).write_bytes(b"")
    for source, named in [(tmp_path, {}), (damaged, {}), (run, {"tokenizer": text / "dataset.json"})]:
        ended = opened(stack, source, **named)
        assert (ended.code == 1 and "PatchlaneError: " in ended.said) or "DataError: " in ended.said


def test_a_dataset_says_it_for_a_checkpoint_that_does_not(stack, run, text, tmp_path):
    other = make_dataset(tmp_path, "plain").folder
    record = json.loads((other / "dataset.json").read_text())
    record["tokenizer"]["eod"] = 0
    (other / "dataset.json").write_text(json.dumps(record))
    assert opened(stack, run, data=text).code == 0
    assert "PatchlaneError: " in opened(stack, run, data=other).said
    assert "PatchlaneError: " in opened(stack, run, silent="yes").said
    assert opened(stack, run, silent="yes", data=text).code == 0


def test_a_checkpoint_of_another_version_is_refused(stack, run):
    assert "PatchlaneError: " in opened(stack, run, odd="yes").said
