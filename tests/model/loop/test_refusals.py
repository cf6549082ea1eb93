"""What is refused for the GPU's sake, from numbers alone: no GPU needed."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from data_kit import BYTES, make_dataset

from model.data.rows import blend
from model.definition import memory
from model.definition.memory import Layout
from model.definition.recipes import Recipe
from model.families.sizes import SIZES
from model.kinds.run import Run
from model.loop import launch, refusals, session
from patchlane.base.errors import CannotTestHere, PatchlaneError
from reproducers.record.schema import ROOT

QUARTER = SIZES["nam56r_quarter"]
LAYOUT = Layout(micro_batch=4)


def test_what_a_rank_must_keep_has_to_fit():
    parts = memory.estimate(QUARTER, LAYOUT)
    fixed = sum(parts.values()) - parts["activations"]
    refusals.fits(QUARTER, LAYOUT, fixed + 0.1, 4096)
    with pytest.raises(PatchlaneError, match="before any activation") as refused:
        refusals.fits(QUARTER, LAYOUT, fixed - 0.1, 4096)
    command = refused.value.remedy.partition(" proposes")[0].split()
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "--gpus 2 --gib" in done.stderr, done.stderr  # none fits


def test_a_dataset_that_is_all_held_out_is_not_trained_on(tmp_path):
    kept = make_dataset(tmp_path, "kept", replace(BYTES, valid_percent=100))
    [part] = blend.of([blend.part(str(kept.folder))]).parts
    with pytest.raises(PatchlaneError) as refused:
        refusals.rows(blend.of([part]), Recipe(size="nam56r_tiny"), 1, 16)
    assert refused.value.remedy.startswith(f"--held-out kept={kept.folder} ")
    assert blend.part(f"kept={kept.folder}").dataset.folder == kept.folder


def test_what_holds_out_less_than_a_row_is_said_or_where_it_is_there_for_that_refused(tmp_path, caplog):
    bare = make_dataset(tmp_path, "bare", replace(BYTES, valid_percent=0)).folder
    whole = make_dataset(tmp_path, "whole", documents=80).folder
    with caplog.at_level(logging.INFO, "model.loop.refusals"):
        refusals.held_out(blend.of([blend.part(str(whole))]), 16)
        assert caplog.records == []
        refusals.held_out(blend.of([blend.part(f"1:{whole}"), blend.part(f"1:{bare}")]), 16)
        assert [record.args[0] for record in caplog.records] == ["bare"]
    with pytest.raises(PatchlaneError) as refused:
        refusals.held_out(blend.of([blend.part(str(whole))], [blend.part(f"own={bare}")]), 16)
    assert "--held-out own" in refused.value.what and "--valid-percent 100" in refused.value.remedy


def test_a_part_of_less_than_a_row_is_refused_by_its_name(tmp_path):
    whole = make_dataset(tmp_path, "whole", documents=80).folder
    small = make_dataset(tmp_path, "small", replace(BYTES, valid_percent=0), documents=1, longest=20).folder
    with pytest.raises(PatchlaneError) as refused:
        refusals.rows(blend.of([blend.part(f"1:{whole}"), blend.part(f"1:{small}")]), Recipe(size="nam56r_tiny"), 1, 64)
    assert str(small) in refused.value.what


def test_a_size_of_the_same_architecture_and_a_larger_vocabulary_is_named():
    refusals.vocabulary(SIZES["nam56r_tiny"], SIZES["nam56r_tiny"].vocab)
    for name, ids, larger in (
        ("nam56r_tiny", 65_536, "nam56r, nam56r_wide, nam56r_quarter"),
        ("nam56r_tiny", 65_537, ""),
        ("v4_tiny", 65_537, "v4_flash, v4_pro, v4_medium"),
    ):
        with pytest.raises(PatchlaneError) as refused:
            refusals.vocabulary(SIZES[name], ids)
        assert refused.value.remedy.startswith(f"train {larger}, or " if larger else "python -m model.data build")


def test_cuda_graphs_keep_activations_as_well():
    whole = sum(memory.estimate(QUARTER, LAYOUT).values())
    refusals.fits(QUARTER, LAYOUT, whole + 0.1, 4096, graphs=True)
    with pytest.raises(PatchlaneError, match="with the activations that CUDA graphs hold") as refused:
        refusals.fits(QUARTER, LAYOUT, whole - 0.1, 4096, graphs=True)
    assert "without --cuda-graphs" in str(refused.value)


def test_a_rank_on_a_cpu_has_its_part_of_the_hosts_memory(monkeypatch):
    monkeypatch.setattr(refusals.psutil, "virtual_memory", lambda: SimpleNamespace(available=24 * 2**30))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert refusals.free_gib(on_cpu=True) == 24
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert refusals.free_gib(on_cpu=True) == 6


@pytest.mark.parametrize("name", ["v4_flash", "nam56r"])
def test_a_size_that_the_host_does_not_hold_is_refused_before_it_is_built(name, monkeypatch):
    monkeypatch.setattr(refusals.psutil, "virtual_memory", lambda: SimpleNamespace(available=24 * 2**30))
    with pytest.raises(PatchlaneError) as refused:
        session._modules(SIZES[name], Recipe(size=name), Run(), 1)
    assert f"python -m model.describe {name} --gpus 1 --gib " in refused.value.remedy


@pytest.mark.parametrize(("before", "after"), [(None, "4x"), ("1x", "1x")])
def test_queues_of_launches_are_longer_unless_someone_has_said_how_long(before, after, monkeypatch):
    monkeypatch.setenv("CUDA_SCALE_LAUNCH_QUEUES", before or "")
    if before is None:
        monkeypatch.delenv("CUDA_SCALE_LAUNCH_QUEUES")
    assert launch.queues() == os.environ["CUDA_SCALE_LAUNCH_QUEUES"] == after


def test_nccls_blocks_are_counted_on_gpus_only():
    assert launch.nccl(Run(nccl_ctas=64)) == {"NCCL_MIN_CTAS": "64", "NCCL_MAX_CTAS": "64"}
    assert launch.nccl(Run()) == {}
    refusals.links(Run(nccl_ctas=64, on_cpu=False))
    with pytest.raises(CannotTestHere, match="nccl_ctas"):
        refusals.links(Run(nccl_ctas=64))


@pytest.mark.parametrize(
    ("other", "word"), [({"pipeline_parallel": 2}, "one pipeline stage"), ({"recompute": True}, "choose one")]
)
def test_cuda_graphs_are_refused_beside(other, word):
    refusals.graphs(QUARTER, Run(on_cpu=False, **other))
    with pytest.raises(PatchlaneError, match=word):
        refusals.graphs(QUARTER, Run(cuda_graphs=True, on_cpu=False, **other))
