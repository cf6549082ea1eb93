"""Steps that are read when the next one is launched: records and checkpoints are those of a run that reads each step at
once, but for the times."""

import pytest
from train_kit import checkpoints, good, measured, steps, train

from model.records import history

pytestmark = pytest.mark.upstream
# Read at once: the first two of a process, which are watched, and those before an evaluation, a checkpoint or the end.
COMMON = {"evaluate_every": 5, "save_every": 8, "fp32": True, "learning_rate": 1e-3, "set": "diagnose_every=3"}
# names of one length: a checkpoint holds its path, and its size is recorded
HOW = {"later": {"late_reads": True}, "after": {"late_reads": True, "at_once": True}, "early": {"late_reads": False}}
TIMES = {"time", "seconds", "tokens_per_s_per_gpu", "tflops_megatron", "tflops_built", "rank_seconds"}
TIMES |= {"blocked", "written"}  # of a checkpoint


def untimed(value):
    if isinstance(value, dict):
        return {name: untimed(one) for name, one in value.items() if name not in TIMES}
    return value


def recorded(out):
    """All records but for their times; a checkpoint is recorded at whatever step finds that it has its name."""
    found = [untimed(record.model_dump()) for record in history.read(out)]
    return sorted(found, key=lambda record: (record["step"], record["kind"], record.get("name") or ""))


def noted(path):
    return [tuple(line.split()[:2]) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(stack, text, tmp_path_factory):
    """Thirteen steps, stopped after the fourth and resumed; in the twelfth waits are counted."""
    folder = tmp_path_factory.mktemp("late")
    for name, how in HOW.items():
        common = COMMON | how | {"steps": 13, "waits": 12, "calls": folder / f"{name}.txt"}
        for stop_after in (4, None):
            good(train(stack, folder / name, text, stop_after=stop_after, **common))
    return folder


def test_a_step_is_read_when_the_next_one_is_launched(runs):
    def read(step):
        return ("read", str(step))

    def launched(step):
        return ("launched", str(step))

    begun = [launched(1), read(1), launched(2), read(2), launched(3), launched(4), read(3), read(4)]
    resumed = [launched(5), read(5), launched(6), read(6), launched(7), launched(8), read(7), read(8)]
    resumed += [launched(9), launched(10), read(9), read(10)]
    resumed += [launched(11), read(11), launched(12), read(12), launched(13), read(13)]  # where waits are counted
    assert noted(runs / "later.txt") == begun + resumed
    for name in ("after", "early"):
        assert noted(runs / f"{name}.txt") == [call(step) for step in range(1, 14) for call in (launched, read)]


def test_the_records_are_those_of_steps_read_at_once(runs):
    later = recorded(runs / "later")
    assert [record["step"] for record in later if record["kind"] == "train"] == [*range(1, 14)]
    assert {record["kind"] for record in later} == {"train", "valid", "diagnosis", "event"}
    assert later == recorded(runs / "after")
    for late, early in zip(measured(runs / "later"), measured(runs / "early"), strict=True):
        assert late == pytest.approx(early, rel=1e-2)  # which clips by a norm of fp64; the indexer feels it
    assert [checkpoints(runs / name) for name in HOW] == [["step_0000008", "step_0000013"]] * 3


def test_times_add_up_from_step_to_step(runs):
    """From the first of successive steps that are read late each takes the time from the end of the one before."""
    lines = (line.split() for line in (runs / "later.txt").read_text().splitlines())
    ended = {int(step): float(at[0]) for call, step, *at in lines if call == "launched"}
    took = {record.step: record.seconds for record in steps(runs / "later")}
    for step in (4, 8, 10):
        assert took[step].total == pytest.approx(ended[step] - ended[step - 1], rel=1e-9), step
    for phases in took.values():
        assert phases.data > 0 and phases.forward_backward > 0 and phases.optimizer > 0


@pytest.mark.parametrize("save_every", [5, 100])
def test_a_step_that_is_not_finite_ends_the_run_though_the_next_one_is_launched(save_every, stack, text, tmp_path):
    """Where the next one was to be saved too; the records are those of a run that reads each step at once."""
    common = COMMON | {"save_every": save_every, "evaluate_every": 100, "steps": 9, "late_reads": True}
    for name in ("later", "after"):
        how = HOW[name] | {"calls": tmp_path / f"{name}.txt"}
        [ended] = train(stack, tmp_path / name, text, bad=(4, "nan"), **common | how)
        assert ended.code == 2 and "error: step 4: the norm of the gradients is nan" in ended.said, ended.said
        assert "Traceback" not in ended.said
        assert checkpoints(tmp_path / name) == []
    assert noted(tmp_path / "later.txt")[-2:] == [("launched", "5"), ("read", "4")]
    assert len(steps(tmp_path / "later")) == 3
    assert recorded(tmp_path / "later") == recorded(tmp_path / "after")


@pytest.mark.parametrize("bad", [None, (3, "nan")])
def test_as_a_step_fails_the_one_before_is_recorded_and_hides_no_error(bad, stack, text, tmp_path):
    common = COMMON | {"steps": 9, "late_reads": True, "poison": (4, "failure")}
    [ended] = train(stack, tmp_path, text, bad=bad, **common)
    assert ended.code == 3 and "RuntimeError: planted" in ended.said, ended.said
    assert ("step 3: the norm of the gradients is nan" in ended.said) == (bad is not None)
    assert len(steps(tmp_path)) == (3 if bad is None else 2)


@pytest.mark.parametrize("how", [{"late_reads": False}, {"late_reads": True, "on_spike": "skip"}])
def test_other_runs_read_each_step_at_once(how, stack, text, tmp_path):
    common = COMMON | {"steps": 4, "save_every": 0, "calls": tmp_path / "calls.txt"}
    good(train(stack, tmp_path / "run", text, **common | how))
    assert noted(tmp_path / "calls.txt") == [(call, str(n)) for n in range(1, 5) for call in ("launched", "read")]


def test_a_profile_measures_idleness_in_a_step_launched_before_the_last_is_read(stack, text, tmp_path):
    """Its window is step 8; kernels are traced from step 6 on."""
    common = COMMON | {"steps": 9, "save_every": 0, "evaluate_every": 100, "late_reads": True, "profile": "8:8"}
    good(train(stack, tmp_path / "run", text, calls=tmp_path / "calls.txt", as_on_gpu=True, **common))
    noted_then = noted(tmp_path / "calls.txt")
    assert noted_then[noted_then.index(("launched", "5")) :] == [
        ("launched", "5"),
        ("read", "4"),
        ("read", "5"),
        ("launched", "6"),
        ("launched", "7"),
        ("read", "6"),
        ("read", "7"),
        ("since", "before"),
        ("launched", "8"),
        ("read", "8"),
        ("launched", "9"),
        ("read", "9"),
    ]
