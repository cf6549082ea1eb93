"""A checkpoint with any of its files altered, cut short or gone is refused; the run goes on from the one before it."""

import random
import shutil

import pytest
from train_kit import checkpoints, copy, good, steps, train

from model.records import history

pytestmark = pytest.mark.upstream
COMMON = {"save_every": 2, "evaluate_every": 100, "fp32": True}
FLIPS = 24


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)


@pytest.fixture(scope="module")
def saved(stack, text, tmp_path_factory):
    """(a run of five steps with the checkpoints of the fourth and fifth, one small checkpoint)."""
    folder = tmp_path_factory.mktemp("saved")
    good(train(stack, folder / "run", text, stop_after=5, steps=8, **COMMON))
    ended = stack.run("trained:saving", str(folder / "small" / "checkpoints"), str(text), 1)
    assert ended.code == 0, ended.said
    return folder / "run", folder / "small" / "checkpoints" / "step_0000001"


def damages(whole, folder):
    """{what was done: a copy of the checkpoint it was done to}."""
    found, draw = {}, random.Random(0)

    def copied(what):
        found[what] = copy(whole, folder / str(len(found)) / whole.name)
        return found[what]

    for name in sorted(path.name for path in whole.iterdir()):
        (copied(f"{name} gone") / name).unlink()
        cut = copied(f"{name} cut") / name
        cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
        (copied(f"{name} empty") / name).write_bytes(b"")
        for at in draw.sample(range((whole / name).stat().st_size), FLIPS // 4):
            flip(copied(f"{name} byte {at}") / name, at)
    shutil.rmtree(copied("all gone"))
    return found


def test_every_damage_is_refused_with_the_remedy(saved, stack, text, tmp_path):
    """Of integrity.json itself some bytes say nothing: the names of the hash and of files that are gone."""
    whole = saved[1]
    damaged = damages(whole, tmp_path)
    ended = stack.run("trained:refused", [str(path) for path in [*damaged.values(), whole]], str(text))
    assert ended.code == 0, ended.said
    *refusals, of_whole = ended.value
    assert of_whole == ""
    loaded = [what for what, refusal in zip(damaged, refusals, strict=True) if not refusal]
    assert [what for what in loaded if not what.startswith("integrity.json byte")] == []
    assert len(refusals) >= 4 * 3 + FLIPS
    for path, refusal in zip(damaged.values(), refusals, strict=True):
        assert not refusal or (refusal.startswith(whole.name) and f"fix: mv {path} elsewhere" in refusal)


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.long), 2])
def test_the_run_goes_on_from_the_one_before(world, saved, stack, text, tmp_path):
    run = copy(saved[0], tmp_path / "run")
    flip(run / "checkpoints" / "step_0000005" / "__0_0.distcp", 1_000_000)
    good(train(stack, run, text, world=world, steps=8, **COMMON))
    assert [(r.step, r.loss) for r in steps(run)[:4]] == [(r.step, r.loss) for r in steps(saved[0])[:4]]
    assert len(steps(run)) == 8
    assert checkpoints(run) == [".damaged-step_0000005", "step_0000006", "step_0000008"]
    [event] = history.events(history.read(run), "damaged checkpoint")
    assert (event.step, event.detail["folder"]) == (4, ".damaged-step_0000005")
    assert "__0_0.distcp" in event.detail["why"]


def test_a_run_with_no_whole_checkpoint_is_refused(saved, stack, text, tmp_path):
    run = copy(saved[0], tmp_path / "run")
    for name in checkpoints(run):
        flip(run / "checkpoints" / name / "__0_0.distcp", 1_000_000)
    [ended] = train(stack, run, text, steps=8, **COMMON)
    refused(ended, run, "error: step_0000005 ", "__0_0.distcp")


def refused(ended, run, *words):
    """A clear refusal that left the run as it was."""
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    for word in ("error: ", "fix: ", *words):
        assert word in ended.said
    assert checkpoints(run) == ["step_0000004", "step_0000005"]
    assert len(steps(run)) == 5


def test_another_size_is_refused(saved, stack, text):
    [ended] = train(stack, saved[0], text, size={"mtp_depths": 2}, steps=8, **COMMON)
    refused(ended, saved[0], "error: step_0000005 ", "choose another --out")


def test_another_dataset_is_refused(saved, stack, other_text):
    [ended] = train(stack, saved[0], other_text, steps=8, **COMMON)
    refused(ended, saved[0], " dataset is ")


def test_another_order_of_rows_is_refused(saved, stack, text):
    [ended] = train(stack, saved[0], text, steps=8, seed=1, **COMMON)
    refused(ended, saved[0], " seed is 0, ")


def test_a_fresh_run_sets_the_old_one_aside(saved, stack, text, tmp_path):
    run = copy(saved[0], tmp_path / "run")
    (run / "evaluation").mkdir()
    (run / "evaluation" / "step_0000004.json").write_text("{}")
    before = {path.name for path in run.iterdir()} & {"run.json", "coverage.json", "tensorboard", "evaluation"}
    good(train(stack, run, text, steps=4, fresh=True, **COMMON))
    assert {path.name for path in (run / "earlier.1").iterdir()} >= before >= {"run.json", "evaluation"}
    assert not (run / "evaluation").exists()
    assert checkpoints(run) == ["step_0000002", "step_0000004"]
    assert sorted(path.name for path in (run / "checkpoints.1").iterdir()) == ["step_0000004", "step_0000005"]
    assert len(steps(run)) == 4
    good(train(stack, run, text, steps=5, **COMMON))
    assert checkpoints(run) == ["step_0000004", "step_0000005"]


def test_a_resumed_run_follows_its_own_schedule(saved, stack, text, tmp_path):
    run = copy(saved[0], tmp_path / "run")
    good(train(stack, run, text, steps=8, learning_rate=1e-5, **COMMON))
    assert min(record.learning_rate for record in steps(run)[1:5]) > 1e-4
    assert max(record.learning_rate for record in steps(run)[5:]) <= 1e-5
