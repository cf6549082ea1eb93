"""Experts against transformers' and token by token, with a clamp that bites on each side."""

import pytest
import torch
import torch.nn.functional as F
import v4_hf
import v4_model as v4
import v4_network as net

from model.alignment.deepseek_v4 import formulas
from model.layers.deepseek_v4.experts import Experts, MixtureOfExperts, SharedExpert, clamped_swiglu
from model.layers.deepseek_v4.router import HashRouter, Router


def mixture(c, hashed, dtype=torch.float64):
    routing = c.hidden, c.experts, c.topk, c.scaling
    router = HashRouter(*routing, c.vocab, 0) if hashed else Router(*routing)
    parts = Experts(c.hidden, c.ffn, c.experts, c.limit), SharedExpert(c.hidden, c.ffn, c.limit)
    return v4.fill(MixtureOfExperts(router, *parts), 12).to(dtype)


def test_the_gate_is_bounded_from_above_and_what_it_multiplies_on_both_sides():
    gate, up = torch.tensor([-9.0, -0.5, 0.5, 9.0]), torch.tensor([9.0, -9.0, 0.25, -0.25])
    found = clamped_swiglu(torch.cat((gate, up)), 2.0)
    expected = F.silu(torch.tensor([-9.0, -0.5, 0.5, 2.0])) * torch.tensor([2.0, -2.0, 0.25, -0.25])
    assert torch.equal(found, expected)


def test_the_product_of_bf16_is_in_fp32():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = clamped_swiglu(x, 1.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), clamped_swiglu(x.double(), 1.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", range(-1, 4))
@pytest.mark.parametrize("layer", [0, 1])
def test_transformers_has_the_same_outputs_and_gradients(layer, seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.4)
    mine, other = ours.layers[layer].moe, theirs.model.layers[layer].mlp
    tokens, _ = v4.row([23], c)
    x = torch.randn(23, 1, c.hidden, generator=torch.Generator().manual_seed(2)).requires_grad_()
    y = x.detach().transpose(0, 1).clone().requires_grad_()
    values = mine(x, tokens[:, None])[:, 0], other(y, input_ids=tokens[None])[0]
    assert v4_hf.off(*values) < 1e-5
    a, b = v4_hf.gradients(values[0], mine, x), v4_hf.gradients(values[1], other, y)
    assert v4_hf.off_gradient(a.pop("0"), b["0"].transpose(0, 1)) < 1e-4
    for name, grad in v4_hf.theirs_of({f"layers.{layer}.moe.{n}": g for n, g in a.items()}, c).items():
        assert v4_hf.off_gradient(grad, b[name.removeprefix(f"model.layers.{layer}.mlp.")]) < 1e-4, name


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_the_formulas_token_by_token_also_of_as_many_rows_as_tokens(hashed, seed):
    """[3, 3] tokens: ids taken by row for column would not be refused, only wrong."""
    c = v4.drawn(seed)
    module = mixture(c, hashed)
    tokens = torch.randint(0, c.vocab, (3, 3), generator=torch.Generator().manual_seed(seed))
    x = torch.randn(3, 3, c.hidden, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = module(x, tokens)
    w = {net.in_mixture(name): tensor for name, tensor in net.held(module).items()}
    for s in range(3):
        for b in range(3):
            expected, *_ = formulas.moe(x[s, b], int(tokens[s, b]), w, "", c, w.get("router.tid2eid"))
            torch.testing.assert_close(found[s, b], expected, rtol=0, atol=1e-12)


def test_an_expert_without_tokens_gets_a_gradient_of_zero():
    c = v4.Config()
    experts = v4.fill(Experts(c.hidden, c.ffn, 3, 1.0), 1)
    x = torch.randn(4, c.hidden)
    experts(x, torch.tensor([[0], [2], [2], [0]]), torch.ones(4, 1)).sum().backward()
    for weight in (experts.linear_fc1, experts.linear_fc2):
        assert not weight.grad[1].any() and bool(weight.grad[0].any()) and bool(weight.grad[2].any())


def test_bf16_is_weighed_in_fp32_before_the_second_product():
    c = v4.Config()
    experts = v4.fill(Experts(c.hidden, c.ffn, 2, 1.0), 1).bfloat16()
    x, share = torch.randn(50, c.hidden).bfloat16(), torch.rand(50, 1)
    inner = clamped_swiglu(F.linear(x, experts.linear_fc1[1]), 1.0) * share
    expected = F.linear(inner.bfloat16(), experts.linear_fc2[1]).float()
    assert torch.equal(experts(x, torch.ones(50, 1, dtype=torch.long), share), expected)


def test_bf16_sums_in_fp32_and_rounds_once():
    c = v4.Config()
    module = mixture(c, False, torch.float32).bfloat16()
    x = torch.randn(6, 1, c.hidden).bfloat16()
    flat = x.flatten(0, 1)
    chosen, weights = module.router(flat)
    routed = module.experts(flat, chosen, weights)
    assert routed.dtype == torch.float32
    expected = (routed + module.shared_experts(flat)).bfloat16()
    assert torch.equal(module(x, torch.zeros(6, 1, dtype=torch.long)).flatten(0, 1), expected)
