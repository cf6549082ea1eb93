"""A checkpoint is of the step that began it, whatever the steps do that it is written beside."""

import pytest

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize("world", [1, 2])
def test_it_holds_what_was_there_when_it_was_begun(world, stack, text, tmp_path):
    children = stack.ranks(world, "trained:begun", str(tmp_path), str(text)) if world > 1 else []
    ended = [child.wait() for child in children] or [stack.run("trained:begun", str(tmp_path), str(text))]
    assert [one.code for one in ended] == [0] * world, "\n".join(one.said for one in ended)
    for found in (one.value for one in ended):
        assert (found["pending"], found["step"], found["others"]) == ([True, False], 1, 0)
        assert found["tensors"] > 50
        assert len(found["bytes"]) == world
        assert min(found["bytes"]) > 0.9 * max(found["bytes"])
