"""Runs on several datasets: what they record, the same rows on any ranks, resuming, and refusals."""

import json

import pytest
from data_kit import make_dataset
from train_kit import checkpoints, good, held_out, measured, train

from model.data.stored.dataset import Dataset
from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"steps": 3, "evaluate_every": 100, "save_every": 2, "fp32": True, "deterministic": True}


@pytest.fixture(scope="module")
def given(text, other_text, tmp_path_factory):
    """--data and --held-out: two datasets blended 3 to 1, and a third one."""
    extra = make_dataset(tmp_path_factory.mktemp("extra"), "extra", documents=15, seed=2).folder
    return {"data": [f"3:code={text}", f"1:prose={other_text}"], "held_out": f"maths={extra}"}


@pytest.fixture(scope="module")
def whole(stack, given, tmp_path_factory):
    out = tmp_path_factory.mktemp("blended") / "whole"
    good(train(stack, out, rows=out.with_suffix(".txt"), accumulate=2, **COMMON, **given))
    return out


def noted(out):
    """Digests of each step's rows, sorted."""
    return sorted(out.with_suffix(".txt").read_text().splitlines())


def test_each_set_is_evaluated_by_name_beside_the_whole(whole):
    records = history.read(whole)
    assert history.held_out_names(records) == ["code", "prose", "maths"]
    for name in (None, "code", "prose", "maths"):
        assert [record.step for record in history.valid(records, name)] == [3]
    assert len({history.valid(records, name)[0].loss for name in (None, "code", "prose", "maths")}) == 4


def test_a_part_is_evaluated_as_it_is_in_a_run_of_its_own(stack, whole, given, text, tmp_path):
    """The same held-out rows."""
    alone = tmp_path / "alone"
    good(train(stack, alone, text, held_out=given["held_out"], **COMMON | {"steps": 1, "save_every": 0}))
    records, blended = history.read(alone), history.read(whole)
    assert history.held_out_names(records) == ["maths"]
    pairs = [(None, "code"), ("maths", "maths")]
    counted = [(history.valid(records, one)[0].tokens, history.valid(blended, two)[0].tokens) for one, two in pairs]
    assert all(one == two > 0 for one, two in counted)


def test_the_records_name_each_dataset_with_weight_and_digest(whole, text, other_text):
    digests = [Dataset(folder).record.digest for folder in (text, other_text)]
    events = history.events(history.read(whole), "blended")
    assert [(e.detail["dataset"], e.detail["weight"], e.detail["digest"]) for e in events] == [
        ("code", 0.75, digests[0]),
        ("prose", 0.25, digests[1]),
    ]
    statement = json.loads((whole / "run.json").read_text())
    assert [(d["name"], d["weight"], d["digest"]) for d in statement["datasets"]] == [
        ("code", 0.75, digests[0]),
        ("prose", 0.25, digests[1]),
    ]
    [event] = history.events(history.read(whole), "dataset")
    assert statement["dataset"] == {"digest": event.detail["digest"]}
    assert [(one["name"], one["source"]) for one in statement["held_out"]] == [("maths", "text")]


def test_two_ranks_see_the_same_rows(stack, whole, given, tmp_path):
    out = tmp_path / "two"
    good(train(stack, out, rows=out.with_suffix(".txt"), world=2, accumulate=1, **COMMON, **given))
    assert noted(out) == noted(whole) and len(noted(out)) == 6
    assert [(step, tokens) for step, tokens, _ in held_out(out)] == [(s, t) for s, t, _ in held_out(whole)]


def test_a_resumed_run_is_the_one_that_never_was_interrupted(stack, whole, given, tmp_path):
    out = tmp_path / "parts"
    good(train(stack, out, accumulate=2, stop_after=2, **COMMON, **given))
    good(train(stack, out, accumulate=2, **COMMON, **given))
    assert measured(out) == measured(whole) and held_out(out) == held_out(whole)


@pytest.mark.parametrize(("first", "second", "field"), [("1", "1", "weights"), ("3", None, "dataset")])
def test_other_weights_or_datasets_are_refused_on_resume(stack, whole, given, text, other_text, first, second, field):
    data = [f"{first}:code={text}"] + ([f"{second}:prose={other_text}"] if second else [])
    [ended] = train(stack, whole, data, accumulate=2, **COMMON | {"steps": 6})
    assert ended.code == 2 and f"its {field} is " in ended.said and "Traceback" not in ended.said
    assert checkpoints(whole) == ["step_0000002", "step_0000003"]


def test_datasets_without_weights_are_refused(stack, text, other_text, tmp_path):
    [ended] = train(stack, tmp_path / "run", [text, other_text], **COMMON)
    assert ended.code == 2 and "error: " in ended.said and "fix: " in ended.said
    assert not (tmp_path / "run").exists()
