"""Waits of the host for the GPU are counted where they stand; Megatron's machinery has none when a step reads late."""

import collections
import subprocess
import sys
import warnings

import pytest
import torch
from data_kit import make_dataset

from model.records import history
from model.step import waits
from reproducers.record.schema import ROOT

HERE = "model/step/test_waits.py"
# On a GPU the same code as here: no layers, whose kernels differ, but schedule, reduction, checks and optimizer.
MACHINERY = {f"optimizer/{name}.py" for name in ("clip_grads", "optimizer", "distrib_optimizer")}
MACHINERY |= {f"distributed/{name}.py" for name in ("param_and_grad_buffer", "finalize_model_grads")}
MACHINERY |= {"core/rerun_state_machine.py", "pipeline_parallel/schedules.py", "moe/token_dispatcher.py"}
MACHINERY |= {"moe/experts.py", "moe/moe_utils.py", "moe/router.py"}
LATE = {"late_reads": True, "paths": {"moe": "grouped_mm"}}
# a size that one GPU holds, on the paths that a GPU runs unasked
GPU = "1xh200_quarter --steps 6 --waits 5 --set save_every=0 --set evaluate_every=100 --set late_reads=true"


def test_what_waits_by_name_and_what_is_warned_of(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append("device"))
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda self: asked.append("event"))
    with waits.counted() as counts:
        line = sys._getframe().f_lineno
        for _ in range(2):
            torch.cuda.synchronize()
            warnings.warn(waits.WARNING, stacklevel=1)
        torch.cuda.Event.synchronize(None)
    assert counts == {f"{HERE}:{line + 2}": 2, f"{HERE}:{line + 3}": 2, f"{HERE}:{line + 4}": 1}
    assert asked == ["device", "device", "event"]
    torch.cuda.synchronize()
    assert counts.total() == 5  # nothing is counted afterwards
    assert waits.text(counts).startswith(f"{HERE}:{line + 2} x2, ")
    assert waits.text(collections.Counter()) == "none"


def test_other_warnings_are_shown(recwarn):
    with waits.counted() as counts:
        warnings.warn("something else", stacklevel=1)
    assert [str(one.message) for one in recwarn] == ["something else"]
    assert not counts


@pytest.mark.upstream
def test_the_machinery_reads_nothing_of_a_step_that_reads_late(stack, text):
    early, late = (stack.run("trained:reads", str(text), options) for options in ({}, LATE))
    assert (early.code, late.code) == (0, 0), early.said + late.said
    assert "core/rerun_state_machine.py" in early.value  # clipping reads nothing either way, by pack 45
    assert not MACHINERY & late.value.keys(), late.value
    diagnosed = stack.run("trained:reads", str(text), LATE, diagnosed=True)
    assert diagnosed.value == late.value
    by_muon = stack.run("trained:reads", str(text), LATE, diagnosed=True, optimizer="muon")
    assert by_muon.value.keys() <= late.value.keys(), by_muon.said


@pytest.mark.gpu
@pytest.mark.upstream
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_wait_between_a_steps_data_and_its_metrics(tmp_path):
    data = make_dataset(tmp_path, documents=80, longest=2000).folder  # more than the four rows of a step
    command = [sys.executable, "-m", "model.train", *GPU.split(), "--data", str(data), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    (said,) = [one.detail for one in history.read(tmp_path) if one.kind == "event" and one.name == "waits"]
    assert said["count"] == 0, said["places"]
