"""Sinks get every number, and a sink that fails is dropped."""

import importlib.util
import logging
import sys
import types

import pytest
from recorded import held_out, step

from model.records import history, sinks
from model.records.metrics import MetricsLog
from model.records.records import Event
from patchlane.base.errors import CannotTestHere


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly the named of both are installed."""

    def pretend(*names):
        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n: (n in names or None) if n in ("tensorboard", "wandb") else found(n)
        )

    return pretend


class Failing:
    def __init__(self, at):
        self.at, self.seen = at, []

    def write(self, record):
        self.seen.append(record.step)
        if len(self.seen) == self.at:
            raise OSError("quota")

    def close(self):
        self.seen.append("closed")
        if self.at == "close":
            raise OSError("quota")


def test_numbers_are_flat_and_only_numbers():
    flat = sinks.numbers(step(2, gpu="NVIDIA H200", skipped=True))
    assert flat["train/loss"] == 5.0 and flat["train/seconds/data"] == 0.1 and flat["train/skipped"] == 1.0
    assert not {"train/gpu", "train/mfu", "train/step", "train/kind", "train/time"} & set(flat)
    assert sinks.numbers(held_out(1, 2.0, "code"))["valid/code/loss"] == 2.0
    assert sinks.numbers(held_out(1, 2.0)) == {"valid/tokens": 500, "valid/loss": 2.0, "valid/seconds": 1.0}
    assert sinks.numbers(Event(step=1, name="x", detail={"a": 1, "b": "no"})) == {"event/x/a": 1}


def test_a_failing_sink_says_so_once_and_training_goes_on(tmp_path, caplog):
    bad, good = Failing(2), Failing(0)
    shielded = [sinks.Shielded("Bad", lambda: bad), sinks.Shielded("Good", lambda: good)]
    with caplog.at_level(logging.WARNING), MetricsLog(tmp_path, sinks=shielded) as log:
        for number in (1, 2, 3):
            log.write(step(number))
    assert [r.step for r in history.read(tmp_path)] == [1, 2, 3]
    assert bad.seen == [1, 2] and good.seen == [1, 2, 3, "closed"]
    assert [(r.levelname, r.args[0]) for r in caplog.records] == [("WARNING", "Bad")]


@pytest.mark.parametrize("at", ["open", "close"])
def test_failing_to_open_or_close_is_survived(caplog, at):
    def opened():
        if at == "open":
            raise ValueError("no")
        return Failing(at)

    sink = sinks.Shielded("Bad", opened)
    sink.write(step(1))
    sink.close()
    sink.close()
    assert len(caplog.records) == 1


def test_tensorboard_reads_back(tmp_path, installed):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -e .[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    installed("tensorboard")
    (sink,) = sinks.open_sinks(tmp_path)
    for number in (1, 2, 3):
        sink.write(step(number))
    sink.close()
    (resumed,) = sinks.open_sinks(tmp_path, resume_step=2)
    resumed.write(step(3, loss=8.0))
    resumed.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 10.0), (2, 5.0), (3, 8.0)]


def test_tensorboard_of_a_run_that_starts_anew_has_its_points_alone(tmp_path, installed):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -e .[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    installed("tensorboard")
    for loss, count in ((10.0, 6), (3.0, 2)):
        (sink,) = sinks.open_sinks(tmp_path)
        for number in range(1, count + 1):
            sink.write(step(number, loss=loss))
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.0), (2, 3.0)]


class FakeWandb(types.ModuleType):
    def __init__(self):
        super().__init__("wandb")
        self.started, self.logged = {}, []

    def init(self, **how):
        self.started = how
        return types.SimpleNamespace(log=self.logged.append, finish=lambda: self.logged.append("finished"))


@pytest.mark.parametrize(
    ("environment", "asked", "project", "mode"),
    [
        ({}, True, "nam56r", "offline"),
        ({"WANDB_PROJECT": "mine"}, None, "mine", "offline"),
        ({"WANDB_PROJECT": "mine", "WANDB_MODE": "online"}, None, "mine", "online"),
    ],
)
def test_wandb_is_offline_unless_told(tmp_path, installed, monkeypatch, environment, asked, project, mode):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    installed("wandb")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (sink,) = sinks.open_sinks(tmp_path, wandb=asked)
    sink.write(step(1))
    sink.close()
    assert (fake.started["project"], fake.started["mode"], fake.started["dir"]) == (project, mode, str(tmp_path))
    assert fake.logged[0]["train/loss"] == 10.0 and fake.logged[0]["step"] == 1 and fake.logged[1] == "finished"


def test_wandb_is_left_alone_unless_asked_for(tmp_path, installed, monkeypatch):
    installed("wandb")
    assert sinks.open_sinks(tmp_path) == []
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert sinks.open_sinks(tmp_path, wandb=False) == []


def test_wandb_asked_for_and_absent_is_said_before_training(tmp_path, installed):
    installed()
    assert sinks.open_sinks(tmp_path) == []
    with pytest.raises(CannotTestHere, match="pip install wandb"):
        sinks.open_sinks(tmp_path, wandb=True)
