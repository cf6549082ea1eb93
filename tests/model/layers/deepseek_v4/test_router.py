"""Routers against transformers' and token by token, and the hash table's balance."""

import hashlib

import pytest
import torch
import torch.nn.functional as F
import v4_hf
import v4_model as v4

from model.layers.common import fp32
from model.layers.deepseek_v4.router import HashRouter, Router, affinities, hash_table


def router(c, kind=Router, dtype=torch.float32):
    more = (c.vocab, 0) if kind is HashRouter else ()
    return v4.fill(kind(c.hidden, c.experts, c.topk, c.scaling, *more), 10).to(dtype)


def inputs(c, tokens=40, dtype=torch.float32):
    return torch.randn(tokens, 1, c.hidden, generator=torch.Generator().manual_seed(11)).to(dtype)


@pytest.mark.parametrize("seed", range(-1, 4))
@pytest.mark.parametrize("layer", [0, 1])
def test_transformers_has_the_same_experts_weights_and_gradients(layer, seed):
    """Layer 0 has a hash router, layer 1 a learned one."""
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.4)
    mine, other = ours.layers[layer].moe.router, theirs.model.layers[layer].mlp.gate
    tokens, _ = v4.row([40], c)
    x = inputs(c).requires_grad_()
    y = x.detach().clone().requires_grad_()
    chosen, weights = mine(x, tokens[:, None])
    _, other_weights, indices = other(y, tokens) if layer == 0 else other(y)
    order, other_order = chosen[:, 0].argsort(-1), indices.argsort(-1)
    assert torch.equal(chosen[:, 0].gather(1, order), indices.gather(1, other_order))
    values = weights[:, 0].gather(1, order), other_weights.gather(1, other_order)
    assert v4_hf.off(*values) < 1e-5
    a, b = v4_hf.gradients(values[0], mine, x), v4_hf.gradients(values[1], other, y)
    assert a.keys() == b.keys() == {"weight", "0"} and max(v4_hf.off_gradient(a[n], b[n]) for n in a) < 1e-4


def test_the_bias_chooses_and_does_not_weigh():
    c = v4.Config()
    module, x = router(c), inputs(c)
    module.expert_bias.zero_()
    module.expert_bias[3] = 100
    chosen, weights = module(x)
    assert bool((chosen == 3).any(-1).all())
    taken = F.softplus(x.double() @ module.weight.double().T).sqrt().gather(-1, chosen)
    torch.testing.assert_close(weights.double(), 1.5 * taken / taken.sum(-1, keepdim=True), rtol=1e-5, atol=0)
    assert weights.sum(-1).flatten().tolist() == pytest.approx([1.5] * 40, rel=1e-6)
    assert "expert_bias" not in dict(module.named_parameters()) and fp32.kept(module.expert_bias)


def test_bf16_is_scored_in_fp32():
    c = v4.Config()
    module, x = router(c), inputs(c, dtype=torch.bfloat16)
    module.weight.data = module.weight.data.bfloat16()
    chosen, weights = module(x)
    wide = router(c)
    wide.weight.data = module.weight.data.float()
    assert weights.dtype == torch.float32
    assert torch.equal(chosen, wide(x.float())[0]) and torch.equal(weights, wide(x.float())[1])


def test_an_affinity_of_zero_has_a_gradient_that_is_a_number():
    x = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[-300.0], [1.0]], requires_grad=True)
    found = affinities(x, weight)
    found.sum().backward()
    assert found[0, 0] < 1e-18 and bool(x.grad.isfinite().all()) and bool(weight.grad.isfinite().all())


def test_tokens_in_another_order_than_the_hidden_states_are_refused():
    c = v4.Config()
    module, x = router(c, HashRouter), torch.randn(5, 2, c.hidden)
    tokens = torch.arange(10).view(5, 2)
    chosen, _ = module(x, tokens)
    assert torch.equal(chosen[3, 1], module.tid2eid[7].long())
    for wrong in (tokens.T, tokens.flatten(), None):
        with pytest.raises(ValueError, match=r"\[5, 2\]"):
            module(x, wrong)


def test_the_table_is_saved_and_a_cast_leaves_it():
    module = router(v4.Config(), HashRouter).bfloat16()
    assert module.tid2eid.dtype == torch.int32 and "tid2eid" in module.state_dict()
    kept = module.tid2eid.clone()
    module.reset_parameters()
    assert not torch.equal(module.tid2eid, kept)
    assert torch.equal(module.tid2eid, hash_table(97, 6, 2, 0))


@pytest.mark.parametrize(("vocab", "experts", "topk"), [(97, 6, 2), (1000, 256, 6), (50, 7, 7), (64, 5, 3), (10, 4, 1)])
def test_among_the_first_ids_however_many_experts_are_taken_as_often_give_or_take_one(vocab, experts, topk):
    table = hash_table(vocab, experts, topk, 1)
    assert table.shape == (vocab, topk) and table.dtype == torch.int32
    assert all(len(set(row)) == topk for row in table.tolist())
    counts = F.one_hot(table.long(), experts).sum(1).cumsum(0)  # [vocab, experts]
    assert int((counts.amax(1) - counts.amin(1)).max()) <= 1


def test_tables_of_layers_differ_and_each_is_the_same_everywhere():
    first, second = hash_table(1000, 256, 6, 0), hash_table(1000, 256, 6, 1)
    shifts = ((first - second) % 256).flatten().bincount()
    assert shifts.max() < 0.05 * first.numel()  # neither the same nor the same by other numbers
    assert hashlib.sha256(first.numpy().tobytes()).hexdigest()[:16] == "ea3600c45152efdb"


def test_more_experts_of_a_token_than_there_are_are_refused():
    with pytest.raises(ValueError, match=r"\b5\b.*\b4\b"):
        hash_table(10, 4, 5, 0)
