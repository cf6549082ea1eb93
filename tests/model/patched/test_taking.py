"""Runs side by side: what waits for what, on which GPUs, and what of a run that fails."""

import sys

import pytest

from model.patched import runs
from model.patched.taking import Taking

SCRIPT = """
import os, pathlib, sys, time
out, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(out / "checkpoints").mkdir(parents=True, exist_ok=True)
(out / "checkpoints" / name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
time.sleep(0.2)
print("said", name)
sys.exit(name in sys.argv[3:])
"""


@pytest.fixture
def take(tmp_path, monkeypatch):
    """Take a plan of {name: fields}; those of ``fails`` end with code 1. Gives (how each ended, lines told)."""

    def taken(plan, gpus=(), fails=(), ahead=None):
        made = {name: {"about": name, "recipe": "cpu_tiny", "gpus": 0, **fields} for name, fields in plan.items()}
        of = runs.Plan.model_validate({"schema_version": 1, "runs": made})
        monkeypatch.setattr(
            runs.PatchedRun,
            "command",
            lambda self, out: [sys.executable, "-c", SCRIPT, str(out), self.about, *fails],
        )
        monkeypatch.setattr(runs.PatchedRun, "ahead", lambda self: ahead or [])
        told = []
        return Taking(of, tmp_path, gpus, told.append).all(), told

    return taken


def seen(tmp_path, name):
    return {path.name: path.read_text() for path in (tmp_path / name / "checkpoints").iterdir()}


def test_a_run_begins_with_the_checkpoint_of_the_one_before(take, tmp_path):
    ended, told = take({"first": {}, "second": {"after": "first"}, "beside": {}})
    assert {name: how.code for name, how in ended.items()} == {"first": 0, "second": 0, "beside": 0}
    assert set(seen(tmp_path, "second")) == {"first", "second"} and set(seen(tmp_path, "first")) == {"first"}
    assert told.index("second: begins on the CPU") > min(n for n, line in enumerate(told) if "first: ended" in line)
    assert (tmp_path / "first.log").read_text() == "said first\n"


def test_no_gpu_is_given_to_two_runs_at_once(take, tmp_path):
    ended, told = take({"a": {"gpus": 1}, "b": {"gpus": 1}, "c": {"gpus": 2}, "d": {"gpus": 1}}, gpus=["4", "7"])
    assert not any(how.code for how in ended.values())
    assert seen(tmp_path, "c")["c"] in ("4,7", "7,4")
    free = {"4", "7"}
    for line in told:
        name, _, what = line.partition(": ")
        mine = set(seen(tmp_path, name)[name].split(","))
        assert mine <= free if what.startswith("begins") else not mine & free
        free = free - mine if what.startswith("begins") else free | mine


def test_what_cannot_run_or_has_nothing_to_begin_with_says_why(take, tmp_path):
    ended, _ = take({"a": {}, "b": {"after": "a"}, "c": {"gpus": 3}, "d": {}}, gpus=["0"], fails=["a"])
    assert {name: how.code for name, how in ended.items()} == {"a": 1, "b": -1, "c": -1, "d": 0}
    assert "a failed" in ended["b"].why and "3 GPUs" in ended["c"].why
    assert not (tmp_path / "b").exists()


def test_a_run_whose_files_cannot_be_written_ends_alone(take, tmp_path):
    (tmp_path / "a.log").mkdir()
    ended, _ = take({"a": {}, "b": {"after": "a"}, "c": {}})
    assert {name: how.code for name, how in ended.items()} == {"a": -1, "b": -1, "c": 0}
    assert "a.log" in ended["a"].why


def test_kernels_are_compiled_before_a_run_waits_for_another(take, tmp_path):
    ahead = [sys.executable, "-c", "print('compiled')"]
    ended, _ = take({"a": {"gpus": 1}, "b": {"gpus": 1, "after": "a"}}, gpus=["0"], ahead=ahead)
    assert not any(how.code for how in ended.values())
    assert (tmp_path / "b.log").read_text() == "compiled\nsaid b\n"
    wrong, _ = take({"x": {"gpus": 1}}, gpus=["0"], ahead=[sys.executable, "-c", "raise SystemExit(3)"])
    assert wrong["x"].code == 3 and "compile" in wrong["x"].why
