"""A rank that does not come is named by the others, at its step, and ends them; torchrun starts a killed rank again."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from forked import ENVIRONMENT
from train_kit import checkpoints, measured, options

from model.records import history
from reproducers.record.schema import ROOT

pytestmark = pytest.mark.upstream
COMMON = {"steps": 16, "save_every": 2, "evaluate_every": 100, "fp32": True, "ep": 2}
LIMIT_S = 20  # a step takes less, on a busy machine too


@pytest.mark.parametrize("asleep", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_that_sleeps_is_named(asleep, stack, text, tmp_path):
    given = options(tmp_path, text, wait_limit=LIMIT_S, **COMMON)
    children = stack.ranks(2, "trained:cli", given, asleep=(4, asleep))
    ended = children[1 - asleep].wait()
    children[asleep].kill(signal.SIGKILL)
    children[asleep].wait()
    assert ended.code == 2, ended.said
    assert f"error: step 4: rank {asleep} did not arrive within {LIMIT_S} s" in ended.said
    assert "fix: " in ended.said and "Traceback" not in ended.said
    assert checkpoints(tmp_path) == ["step_0000002"]


@pytest.mark.long
def test_torchrun_starts_a_killed_rank_again(text, tmp_path):
    """Rank 1 is killed once, after a checkpoint; the second attempt goes on from it to the end."""
    out = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "--max-restarts", "2", "-m", "model.train", *options(out, text, **COMMON)]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said)
    try:
        ends = time.monotonic() + 300
        while "step_0000002" not in checkpoints(out):
            assert time.monotonic() < ends and run.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.02)
        ranks = {rank.environ().get("RANK"): rank.pid for rank in psutil.Process(run.pid).children()}
        os.kill(ranks["1"], signal.SIGKILL)
        assert run.wait(300) == 0, (tmp_path / "said").read_text()[-3000:]
    finally:
        run.kill()
    resumed = history.events(history.read(out), "resumed")
    assert len(resumed) == 1 and resumed[0].step in range(2, 16, 2)
    assert [step for step, *_ in measured(out)] == list(range(1, 17))
