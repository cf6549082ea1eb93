"""A second run in the folder of one that runs is refused on every rank, and moves nothing of the first."""

import signal
import time

import pytest
from train_kit import checkpoints, options, train

from model.records import history
from patchlane.base.exits import Exit

pytestmark = pytest.mark.upstream
COMMON = {"steps": 1000, "save_every": 2, "evaluate_every": 1000, "fp32": True}


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_fresh_run_beside_a_running_one_touches_nothing(world, stack, text, tmp_path):
    out = tmp_path / "run"
    running = stack.start("trained:cli", options(out, text, **COMMON))
    ends = time.monotonic() + 300
    while "step_0000002" not in checkpoints(out):
        assert time.monotonic() < ends, running.said()
        time.sleep(0.02)
    refused = train(stack, out, text, world=world, fresh=True, **COMMON)
    assert [one.code for one in refused] == [2] * world
    assert all(str(out / history.NAME) in one.said and "Traceback" not in one.said for one in refused)
    assert not (out / "checkpoints.1").exists()
    running.kill(signal.SIGTERM)
    assert running.wait().code == Exit.STOPPED
    assert not (out / history.NAME).with_name("metrics.superseded.jsonl").exists()
    assert checkpoints(out)
