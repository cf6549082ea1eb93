"""Tokens a second, TFLOP/s and MFU of a step."""

import pytest

from model.definition import flops
from model.definition.rates import peak_tflops, rates
from model.families.nam56r import NAM56R


def test_a_step_on_four_gpus():
    found = rates(NAM56R, tokens=262_144, seconds=2.0, gpus=4, gpu="NVIDIA H200")
    assert found.tokens_per_s_per_gpu == 32_768
    assert found.tflops_megatron == pytest.approx(32_768 * flops.megatron(NAM56R) / 1e12)
    assert found.tflops_built == pytest.approx(32_768 * flops.total(NAM56R) / 1e12)
    assert found.mfu == pytest.approx(found.tflops_built / 989.4)


def test_a_shorter_sequence_costs_less():
    short, long = (rates(NAM56R, 4096, 1.0, 1, None, sequence=s) for s in (1024, 4096))
    assert short.tflops_built < long.tflops_built and short.tflops_megatron < long.tflops_megatron


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA GH200 480GB", 989.4), ("Tesla T4", None)],
)
def test_peaks(name, peak):
    assert peak_tflops(name) == peak


def test_no_mfu_without_a_known_gpu():
    assert rates(NAM56R, 4096, 1.0, 1, None).mfu is None
    with pytest.raises(ValueError):
        rates(NAM56R, 4096, 0.0, 1, None)
