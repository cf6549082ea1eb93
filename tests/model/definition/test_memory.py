"""The memory estimate: what must add up, and the orders of magnitude that were measured."""

import json

import pytest

from model.definition import memory, parameters
from model.definition.memory import Layout
from model.families.sizes import SIZES
from patchlane.base.errors import PatchlaneError
from reproducers.kept import xz
from reproducers.record.schema import ROOT

WIDE = SIZES["nam56r_wide"]
EXPERTS = 16 * 2 * 4096 * 896  # numbers in a layer's


def peak(receipt):
    """GiB of a kept run's fullest rank."""
    return json.loads((ROOT / "receipts" / "train" / receipt / "receipt.json").read_text())["summary"]["peak_gib"]


@pytest.mark.parametrize("name", SIZES)
def test_one_rank_holds_every_parameter_once(name):
    assert sum(memory.stage_parameters(SIZES[name], Layout(), 0)) == parameters.total(SIZES[name])


def test_stages_hold_every_parameter_and_the_embedding_twice():
    size, layout = SIZES["nam56r"], Layout(pipeline=4)
    held = sum(sum(memory.stage_parameters(size, layout, stage)) for stage in range(4))
    assert held == parameters.total(size) + parameters.by_part(size)["embedding"]


def test_experts_are_spread_and_the_rest_is_not():
    (dense, experts), (same, spread) = (memory.stage_parameters(WIDE, Layout(8, ep), 0) for ep in (1, 4))
    assert dense == same and experts == 4 * spread
    assert experts == 22 * 16 * 2 * 4096 * 896


def test_weights_and_gradients_and_optimizer_are_bytes_of_parameters():
    count = parameters.total(WIDE)
    parts = memory.estimate(WIDE, Layout())
    whole = {"weights": 2 * count, "gradients": 4 * count, "optimizer": 12 * count}
    assert {part: parts[part] * memory.GIB for part in whole} == pytest.approx(whole)
    shared = memory.estimate(WIDE, Layout(data=8))
    assert shared["optimizer"] == pytest.approx(parts["optimizer"] / 8)
    assert shared["activations"] == parts["activations"]


def test_muon_keeps_one_moment_of_what_is_not_embedding_or_head():
    part, layouts = parameters.by_part(WIDE), (Layout(), Layout(8, 4), Layout(2, pipeline=2))
    ends = sum(part[end] for end in ("embedding", "n-gram hash embedding", "structure embedding", "head", "final norm"))
    for layout, replicas in zip(layouts, (1, 2, 2), strict=True):
        both = [
            sum(memory.estimate(WIDE, layout, stage, optimizer=one)["optimizer"] for stage in range(layout.pipeline))
            for one in ("adamw", "muon")
        ]
        experts = sum(memory.stage_parameters(WIDE, layout, stage)[1] for stage in range(layout.pipeline)) / replicas
        dense = (sum(memory.stage_parameters(WIDE, Layout(), 0)) - WIDE.count("moe") * EXPERTS - ends) / layout.data
        assert (both[0] - both[1]) * memory.GIB / 4 == pytest.approx(dense + experts)
    saved = [memory.checkpoint_gib(WIDE, one) * memory.GIB for one in ("adamw", "muon")]
    assert saved[0] - saved[1] == pytest.approx(4 * (parameters.total(WIDE) - ends))


def test_activations_grow_with_the_tokens_in_flight():
    one, four = (memory.estimate(WIDE, Layout(micro_batch=n))["activations"] for n in (1, 4))
    assert four == pytest.approx(4 * one)
    first = memory.estimate(WIDE, Layout(pipeline=2), stage=0)["activations"]
    half = sum(layer.of.kept() for layer in memory.stages(WIDE, Layout(pipeline=2))[0])
    assert first == pytest.approx((2 * half + memory.workspace_bytes(WIDE)) * WIDE.sequence / memory.GIB)


def test_the_quarter_trains_on_one_gpu_and_the_whole_does_not():
    """Of 78 GiB: the quarter with room for a micro-batch of four, nam56r's optimizer alone with none."""
    assert sum(memory.estimate(SIZES["nam56r_quarter"], Layout(micro_batch=4)).values()) < 78
    assert sum(memory.estimate(SIZES["nam56r"], Layout()).values()) > 78


@pytest.mark.parametrize(
    ("receipt", "size", "layout"),
    [
        ("1xh200_quarter_20261121", "nam56r_quarter", Layout(micro_batch=4)),
        ("2xh200_nam56r_20261121", "nam56r", Layout(2, 2, micro_batch=3)),
        ("2xh200_wide_20261122", "nam56r_wide", Layout(2, 2, micro_batch=2)),
        ("2xh200_wide_mb3_20261122", "nam56r_wide", Layout(2, 2, micro_batch=3)),
        ("4xh200_nam56r_20261122", "nam56r", Layout(4, 4, micro_batch=4)),
        ("4xh200_wide_20261122", "nam56r_wide", Layout(4, 4, micro_batch=4)),
        ("4xh200_nam56r_ranks_20261122", "nam56r", Layout(4, 4, micro_batch=4)),
        ("4xh200_wide_230_20261122", "nam56r_wide", Layout(4, 4, micro_batch=4)),
    ],
)
def test_peaks_of_mamba_ssms_backward_are_near(receipt, size, layout, monkeypatch):
    """Of runs on H200s: caching, communication and the largest temporary are not counted."""
    m, heads = SIZES[size].mamba, SIZES[size].mamba_heads
    monkeypatch.setattr(memory, "workspace_bytes", lambda size: 2 * heads * m.head_dim * m.state / m.chunk)
    assert sum(memory.estimate(SIZES[size], layout).values()) == pytest.approx(peak(receipt), rel=0.05)


@pytest.mark.parametrize(
    ("receipt", "size", "layout"),
    [
        ("1xh200_quarter_exact_seed1_20261126", "nam56r_quarter", Layout(micro_batch=4)),
        ("1xh100_quarter_options_seed2_20261126", "nam56r_quarter", Layout(micro_batch=4)),
        ("2xh200_wide_levers_norm_20261126", "nam56r_wide", Layout(2, micro_batch=3)),
        ("2xh200_wide_rope_router_20261126", "nam56r_wide", Layout(2, micro_batch=3)),
        ("2xh200_nam56r_options_four_20261126", "nam56r", Layout(2, micro_batch=4)),
    ],
)
def test_measured_peaks_are_just_below(receipt, size, layout):
    """Of runs whose backward pass kept as much as any, products in bf16 and in FP8."""
    assert 0.94 < peak(receipt) / sum(memory.estimate(SIZES[size], layout).values()) < 0.98


def test_expert_parallelism_divides_data_parallelism():
    with pytest.raises(ValueError, match=r"\b3\b.*\b8\b"):
        Layout(8, 3)


def test_the_rate_of_the_disk_is_a_kept_runs():
    lines = xz.opened(ROOT / "receipts/train/2xh200_nam56r_saved_20261123/metrics.jsonl")
    [saved] = [line["detail"] for line in map(json.loads, lines) if line.get("name") == "checkpoint"]
    assert round(saved["gib"] / saved["written"], 2) == memory.WRITTEN_GIB_PER_S
    assert memory.checkpoint_gib(SIZES["nam56r"]) == pytest.approx(saved["gib"], rel=0.01)


@pytest.mark.parametrize("gpus", [2, 4])
def test_the_largest_layouts_of_h200s_have_three_rows(gpus, rows=3):
    """Data parallelism alone comes first. On two a run of three fitted; four are not what an estimate lets try."""
    (layout, needed), *others = memory.largest(WIDE, gpus, 139.0)
    assert layout == Layout(gpus, micro_batch=rows)
    assert needed == memory.fullest(WIDE, layout) <= memory.FILLED * 139
    assert memory.fullest(WIDE, Layout(gpus, micro_batch=rows + 1)) > memory.FILLED * 139
    assert {other.expert for other, _ in others if other.pipeline == 1} == {n for n in (2, 4) if n <= gpus}
    assert all(other.data * other.pipeline == gpus for other, _ in others)


def test_the_fullest_rank_decides_and_nothing_may_fit():
    """Of two stages the first holds two micro-batches; nam56r_wide's optimizer alone is more than an H100."""
    both = [sum(memory.estimate(WIDE, Layout(2, pipeline=2), stage).values()) for stage in range(2)]
    assert memory.fullest(WIDE, Layout(2, pipeline=2)) == max(both)
    assert memory.largest(WIDE, 1, 78.0) == []
    assert [layout.micro_batch for layout, _ in memory.largest(SIZES["nam56r_quarter"], 1, 78.0)] > [3]


@pytest.mark.parametrize("layout", [Layout(), Layout(8, 8, 1), Layout(4, 2, 4)])
def test_the_experts_of_mtp_are_spread_as_those_of_layers_are(layout):
    """Ranks of all stages together hold every parameter once, the embedding twice, experts in as many parts."""
    size = SIZES["v4_flash"]
    held = [memory.stage_parameters(size, layout, stage) for stage in range(layout.pipeline)]
    experts = (43 + 1) * 256 * 3 * 4096 * 2048
    assert sum(spread for _, spread in held) == experts / layout.expert
    twice = parameters.by_part(size)["embedding"] if layout.pipeline > 1 else 0
    assert sum(dense for dense, _ in held) == parameters.total(size) + twice - experts


def test_the_medium_v4_fits_one_gpu_of_139_gib_and_flash_does_not():
    assert [layout.micro_batch for layout, _ in memory.largest(SIZES["v4_medium"], 1, 139.0)] == [2]
    with pytest.raises(PatchlaneError) as refused:
        memory.none_fits(SIZES["v4_flash"], 8, 139.0, None, "adamw")
    assert "--gpus 256" in refused.value.remedy
    assert memory.largest(SIZES["v4_flash"], 256, 139.0)
