"""A run with --invariants: healthy ones are silent, a broken one ends before its checkpoint and says where."""

import pytest
from train_kit import checkpoints, good, steps, train

from model.definition.command import INVARIANTS
from model.records import history
from patchlane.base.exits import Exit

pytestmark = pytest.mark.upstream
NAMES = {"losses", "masters", "moments", "precision", "weights", "updates", "gradients", "norm", "moving"}
NAMES |= {"counts", "biases", "documents", "balance"}
COMMON = {"steps": 4, "evaluate_every": 9, "save_every": 0}
BROKEN = {**COMMON, "world": 2, "ep": 1, "fp32": True, "save_every": 2, "poison": (3, "bias of rank 1")}


def checks(out):
    """{step: what was said of each invariant}."""
    return {event.step: event.detail for event in history.events(history.read(out), "invariants")}


def test_a_checkpoint_of_a_broken_state_is_not_written(stack, text, tmp_path):
    """The fault is of a step that is not checked, and stays."""
    ended = train(stack, tmp_path, text, invariants=100, **BROKEN)
    assert [one.code for one in ended] == [Exit.BROKEN] * 2, ended[0].said
    for one in ended:
        assert "error: step 4: weights: decoder.layers." in one.said and " of rank 0 is not that of rank 1" in one.said
        assert "Traceback" not in one.said
    assert checkpoints(tmp_path) == ["step_0000002"] and len(steps(tmp_path)) == 4
    found = checks(tmp_path)
    assert [*found] == [1, 2, 4] and ["broken" in said for said in found.values()] == [False, False, True]
    healed = {name: value for name, value in BROKEN.items() if name != "poison"}
    good(train(stack, tmp_path, text, invariants=100, **healed))
    assert checkpoints(tmp_path) == ["step_0000002", "step_0000004"]


@pytest.mark.long
def test_nor_is_one_at_a_stop(stack, text, tmp_path):
    ended = train(stack, tmp_path, text, invariants=100, **BROKEN | {"save_every": 9, "stop_after": 3})
    assert [one.code for one in ended] == [Exit.BROKEN] * 2, ended[0].said
    assert checkpoints(tmp_path) == [] and [*checks(tmp_path)] == [1, 3]


HEALTHY = {
    "nam56r_tiny": {"fp32": True},
    "nam56r_siso": {"bf16": True},
    "v4_tiny": {"bf16": True},
    "v4_tiny two": {"first": "v4_tiny", "bf16": True, "world": 2, "ep": 2, "accumulate": 2},
    "nam56r_tiny two": {"bf16": True, "world": 2, "micro_batch": 2, "late_reads": True},
    "stages": {"bf16": True, "world": 2, "pp": 2, "accumulate": 2},
}


@pytest.mark.parametrize("name", [*(pytest.param(x, marks=pytest.mark.long) for x in HEALTHY)])
def test_a_healthy_run_of_each_small_size_is_silent(name, stack, text, tmp_path):
    changed = {"first": name.split()[0] if name != "stages" else "nam56r_tiny", "invariants": 1, **HEALTHY[name]}
    good(train(stack, tmp_path, text, **COMMON | {"steps": 8, "learning_rate": 1e-3} | changed))
    found = checks(tmp_path)
    assert [*found] == [*range(1, 9)]
    for said in found.values():
        assert said.keys() == NAMES
        left_out = {what for what, value in said.items() if isinstance(value, str)}
        wanted = {
            "precision": "fp32" in changed,
            "weights": "world" not in changed,
            "balance": "v4" in changed["first"],
        }
        assert left_out == {what for what, left in wanted.items() if left}


def test_without_a_number_it_takes_its_own(stack, text, tmp_path):
    """The first step alone of a short run."""
    good(train(stack, tmp_path, text, **COMMON | {"fp32": True, "steps": 2, "invariants": True}))
    assert INVARIANTS > 2 and [*checks(tmp_path)] == [1]
