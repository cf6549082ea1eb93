"""A checkpoint is of the step that began it, whatever the steps do that it is written beside."""

import pytest

pytestmark = pytest.mark.upstream


def begun(stack, world, folder, text, **given):
    """What ``trained.begun`` gives on each rank."""
    children = stack.ranks(world, "trained:begun", str(folder), str(text), **given) if world > 1 else []
    ended = [child.wait() for child in children] or [stack.run("trained:begun", str(folder), str(text), **given)]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.said for one in ended)
    return [one.value for one in ended]


@pytest.mark.parametrize("world", [1, 2])
def test_it_holds_what_was_there_when_it_was_begun(world, stack, text, tmp_path):
    for found in begun(stack, world, tmp_path, text):
        assert (found["pending"], found["step"], found["others"]) == ([True, False], 1, 0)
        assert found["tensors"] > 50 and found["processes"] == 0
        assert len(found["bytes"]) == world
        assert min(found["bytes"]) > 0.9 * max(found["bytes"])


@pytest.mark.parametrize(
    ("fault", "cause"), [("name", "ValueError: planted"), ("memory", "rank 1's share: MemoryError")]
)
def test_one_that_could_not_be_made_is_said_on_every_rank(fault, cause, stack, text, tmp_path):
    found = begun(stack, 2, tmp_path, text, fault=fault)
    assert [cause in one["refused"] for one in found] == [True, True]
    assert [path.name for path in tmp_path.glob("step_*")] == []
