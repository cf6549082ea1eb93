"""Which of Megatron's own paths a run takes: the fastest that works where nothing is asked for, else what is."""

import pytest

from model.step import megatron
from model.step.megatron import Run
from reproducers.base.errors import CannotTestHere


def names(**run):
    return {kind: path.name for kind, path in megatron.choose(Run(**run)).items()}


def test_what_runs_unasked():
    fastest = {"dsa": "tilelang", "indexer": "stream", "moe": "grouped_fused", "shared": "after", "wgrad": "fused"}
    assert names(bf16=True, on_cpu=False) == fastest
    assert names(bf16=True, on_cpu=False, expert_parallel=4) == fastest | {"shared": "beside"}
    assert names(on_cpu=False) == fastest | {"wgrad": "added"}  # the product adds gradients of bf16 weights only
    assert names(bf16=True, on_cpu=False, row=4096) == fastest | {"indexer": "rows"}
    on_cpu = {"dsa": "megatron", "indexer": "stream", "moe": "sequential", "shared": "after", "wgrad": "added"}
    assert names(bf16=True, expert_parallel=2) == on_cpu


def test_what_is_asked_for_is_taken_or_refused():
    asked = {"dsa": "megatron", "indexer": "stream", "moe": "grouped", "shared": "after", "wgrad": "added"}
    assert names(bf16=True, on_cpu=False, expert_parallel=4, row=4096, paths=asked) == asked
    with pytest.raises(CannotTestHere, match="not rows of one length"):
        names(paths={"indexer": "rows"})
    with pytest.raises(CannotTestHere, match="nothing is sent to other ranks"):
        names(bf16=True, on_cpu=False, paths={"shared": "beside"})
    with pytest.raises(CannotTestHere, match="fused was asked for and weights are fp32"):
        names(on_cpu=False, paths={"wgrad": "fused"})
