"""bf16 training on the CPU: fp32 masters behind rounded parameters, and what stays in fp32."""

import pytest
from precision import FP32

from model.families.sizes import SIZES

pytestmark = pytest.mark.upstream


@pytest.fixture(scope="module")
def trained(stack, text):
    ended = stack.run("trained:masters", str(text), 3)
    assert ended.code == 0, ended.said
    return ended.value


def test_parameters_are_their_masters_rounded(trained):
    assert len(trained["bf16"]) > 100
    assert {dtype for dtype, _, _ in trained["bf16"].values()} == {"torch.float32"}
    assert [name for name, (_, rounded, _) in trained["bf16"].items() if not rounded] == []


def test_masters_hold_what_rounding_loses(trained):
    """A step is smaller than half of bf16's spacing for most weights: without masters they would stand still."""
    finer = [name for name, (_, _, finer) in trained["bf16"].items() if finer]
    assert len(finer) > 0.9 * len(trained["bf16"])


def test_the_contract_stays_in_fp32_and_is_trained_as_it_is(trained):
    size = SIZES["nam56r_tiny"]
    names = {f"decoder.layers.{n - 1}.{name}" for kind in FP32 for n in size.numbers(kind) for name in FP32[kind]}
    assert set(trained["fp32"]) == names
    assert set(trained["fp32"].values()) == {True}


def test_losses_are_finite_and_fall(trained):
    losses = trained["losses"]
    assert all(0 < loss < 10 for loss in losses)
    assert losses[-1] < losses[0]
