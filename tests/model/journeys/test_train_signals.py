"""A stop asked for by SIGTERM, SIGUSR1 or a file ends a run after the step in flight, saved, on every rank."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch
from forked import ENVIRONMENT
from torch.distributed import run
from train_kit import checkpoints, good, measured, options, steps, train

from model.loop.ranks.stopping import LEFT
from model.records import history, metrics
from model.saved import reading
from model.saved.reading import name
from patchlane.base.exits import Exit
from reproducers.record.schema import ROOT

pytestmark = pytest.mark.upstream
COMMON = {"steps": 1000, "save_every": 1000, "evaluate_every": 1000, "fp32": True}


def running(out, ended):
    """Wait until two steps are recorded; ``ended`` says whether the run is over too early."""
    ends = time.monotonic() + 300
    path = out / history.NAME
    while not path.exists() or path.read_bytes().count(b'"train"') < 2:
        assert time.monotonic() < ends and not ended(), "no two steps"
        time.sleep(0.02)


def saved_where_it_ended(out):
    """The step that the run ended with."""
    last = steps(out)[-1].step
    assert 2 <= last < 1000
    assert checkpoints(out) == [f"step_{last:07d}"]
    return last


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.long), 2])
def test_one_rank_told_to_stop_ends_all_after_the_same_step(world, stack, text, tmp_path):
    layout = {"ep": world}
    children = stack.ranks(world, "trained:cli", options(tmp_path, text, **layout, **COMMON))
    running(tmp_path, lambda: False)
    children[-1].kill(signal.SIGTERM)
    assert [child.wait().code for child in children] == [Exit.STOPPED] * world
    last = saved_where_it_ended(tmp_path)
    good(train(stack, tmp_path, text, world=world, stop_after=last + 1, **layout, **COMMON))
    assert [step for step, *_ in measured(tmp_path)] == list(range(1, last + 2))


@pytest.mark.parametrize("way", ["SIGUSR1", "the file"])
def test_other_ways_to_ask_for_a_stop(way, stack, text, tmp_path):
    """A file that an earlier run was asked by is none of this one's."""
    (tmp_path / "stop").touch()
    child = stack.start("trained:cli", options(tmp_path, text, **COMMON))
    running(tmp_path, lambda: False)
    if way == "SIGUSR1":
        child.kill(signal.SIGUSR1)
    else:
        (tmp_path / "stop").touch()
    assert child.wait().code == Exit.STOPPED
    last = saved_where_it_ended(tmp_path)
    records = history.read(tmp_path)
    assert [event.step for event in history.events(records, "stopped")] == [last]
    assert json.loads((tmp_path / LEFT).read_text()) == {"step": last, "steps": 1000, "checkpoint": name(last)}
    [saved] = history.events(records, "checkpoint")
    files = (tmp_path / "checkpoints" / f"step_{last:07d}").rglob("*")
    assert saved.detail["gib"] == pytest.approx(sum(file.stat().st_size for file in files) / 2**30)


@pytest.mark.parametrize(
    ("steps_of_it", "world", "code"), [(1000, 1, Exit.STOPPED), (2, 1, 0), (1000, 2, Exit.STOPPED)]
)
def test_a_stop_is_heard_in_an_evaluation_and_its_step_is_saved_by_then(
    steps_of_it, world, code, stack, text, tmp_path
):
    """At a step of both intervals, and at the last one, whose run ends with 0: no step is left."""
    given = options(tmp_path, text, **COMMON | {"steps": steps_of_it, "evaluate_every": 2, "save_every": 2})
    start = stack.ranks if world > 1 else lambda _, *of, **named: [stack.start(*of, **named)]
    ended = [child.wait() for child in start(world, "trained:cli", given, stop_in_evaluation=True)]
    assert [one.code for one in ended] == [code] * world, ended[0].said
    records = history.read(tmp_path)
    assert (history.valid(records), history.train(records)[-1].step) == ([], 2)
    assert checkpoints(tmp_path) == [name(2)]
    assert (tmp_path / LEFT).exists() == bool(code)


@pytest.mark.long
def test_under_torchrun(stack, text, tmp_path):
    """It hands the signal on, waits for its ranks and says itself that it was told to stop. Two patches are named."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "model.train", *options(tmp_path / "run", text, pp=2, patches="4,12", **COMMON)]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said)
    try:
        running(tmp_path / "run", lambda: run.poll() is not None)
        run.send_signal(signal.SIGTERM)
        run.wait(300)
    finally:
        run.kill()
    words = (tmp_path / "said").read_text()
    assert "got signal: 15" in words
    assert "fault" not in words
    assert "exitcode" not in words.replace("exitcode : 0", "")
    last = saved_where_it_ended(tmp_path / "run")
    [event] = history.events(history.read(tmp_path / "run"), "patches")
    assert event.detail == {"packs": "pack04,pack12,pack36,pack41,pack42,pack43"}
    again = {"world": 2, "pp": 2, "stop_after": last + 1, "patches_changed_ok": True}
    good(train(stack, tmp_path / "run", text, **again, **COMMON))


@pytest.mark.long
def test_a_checkpoint_that_takes_longer_than_torchrun_waits_becomes_whole(text, tmp_path):
    """The agent kills its ranks' groups 4 s after the SIGTERM, here while tensors are copied, and ends."""
    if "--shutdown-timeout" not in run.get_args_parser().format_help():
        pytest.skip(f"torch {torch.__version__}: its torchrun has no --shutdown-timeout")
    out = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    slow = [*torchrun, "--shutdown-timeout", "4", str(ROOT / "tests/kit/slow_save.py"), "8"]
    with (tmp_path / "said").open("wb") as said:
        agent = subprocess.Popen(
            [*slow, *options(out, text, **COMMON)], cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said
        )
    try:
        running(out, lambda: agent.poll() is not None)
        ranks = psutil.Process(agent.pid).children(recursive=True)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(300) != 0
        assert checkpoints(out) in ([], [f".partial-{name(steps(out)[-1].step)}"]), "torchrun waited for it"
        _, alive = psutil.wait_procs(ranks, 300)
        assert alive == []
    finally:
        agent.kill()
    words = (tmp_path / "said").read_text()
    last = saved_where_it_ended(out)
    assert reading.damage(out / "checkpoints" / name(last)) is None, words
    assert json.loads((out / LEFT).read_text()) == {"step": last, "steps": 1000, "checkpoint": name(last)}
    assert [event.step for event in history.events(history.read(out), "checkpoint")] == [last]
    metrics.claim(out).release()


def test_before_the_first_step_it_leaves_nothing(stack, text, tmp_path):
    good(train(stack, tmp_path, text, stop_after=0, **COMMON))
    assert checkpoints(tmp_path) == []
    assert not (tmp_path / LEFT).exists()  # nothing to go on from: a script that starts it again would do so for ever
    assert not (tmp_path / "loss.png").exists()
