"""Volumes against what is counted by hand, and against the times of kept runs."""

import json

import pytest

from model.definition import parameters, traffic
from model.definition.memory import Layout
from model.families.sizes import SIZES
from reproducers.kept import xz
from reproducers.record.schema import ROOT

WIDE = SIZES["nam56r_wide"]
NVLINK = 450e9  # bytes a second that an H200 sends at most: 900 GB/s both ways (NVIDIA's data sheet)


def test_one_rank_sends_nothing():
    assert set(traffic.volumes(WIDE, Layout(micro_batch=4)).values()) == {0.0}


def test_data_parallel_ranks_send_half_of_all_parameters_on_two():
    found = traffic.volumes(WIDE, Layout(2, 1, 1, 3))
    assert found["gradients, reduce-scatter"] == 4 * parameters.total(WIDE) / 2
    assert found["weights, all-gather"] == 2 * parameters.total(WIDE) / 2
    assert found["tokens to experts, all-to-all"] == 0


def test_tokens_travel_to_three_of_four_ranks():
    found = traffic.volumes(WIDE, Layout(4, 4, 1, 4), accumulate=2)
    once = 2 * 4 * 4096 * 4 * 4096 * 2 * 3 / 4  # tokens x experts of a token x hidden x bf16
    assert found["tokens to experts, all-to-all"] == found["tokens from experts, all-to-all"] == 22 * 2 * once


def test_a_stage_in_the_middle_sends_both_ways():
    sent = [traffic.volumes(WIDE, Layout(1, 1, 3, 1), stage)["pipeline, send"] for stage in range(3)]
    assert sent == [4096 * 4096 * 2, 2 * 4096 * 4096 * 2, 4096 * 4096 * 2]


def test_all_streams_travel_between_stages_and_the_last_one_sends_mtps_tokens_too():
    size = SIZES["v4_flash"]
    found = [traffic.volumes(size, Layout(4, 4, 2), stage) for stage in range(2)]
    assert [one["pipeline, send"] for one in found] == [4096 * 4 * 4096 * 2] * 2
    once = 2 * 2 * 4096 * 6 * 4096 * 3 / 4  # there and back, bf16, tokens, experts of a token, hidden, other ranks
    assert found[0]["tokens to experts, all-to-all"] == 21 * once
    assert found[1]["tokens to experts, all-to-all"] == (22 + 1) * once


@pytest.mark.parametrize(
    ("receipt", "layout", "kind", "names", "rate"),
    [
        ("2xh200_wide_host_ep1_nowait_profile_20261122", Layout(2, 1, 1, 3), "reduce-scatter", ["gradients"], 281e9),
        ("2xh200_wide_host_ep1_nowait_profile_20261122", Layout(2, 1, 1, 3), "all-gather", ["weights"], 307e9),
        ("4xh200_wide_230_20261122", Layout(4, 4, 1, 4), "reduce-scatter", ["gradients"], 347e9),
        ("4xh200_wide_230_20261122", Layout(4, 4, 1, 4), "all-to-all", ["tokens to", "tokens from"], 151e9),
    ],
)
def test_kept_runs_sent_no_faster_than_the_link(receipt, layout, kind, names, rate):
    """Bytes over the seconds of the collective's kernels, which also wait for the last rank."""
    profile = json.loads(xz.data(ROOT / "receipts/train" / receipt / "profile.json"))
    (seconds,) = [row["seconds"] for row in profile["kinds"] if row["name"].startswith(f"NCCL {kind}")]
    volumes = traffic.volumes(WIDE, layout)
    sent = sum(value for name, value in volumes.items() if name.startswith(tuple(names)))
    assert sent / seconds == pytest.approx(rate, rel=0.01)
    assert sent / seconds < NVLINK
