"""What an evaluation keeps, and how its results read."""

import json

import pytest

from model.evaluation.tasks import Evaluation, TaskResult, keep, rows
from model.saved import reading
from patchlane.base.errors import PatchlaneError


def made(**tasks):
    return Evaluation(checkpoint="step_0000004", step=4, size="nam56r_tiny", sequence=64, harness="0.4.13", tasks=tasks)


def result(value):
    return TaskResult(metrics={"acc,none": value, "acc_stderr,none": "N/A"}, version="1", shots=0, samples=3)


def test_results_of_other_tasks_stay(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "step_0000004"
    checkpoint.mkdir(parents=True)
    keep(checkpoint, made(one=result(0.5), two=result(0.25)))
    file = keep(checkpoint, made(two=result(0.75)))
    assert file == tmp_path / "evaluation" / "step_0000004.json"
    held = json.loads(file.read_text())["tasks"]
    assert {name: one["metrics"]["acc,none"] for name, one in held.items()} == {"one": 0.5, "two": 0.75}


@pytest.mark.parametrize("before", ["another's", "nobody's"])
def test_results_of_other_weights_do_not(before, tmp_path):
    """A checkpoint of one step has others after --fresh; the oldest results do not say what they are of."""
    checkpoint = tmp_path / "checkpoints" / "step_0000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / reading.DIGESTS).write_text('{"files": {"a": "1"}}')
    file = keep(checkpoint, made(one=result(0.5)))
    if before == "nobody's":
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tasks": {"one": result(0.5).model_dump()}}))
    else:
        (checkpoint / reading.DIGESTS).write_text('{"files": {"a": "2"}}')
    keep(checkpoint, made(two=result(0.75)))
    keep(checkpoint, made(three=result(0.25)))
    held = json.loads(file.read_text())["tasks"]
    assert set(held) == {"two", "three"}
    assert {one["weights"] for one in held.values()} == {reading.digest(checkpoint)}
    aside = json.loads(file.with_name("step_0000004.other_weights.json").read_text())
    assert set(aside["tasks"]) == {"one"}


def test_a_checkpoint_without_a_run_has_them_beside_it(tmp_path):
    (tmp_path / "step_0000004").mkdir()
    file = keep(tmp_path / "step_0000004", made(one=result(0.5)))
    assert file == tmp_path / "evaluation" / "step_0000004.json"
    file.write_text("{}")
    with pytest.raises(PatchlaneError):
        keep(tmp_path / "step_0000004", made(one=result(0.5)))


def test_a_row_is_a_metric_with_its_error():
    metrics = {"acc,none": 0.5, "acc_stderr,none": 0.125, "word_perplexity,strict": 9.0}
    assert rows(made(one=TaskResult(metrics=metrics))) == [
        ("one", "acc", "0.5000", "0.1250"),
        ("one", "word_perplexity, strict", "9.0000", ""),
    ]
