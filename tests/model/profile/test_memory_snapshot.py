"""What an out-of-memory error leaves behind, with the allocator stood in for."""

import pickle

import pytest
import torch

from model.definition.memory import GIB
from model.profile import memory_snapshot
from model.profile.memory_snapshot import MAX_ENTRIES, OutOfMemory, guard, record, summary
from patchlane.base.errors import PatchlaneError

NETWORK = memory_snapshot.MODEL + "network.py"


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


def block(gib, *frames, state="active_allocated"):
    return {"size": int(gib * GIB), "state": state, "frames": list(frames)}


IN_TORCH = frame("/v/lib/python3.11/site-packages/torch/nn/functional.py", 9, "linear")
EXPERTS = frame("/v/lib/python3.11/site-packages/megatron/core/transformer/moe/experts.py", 77, "forward")
MODEL = frame(NETWORK, 60, "forward")
SNAPSHOT = {
    "segments": [
        {"blocks": [block(2, IN_TORCH, EXPERTS, MODEL), block(3, IN_TORCH, EXPERTS, MODEL)]},
        {"blocks": [block(1.5), block(4, EXPERTS, state="inactive"), block(1, IN_TORCH)]},
        {"blocks": [block(0.25, MODEL, state="active_awaiting_free")]},
    ]
}
STATS = {"allocated_bytes.all.current": 8 * GIB, "allocated_bytes.all.peak": 77 * GIB}


@pytest.fixture
def gpu(monkeypatch):
    """torch.cuda.memory of a GPU that is full; what recording was asked for."""
    asked = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: asked.update(how))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: STATS)
    return asked


def exhaust(run, **how):
    with guard(run, "micro-batch 8 x 4096, EP 1", **how):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a lot")


def test_live_blocks_by_the_line_that_allocated_them():
    lines = summary("said", SNAPSHOT, STATS).splitlines()
    assert [line.split(": ")[1] for line in lines if line.startswith("- allocated")] == ["8.00 GiB", "77.00 GiB"]
    rows = [line for line in lines if line.startswith("| ") and "GiB" not in line]
    assert rows == [
        f"| 5.000 | 2 | transformer/moe/experts.py:77 `forward` | {'/'.join(NETWORK.split('/')[-3:])}:60 `forward` |",
        next(row for row in rows if row.startswith("| 1.500 | 1 | not recorded") and row.endswith(" | – |")),
        "| 1.000 | 1 | torch/nn/functional.py:9 `linear` | – |",
        "| 0.250 | 1 | " + " | ".join([f"{'/'.join(NETWORK.split('/')[-3:])}:60 `forward`"] * 2) + " |",
    ]


def test_an_exhausted_gpu_is_an_error_for_people(gpu, tmp_path):
    with pytest.raises(OutOfMemory) as told:
        exhaust(tmp_path, rank=3)
    assert isinstance(told.value, PatchlaneError) and isinstance(told.value.__cause__, torch.OutOfMemoryError)
    assert "rank 3 (micro-batch 8 x 4096, EP 1)" in told.value.what and " 2.00 GiB." in told.value.what
    assert str(tmp_path / "oom.rank3.md") in told.value.what and "\n" not in told.value.what
    assert all(option in told.value.remedy for option in ("--set micro_batch", "expert_parallel", "--set recompute"))
    assert "experts.py:77" in (tmp_path / "oom.rank3.md").read_text()
    assert pickle.loads((tmp_path / "oom.rank3.pickle").read_bytes()) == SNAPSHOT


def test_a_snapshot_that_fails_does_not_hide_the_error(gpu, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: 1 / 0)
    with pytest.raises(OutOfMemory) as told:
        exhaust(tmp_path)
    assert "oom.rank0" not in told.value.what and [r.args[1] for r in caplog.records] == ["ZeroDivisionError"]
    assert not list(tmp_path.iterdir())


def test_other_errors_and_none_pass_untouched(gpu, tmp_path):
    with pytest.raises(RuntimeError, match="other"), guard(tmp_path, ""):
        raise RuntimeError("other")
    with guard(tmp_path, ""):
        pass
    assert not list(tmp_path.iterdir())


def test_recording_is_bounded_and_python_only(gpu):
    assert record()
    assert gpu == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": MAX_ENTRIES}


def test_recording_takes_what_torch_takes():
    import inspect

    real = inspect.signature(torch.cuda.memory._record_memory_history)
    assert {"enabled", "context", "stacks", "max_entries"} <= set(real.parameters)


def test_without_a_gpu_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **how: pytest.fail("recorded"))
    assert not record()
