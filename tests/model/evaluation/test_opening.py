"""A checkpoint opened for evaluation: its weights and how its text became tokens; what is refused."""

import json

import pytest
from data_kit import make_dataset
from train_kit import copy, good, train

pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def run(stack, text, other_text, tmp_path_factory):
    """Two steps on two datasets."""
    out = tmp_path_factory.mktemp("opened") / "run"
    data, common = (
        [f"3:one={text}", f"1:two={other_text}"],
        {"steps": 2, "evaluate_every": 100, "save_every": 2, "fp32": True},
    )
    good(train(stack, out, data, weights=out.with_suffix(".txt"), **common))
    return out


def opened(stack, source, **named):
    return stack.run("trained:opened_weights", str(source), **{name: str(value) for name, value in named.items()})


def test_its_weights_are_those_that_the_run_ended_with(stack, run):
    ended = opened(stack, run)
    assert ended.code == 0, ended.said
    lines = run.with_suffix(".txt").read_text().splitlines()
    assert sorted(ended.value) == sorted(line for line in lines if not line.split()[0].isdigit())


def test_no_checkpoint_a_damaged_one_and_another_tokenizer_are_refused(stack, run, text, tmp_path):
    damaged = copy(run, tmp_path / "damaged")
    next((damaged / "checkpoints" / "step_0000002").glob("*.distcp")).write_bytes(b"")
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
