"""Volumes over rates, counted by hand."""

import pytest
from planned import keep, profile

from model.definition import memory, parameters, traffic
from model.definition.memory import Layout
from model.families.sizes import SIZES
from model.plans import links, measured
from model.plans.links import GRADIENTS, STAGES, TOKENS, WEIGHTS, Hosts, Rate
from model.plans.measured import Job
from patchlane.base.errors import PatchlaneError

WIDE = SIZES["nam56r_wide"]
RATES = {GRADIENTS: Rate(200e9, 1, "a"), WEIGHTS: Rate(100e9, 0.5, "a"), TOKENS: Rate(100e9, 1, "b")}
EVERY = {"NCCL reduce-scatter": 0.04, "NCCL all-gather": 0.02, "NCCL all-to-all, send and receive": 0.1}


def took(layout, hosts=None, accumulate=1, stage=0, rates=RATES):
    return links.seconds(Job(WIDE, layout, 4096, accumulate), rates, hosts or Hosts(8, 50e9), stage)


def test_the_nameplate_is_400_gbit_a_second():
    assert Hosts().between == 400e9 / 8


def test_a_rate_is_bytes_over_the_kernels_seconds(tmp_path):
    run = measured.read(keep(tmp_path / "a", profiled=profile(links=EVERY)))
    found = links.measured(run)
    assert set(found) == {GRADIENTS, WEIGHTS} and found[GRADIENTS].receipt == "a"
    assert found[GRADIENTS].bytes_per_second == pytest.approx(4 * parameters.total(WIDE) / 2 / 0.04)
    assert found[WEIGHTS].bytes_per_second == pytest.approx(2 * parameters.total(WIDE) / 2 / 0.02)


def test_gathers_beside_those_of_token_counts_and_what_is_hidden_give_no_rate(tmp_path):
    expert = measured.read(keep(tmp_path / "a", expert_parallel=2, profiled=profile(links=EVERY)))
    assert set(links.measured(expert)) == {GRADIENTS, TOKENS}
    rate = links.measured(expert)[TOKENS]
    assert rate.bytes_per_second == pytest.approx(22 * 4 * (3 * 4096 * 4 * 4096 * 2) / 2 / 0.1)
    overlap = {"overlap_grads": True, "overlap_weights": True}
    assert links.measured(measured.read(keep(tmp_path / "b", profiled=profile(links=EVERY), **overlap))) == {}


def test_the_first_run_that_has_a_rate_gives_it(tmp_path):
    one = measured.read(keep(tmp_path / "one", profiled=profile(links=EVERY)))
    two = measured.read(keep(tmp_path / "two", expert_parallel=2, profiled=profile(links=EVERY)))
    found = links.first([one, two])
    assert {what: rate.receipt for what, rate in found.items()} == {GRADIENTS: "one", WEIGHTS: "one", TOKENS: "two"}


def test_one_rank_sends_nothing():
    assert set(took(Layout(), rates={}).values()) == {0.0}


def test_inside_a_host_volumes_over_rates():
    found = took(Layout(4, 4, 1, 4), accumulate=2)
    volumes = traffic.volumes(WIDE, Layout(4, 4, 1, 4), accumulate=2)
    assert found[GRADIENTS] == pytest.approx(volumes["gradients, reduce-scatter"] / 200e9)
    assert found[WEIGHTS] == pytest.approx(volumes["weights, all-gather"] / 200e9)
    assert found[TOKENS] == pytest.approx(2 * volumes["tokens to experts, all-to-all"] / 100e9)
    assert found[STAGES] == 0


@pytest.mark.parametrize(("between", "rate"), [(50e9, 200e9), (5e9, 8 * 5e9)])
def test_a_ring_leaves_a_host_through_all_adapters(between, rate):
    """Eight of 50 GB/s carry more than the 200 of the ring inside; eight of 5 GB/s do not."""
    found = took(Layout(64), Hosts(8, between))
    assert found[GRADIENTS] == pytest.approx(4 * parameters.total(WIDE) * 63 / 64 / rate)


def test_experts_of_one_rank_a_host_go_through_one_adapter():
    dense, experts = memory.stage_parameters(WIDE, Layout(16, 8), 0)
    found = took(Layout(16, 8), Hosts(8, 10e9))
    assert found[GRADIENTS] == pytest.approx(4 * dense * 15 / 16 / 80e9 + 4 * experts / 2 / 10e9)


def test_tokens_for_experts_of_another_host_go_through_the_ranks_own_adapter():
    volumes = traffic.volumes(WIDE, Layout(16, 16))
    sent = 2 * volumes["tokens to experts, all-to-all"]
    assert took(Layout(16, 16), Hosts(8, 1e9))[TOKENS] == pytest.approx(sent * 8 / 15 / 1e9)
    assert took(Layout(16, 16), Hosts(8, 1e15))[TOKENS] == pytest.approx(sent * 7 / 15 / 100e9)


def test_stages_send_inside_a_host_or_between_hosts():
    volume = 4096 * 4096 * 2
    assert took(Layout(4, 1, 2))[STAGES] == pytest.approx(volume / 200e9)
    assert took(Layout(8, 1, 2))[STAGES] == pytest.approx(volume / 50e9)
    assert took(Layout(8, 1, 3), stage=1)[STAGES] == pytest.approx(2 * volume / 50e9)


def test_a_rate_that_no_run_has_is_named_with_its_remedy():
    with pytest.raises(PatchlaneError) as refused:
        took(Layout(4, 4), rates={GRADIENTS: RATES[GRADIENTS], WEIGHTS: RATES[WEIGHTS]})
    assert TOKENS in refused.value.what and "--plan" in refused.value.remedy


@pytest.mark.parametrize("between", [0.0, -1.0, float("nan"), float("inf")])
def test_a_link_has_a_rate(between):
    with pytest.raises(ValueError):
        Hosts(8, between)


@pytest.mark.parametrize("layout", [Layout(12), Layout(24, 12), Layout(24, 3), Layout(6, 1, 2)])
def test_groups_that_lie_unevenly_over_hosts_are_refused(layout):
    with pytest.raises(ValueError):
        took(layout)
