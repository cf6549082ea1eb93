"""A parameter or a gradient that is not a number ends the run in that step; the newest checkpoint stays good."""

import re

import pytest
from train_kit import checkpoints, good, steps, train

pytestmark = pytest.mark.upstream
COMMON = {"steps": 4, "save_every": 2, "evaluate_every": 100, "fp32": True}


def remedy(process):
    return re.search(r"^  fix: (.*)", process.said, re.MULTILINE)[1]


@pytest.mark.parametrize(("what", "world"), [pytest.param("weight", 1, marks=pytest.mark.long), ("gradient", 2)])
def test_the_run_stops_in_that_step(what, world, stack, text, tmp_path):
    layout = {"world": world, "ep": world}
    ended = train(stack, tmp_path, text, poison=(3, what), **layout, **COMMON)
    assert [process.code for process in ended] == [2] * world
    for process in ended:
        assert "error: step 3: " in process.said and "NaN" in process.said
        assert "--set learning_rate" in remedy(process)
        assert "Traceback" not in process.said
    assert len(steps(tmp_path)) == 2
    assert checkpoints(tmp_path) == ["step_0000002"]
    good(train(stack, tmp_path, text, learning_rate=1e-3, **layout, **COMMON))
    assert [record.finite for record in steps(tmp_path)] == [True] * 4


def test_a_gradient_on_one_rank_stops_both(stack, text, tmp_path):
    """The other process is left in a collective: it ends too, and nothing is saved."""
    ended = train(stack, tmp_path, text, poison=(3, "gradient of rank 1"), world=2, ep=2, **COMMON)
    assert ended[1].code == 2
    assert "error: step 3: " in ended[1].said and "--set learning_rate" in remedy(ended[1])
    assert ended[0].code == 2
    assert "error: step 3: " in ended[0].said and "--set learning_rate" not in remedy(ended[0])
    assert checkpoints(tmp_path) == ["step_0000002"]


@pytest.mark.parametrize("what", ["weight", "gradient of rank 1"])
def test_a_run_that_reads_late_stops_in_that_step_on_both_ranks(what, stack, text, tmp_path):
    """The norm is over all ranks: none is left in a collective, and nothing of the step is kept."""
    ended = train(stack, tmp_path, text, poison=(3, what), world=2, ep=1, late_reads=True, **COMMON)
    assert [process.code for process in ended] == [2, 2], ended[0].said
    for process in ended:
        assert re.search(r"error: step 3: .*\bnan$", process.said, re.MULTILINE)
        assert "--set learning_rate" in remedy(process)
        assert "Traceback" not in process.said
    assert len(steps(tmp_path)) == 2
    assert checkpoints(tmp_path) == ["step_0000002"]
