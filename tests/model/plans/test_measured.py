"""A kept run as a measurement: its layout, and times in which what overlaps counts once."""

import json
from pathlib import Path

import pytest
from planned import COMPUTING, IDLE, KINDS, keep, profile

from model.definition.memory import Layout
from model.families.sizes import SIZES
from model.plans import measured
from model.plans.measured import Job
from model.reports import benchmarks
from patchlane.base.errors import PatchlaneError


def test_a_run_says_what_it_computed(tmp_path):
    links = {"NCCL reduce-scatter": 0.04}
    options = {"expert_parallel": 2, "recompute": True, "overlap_grads": True}
    folder = keep(tmp_path / "a", ranks=4, accumulate=2, profiled=profile(links=links), **options)
    found = measured.read(folder)
    assert found.job == Job(SIZES["nam56r_wide"], Layout(4, 2, 1, 3), 4096, 2, True, overlap_grads=True)
    assert found.computing == pytest.approx(COMPUTING) and found.idle == pytest.approx(IDLE)
    assert found.communication("reduce-scatter") == 0.04 and found.communication("all-gather") == 0
    assert found.job.tokens == 2 * 3 * 4096


def test_what_overlaps_counts_once_and_communication_not_at_all(tmp_path):
    """Half a second of kernels beside others."""
    run = profile(KINDS | {"GEMM": 0.900}, links={"NCCL all-gather": 0.1}, busy=0.9, before=1.0)
    found = measured.read(keep(tmp_path / "a", profiled=run))
    assert sum(found.kinds.values()) == pytest.approx(COMPUTING) and set(found.kinds) == set(KINDS)
    assert found.kinds["GEMM"] / found.kinds["M²RNN"] == pytest.approx(0.9 / 0.04)


def test_without_steps_before_the_profile_its_own_steps_count(tmp_path):
    found = measured.read(keep(tmp_path / "a", profiled=profile(seconds_before=None, steps_before=0)))
    assert found.idle == pytest.approx(0.070)


def test_a_step_faster_than_the_profiled_one_is_busy_idles_never(tmp_path):
    assert measured.read(keep(tmp_path / "a", profiled=profile(before=0.7))).idle == 0


def test_the_layout_of_a_run_that_was_resumed_is_not_known(tmp_path):
    run = benchmarks.read(keep(tmp_path / "a"))
    assert measured.job(run) is not None and measured.job(run._replace(moved=True)) is None
    assert measured.job(run._replace(setup={})) is None


def _no_gpu(folder):
    (folder / "profile.json").write_text(profile(busy=None).model_dump_json())


def _stages(folder):
    setup = json.loads((folder / "run.json").read_text())
    setup["run"]["pipeline_parallel"] = 2
    (folder / "run.json").write_text(json.dumps(setup))


def _strange(folder):
    setup = json.loads((folder / "run.json").read_text())
    del setup["recipe"]
    (folder / "run.json").write_text(json.dumps(setup))


HARMS = {
    "no profile": lambda folder: (folder / "profile.json").unlink(),
    "no run.json": lambda folder: (folder / "run.json").unlink(),
    "no GPU": _no_gpu,
    "stages": _stages,
    "run.json of another kind": _strange,
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_that_nothing_can_be_predicted_from_is_refused(tmp_path, harm):
    folder = keep(tmp_path / "a", profiled=profile())
    HARMS[harm](folder)
    with pytest.raises(PatchlaneError) as refused:
        measured.read(folder)
    assert refused.value.remedy == measured.REMEDY and "\n" not in refused.value.what


def test_a_kept_run_is_found_by_its_name():
    assert measured.read(Path("2xh200_wide_mb3_20261122")).run.gpus == 2
    with pytest.raises(PatchlaneError) as refused:
        measured.read(Path("no_such_run"))
    assert refused.value.remedy == measured.REMEDY


@pytest.mark.parametrize(
    ("layout", "overlap"),
    [(Layout(2), {"overlap_weights": True}), (Layout(2, 1, 2), {"overlap_grads": True})],
)
def test_an_overlap_that_training_refuses_is_refused(layout, overlap):
    with pytest.raises(ValueError):
        Job(SIZES["nam56r_wide"], layout, 4096, **overlap)
