"""A loss that spikes or is not a number: the update is left out, or the run goes back and never takes those rows."""

import json

import pytest
from train_kit import good, held_out, kinds_sum_to_the_norm, measured, steps, train

from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"steps": 6, "save_every": 3, "evaluate_every": 3, "fp32": True, "accumulate": 2, "learning_rate": 1e-3}


def events(out, name):
    return history.events(history.read(out), name)


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def never(stack, text, tmp_path_factory):
    """A run that never took the rows of steps 4 and 5."""
    folder = tmp_path_factory.mktemp("never")
    files = {"weights": folder / "weights.txt", "rows": folder / "rows.txt"}
    good(train(stack, folder / "run", text, left_out=[[6, 10]], late_reads=True, **files, **COMMON))
    return folder


@pytest.mark.long
def test_after_going_back_the_run_is_one_that_never_took_these_rows(never, stack, text, tmp_path):
    """Where losses are read late, the weights are NaN by then."""
    out, weights = tmp_path / "run", tmp_path / "weights.txt"
    good(train(stack, out, text, bad=(5, "nan"), weights=weights, on_spike="rewind", late_reads=True, **COMMON))
    assert lines(weights) == lines(never / "weights.txt")
    assert measured(out) == measured(never / "run")
    assert held_out(out) == held_out(never / "run")
    [event] = events(out, "rewind")
    assert (event.step, event.detail["at"], event.detail["kind"]) == (3, 5, "loss not finite")
    assert [event.detail[name] for name in ("first_sample", "last_sample", "rows")] == [6, 10, 4]
    superseded = map(json.loads, (out / "metrics.superseded.jsonl").read_text().splitlines())
    assert [line["step"] for line in superseded if line["kind"] == "train"] == [4, 5]


@pytest.mark.long
def test_a_gradient_on_one_rank_takes_both_back_and_a_resumed_run_leaves_the_rows_out(never, stack, text, tmp_path):
    """It ended after it went back, before the next checkpoint."""
    out = tmp_path / "run"
    common = {"on_spike": "rewind", "world": 2, "ep": 2, **COMMON, "accumulate": 1}
    ended = train(stack, out, text, bad=(5, "gradient"), poison=(6, "weight"), set="max_rewinds=1", **common)
    for one in ended:
        assert one.code == 2 and "gone back 1 times" in one.said and "learning_rate" in one.said, one.said
    assert [event.detail["kind"] for event in events(out, "rewind")] == ["norm not finite"]
    good(train(stack, out, text, rows=tmp_path / "rows.txt", set="diagnose_every=2", **common))
    assert kinds_sum_to_the_norm(out) == [4, 6]  # of ranks that hold other experts
    later = {line for line in lines(never / "rows.txt") if line.split()[0] in "456"}
    assert {*lines(tmp_path / "rows.txt")} == later
    assert len(events(out, "rewind")) == 1
    assert len(steps(out)) == 6


def test_a_skipped_step_changes_no_weight_and_no_moment(stack, text, tmp_path):
    """Bad rows in the fifth step: what four steps left is what five leave, and the data have moved on."""
    common = {**COMMON, "on_spike": "skip", "evaluate_every": 9, "set": ["spike_window=4", "spike_factor=20"]}
    good(train(stack, tmp_path / "four", text, stop_after=4, weights=tmp_path / "four.txt", **common))
    out = tmp_path / "five"
    good(train(stack, out, text, bad=(5, "spike"), stop_after=5, weights=tmp_path / "five.txt", **common))
    assert lines(tmp_path / "five.txt") == lines(tmp_path / "four.txt")
    [event] = events(out, "skip")
    assert (event.step, event.detail["rows"], event.detail["kind"]) == (5, 2, "loss spike")
    assert [record.skipped for record in steps(out)] == [False] * 4 + [True]
    assert steps(out)[-1].tokens == 5 * 128


def test_where_nothing_helps_the_run_ends(stack, text, tmp_path):
    """Weights that are NaN make every step NaN; before the first checkpoint there is nothing to go back to."""
    skipping = {"on_spike": "skip", "set": "max_skips=2", "poison": (3, "weight")}
    for name, options, words in (
        ("skipped", skipping, "2 steps before it"),
        ("none", {"on_spike": "rewind", "poison": (2, "weight")}, "no checkpoint to go back to"),
    ):
        [ended] = train(stack, tmp_path / name, text, **options, **COMMON)
        assert ended.code == 2 and words in ended.said and "learning_rate" in ended.said, ended.said
        assert "Traceback" not in ended.said
    assert [record.skipped for record in steps(tmp_path / "skipped")] == [False, False, True, True]
