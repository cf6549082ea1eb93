"""What an evaluation keeps, and how its results read."""

import json

import pytest

from model.evaluation.tasks import Evaluation, TaskResult, keep, rows
from reproducers.base.errors import PatchlaneError


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
        ("one", "acc", "0.5000", "0.1250"), ("one", "word_perplexity, strict", "9.0000", ""),
    ]  # fmt: skip
