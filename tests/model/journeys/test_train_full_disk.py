"""Where a checkpoint cannot be written every rank says so in one line; the older checkpoint stays and is resumed."""

import pytest
from train_kit import checkpoints, good, options, steps, train

pytestmark = pytest.mark.upstream
COMMON = {"steps": 6, "save_every": 2, "evaluate_every": 100, "fp32": True}


@pytest.mark.parametrize(("world", "full"), [pytest.param(1, 0, marks=pytest.mark.long), (2, 1)])
def test_a_full_disk_ends_the_run_with_the_older_checkpoint(world, full, stack, text, tmp_path):
    """Rank ``full`` may write no file of more than 100 KB: a tenth of its part."""
    good(train(stack, tmp_path, text, world=world, ep=world, stop_after=2, **COMMON))
    given = options(tmp_path, text, ep=world, **COMMON)
    children = stack.ranks(world, "trained:cli", given, largest_file=(full, 100_000))
    ended = [child.wait() for child in children]
    assert [one.code for one in ended] == [2] * world, "\n".join(one.said for one in ended)
    for one in ended:
        assert "Traceback" not in one.said and "error: step_0000004 " in one.said and "fix: make room in " in one.said
    assert f"rank {full}: " in ended[0].said
    assert checkpoints(tmp_path) == ["step_0000002"]
    good(train(stack, tmp_path, text, world=world, ep=world, stop_after=4, **COMMON))
    assert checkpoints(tmp_path) == ["step_0000002", "step_0000004"]
    assert len(steps(tmp_path)) == 4


def test_what_rank_0_alone_cannot_write_leaves_no_rank_waiting(stack, text, tmp_path):
    children = stack.ranks(2, "trained:cli", options(tmp_path, text, ep=2, **COMMON), no_digests=True)
    ended = [child.wait() for child in children]
    assert [one.code for one in ended] == [2, 2], "\n".join(one.said for one in ended)
    assert all("Traceback" not in one.said and "fix: " in one.said for one in ended)
    assert checkpoints(tmp_path) == []
