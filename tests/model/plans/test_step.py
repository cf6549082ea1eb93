"""A step from a profile of known numbers."""

import dataclasses

import pytest
from planned import COMPUTING, IDLE, KINDS, keep, profile

from model.definition import memory
from model.definition.memory import Layout
from model.families.sizes import SIZES
from model.plans import links, measured
from model.plans.links import GRADIENTS, STAGES, TOKENS, WEIGHTS, Hosts, Rate
from model.plans.step import BUBBLE, COMPUTE, HOST, OPTIMIZER, predict

LINKS = {"NCCL reduce-scatter": 0.04, "NCCL all-gather": 0.02}
STEP = COMPUTING + IDLE + 0.06
HOSTS = Hosts(8, 50e9)


@pytest.fixture
def source(tmp_path):
    return measured.read(keep(tmp_path / "a", profiled=profile(links=LINKS)))


def rates(source):
    return links.measured(source) | {TOKENS: Rate(100e9, 1, "b")}


def predicted(source, hosts=HOSTS, layout=None, **changed):
    job = dataclasses.replace(source.job, **({"layout": layout} if layout else {}), **changed)
    return predict(source, rates(source), job, hosts)


def test_the_runs_own_step_comes_back(source):
    found = predicted(source)
    assert found.seconds == pytest.approx(STEP) == pytest.approx(source.profile.seconds_before)
    assert found.parts[COMPUTE] == pytest.approx(COMPUTING - KINDS["optimizer"])
    assert found.parts[OPTIMIZER] == pytest.approx(0.03) and found.parts[HOST] == pytest.approx(IDLE)
    assert found.communication == pytest.approx(0.06) and found.parts[BUBBLE] == 0
    assert found.kinds == pytest.approx(KINDS)
    assert found.tokens_per_s_per_gpu == pytest.approx(3 * 4096 / STEP)


def test_a_run_of_several_micro_batches_comes_back_too(tmp_path):
    source = measured.read(keep(tmp_path / "b", accumulate=4, profiled=profile(links=LINKS)))
    assert predicted(source).seconds == pytest.approx(STEP)
    once = predicted(source, accumulate=1)
    assert once.parts[COMPUTE] == pytest.approx((COMPUTING - 0.03) / 4) and once.parts[OPTIMIZER] == pytest.approx(0.03)


def test_rows_scale_all_but_the_recurrence_and_what_is_once_a_step(source):
    found = predicted(source, layout=Layout(2, 1, 1, 6))
    wanted = {kind: seconds * (1 if kind in ("M²RNN", "optimizer") else 2) for kind, seconds in KINDS.items()}
    assert found.kinds == pytest.approx(wanted) and found.parts[HOST] == pytest.approx(IDLE)


def test_ranks_share_the_optimizer(source):
    assert predicted(source, layout=Layout(8, 1, 1, 3)).parts[OPTIMIZER] == pytest.approx(0.03 / 4)


def test_micro_batches_repeat_all_but_what_is_once_a_step(source):
    once, twice = predicted(source), predicted(source, accumulate=2)
    assert twice.seconds - once.seconds == pytest.approx(COMPUTING - 0.03 + IDLE)
    assert twice.kinds["GEMM"] == pytest.approx(0.8) and twice.kinds["optimizer"] == pytest.approx(0.03)


def test_another_size_scales_each_kind_by_its_own_work(source):
    """nam56r_quarter: 13 layers of 52, as wide as nam56r, one MTP depth."""
    wide, quarter = SIZES["nam56r_wide"], SIZES["nam56r_quarter"]
    found = predicted(source, size=quarter).kinds
    chunks = [size.count("mamba3") * size.kinds["mamba3"].chunks() for size in (quarter, wide)]
    assert found["Mamba-3 MIMO bwd_bwd"] == pytest.approx(0.15 * chunks[0] / chunks[1])
    assert found["M²RNN"] == pytest.approx(0.04 * quarter.count("m2rnn") / wide.count("m2rnn"))
    assert found["elementwise"] == pytest.approx(0.1 * (14 * 3584) / (54 * 4096))
    assert found["GEMM"] / 0.4 == pytest.approx(found["grouped GEMM"] / 0.08)


def test_mambas_small_kernels_go_by_its_layers_and_heads(tmp_path):
    source = measured.read(keep(tmp_path / "b", profiled=profile(KINDS | {"Mamba-3 other": 0.020}, links=LINKS)))
    found = predicted(source, size=SIZES["nam56r_quarter"]).kinds["Mamba-3 other"]
    assert found == pytest.approx(0.020 * (3 * 112) / (13 * 128))


def test_overlap_hides_what_it_can(source):
    grads = predicted(source, overlap_grads=True)
    assert (grads.parts[GRADIENTS], grads.hidden[GRADIENTS]) == (0, pytest.approx(0.04))
    assert grads.parts[WEIGHTS] == pytest.approx(0.02)
    both = predicted(source, overlap_grads=True, overlap_weights=True)
    assert both.parts[WEIGHTS] == 0 and both.seconds == pytest.approx(STEP - 0.06)


def test_overlap_hides_no_more_than_a_micro_batch_computes(source):
    """Two thirds of it are the backward pass; the rest of the gradients is waited for, and so are weights."""
    slow = Hosts(1, 1e9)
    found = predicted(source, slow, overlap_grads=True, overlap_weights=True, accumulate=2)
    open_ = predicted(source, slow, accumulate=2)
    assert found.hidden[GRADIENTS] == pytest.approx(2 / 3 * 0.77) and found.hidden[WEIGHTS] == pytest.approx(0.77 / 3)
    assert found.seconds == pytest.approx(open_.seconds - 0.77)


def test_experts_on_several_ranks_add_what_tokens_take(source):
    found = predicted(source, layout=Layout(2, 2, 1, 3))
    assert found.parts[TOKENS] == pytest.approx(22 * 4 * (3 * 4096 * 4 * 4096 * 2) / 2 / 100e9)
    assert found.parts[COMPUTE] == pytest.approx(COMPUTING - 0.03)


def test_a_pipeline_waits_for_its_slowest_stage_and_has_a_bubble(source):
    found = {m: predicted(source, layout=Layout(2, 1, 2, 3), accumulate=m) for m in (1, 4)}
    turn = found[1].parts[BUBBLE]  # (stages - 1) micro-batches
    assert turn == pytest.approx(found[4].parts[BUBBLE])
    assert turn == pytest.approx(sum(found[1].parts[part] for part in (COMPUTE, HOST, STAGES)))
    working = sum(found[4].parts[part] for part in (COMPUTE, HOST, STAGES))
    assert turn / (turn + working) == pytest.approx((2 - 1) / (4 + 2 - 1))
    assert found[4].tokens_per_s_per_gpu == pytest.approx(4 * 3 * 4096 / found[4].seconds / 2)


def test_memory_is_of_the_fullest_stage(source):
    layout = Layout(2, 1, 2, 3)
    each = [sum(memory.estimate(SIZES["nam56r_wide"], layout, stage, 4096).values()) for stage in (0, 1)]
    assert predicted(source, layout=layout).gib == pytest.approx(max(each))


def test_other_rows_than_the_profiles_are_refused(source):
    with pytest.raises(ValueError):
        predicted(source, row=8192)
