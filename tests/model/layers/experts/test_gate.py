"""The routers' product by parts: exact where it says so, and its gradients against fp64."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from model.layers.experts import gate

pytestmark = pytest.mark.upstream


def test_three_parts_are_the_number():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 5, generator=draw) * 10.0 ** torch.randint(-25, 25, (64, 5), generator=draw)
    x[0] = torch.tensor([0.0, -0.0, 1.0, 1 + 2**-23, -(2 - 2**-23)])
    split = gate.parts(x)
    assert split.dtype == torch.bfloat16 and split.shape == (64, 15)
    assert torch.equal(split.double().view(64, 3, 5).sum(1), x.double())


def on_a_cpu():
    """Where torch has no product of bf16 numbers with an fp32 result."""
    import gate_cases

    with mock.patch.object(gate, "_product", lambda a, b: a.float() @ b.float()):
        return gate_cases.errors("cpu")


def test_gradients_are_right_and_rounded_once(megatron):
    found = megatron.call(on_a_cpu)
    logits, inputs, weights = found["ours"]
    assert logits < 1e-6 and max(inputs, weights) < 2**-8
    assert max(ours - theirs for ours, theirs in zip(found["ours"], found["theirs"], strict=True)) < 1e-6


def test_a_router_with_a_bias_is_refused(megatron):
    assert megatron.call(chosen) == [True, "ValueError"]


def chosen():
    found = []
    for bias in (None, 1):
        router = SimpleNamespace(bias=bias, weight=None, gating="theirs")
        try:
            gate.enable(router)
            found.append(router.gating != "theirs")
        except ValueError as refused:
            found.append(type(refused).__name__)
    return found
