"""Hyper-connections against the formulas token by token, and against transformers'."""

import pytest
import torch
import v4_hf
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.common import fp32
from model.layers.deepseek_v4.hyper import HyperConnection, HyperHead, expand, sinkhorn, spread


def streams(c, tokens=7, dtype=torch.float32):
    return torch.randn(tokens, 1, c.streams, c.hidden, generator=torch.Generator().manual_seed(1)).to(dtype)


def connection(c, kind=HyperConnection):
    sizes = (c.hidden, c.streams) if kind is HyperHead else (c.hidden, c.streams, c.iterations)
    return v4.fill(kind(*sizes, c.hc_eps, c.eps), 2)


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_input_and_streams_are_the_formulas(seed):
    c = v4.drawn(seed)
    module, X = connection(c).double(), streams(c, dtype=torch.float64)
    x, found = module(X)
    after = expand(x + 1, X, found.post, found.comb)
    w = dict(module.named_parameters())
    for t in range(len(X)):
        pre, post, comb = formulas.mix(X[t, 0], w, "", c)
        for ours, expected in zip(found, (pre, post, comb), strict=True):
            torch.testing.assert_close(ours[t, 0], expected, rtol=0, atol=1e-13)
        expected = formulas.expanded(x[t, 0] + 1, X[t, 0], post, comb)
        torch.testing.assert_close(x[t, 0], formulas.weighed(X[t, 0], pre), rtol=0, atol=1e-13)
        torch.testing.assert_close(after[t, 0], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(-1, 4))
def test_transformers_has_the_same_values_and_gradients(seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.4)
    for name in ("attn_hc", "ffn_hc"):
        mine, other = getattr(ours.layers[0], name), getattr(theirs.model.layers[0], name)
        X, Y = streams(c).requires_grad_(), streams(c).transpose(0, 1).contiguous().requires_grad_()
        x, found = mine(X)
        post, comb, collapsed = other(Y)
        left, right = ((a.flatten(1) for a in side) for side in ((x, *found[1:]), (collapsed, post, comb)))
        values = [torch.cat([a.reshape(len(X), -1) for a in side], 1) for side in (left, right)]
        assert v4_hf.off(*values) < 1e-5
        grads = [v4_hf.gradients(v, m, a) for v, m, a in zip(values, (mine, other), (X, Y), strict=True)]
        grads[1]["0"] = grads[1]["0"].transpose(0, 1)
        assert max(v4_hf.off_gradient(grads[0][n], grads[1][v4_hf.in_hyper(n)]) for n in grads[0]) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_transformers_has_the_same_head(seed):
    c = v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.4)
    X, Y = streams(c).requires_grad_(), streams(c).transpose(0, 1).contiguous().requires_grad_()
    values = ours.head(X)[:, 0], theirs.model.hc_head(Y)[0]
    assert v4_hf.off(*values) < 1e-5
    a, b = v4_hf.gradients(values[0], ours.head, X), v4_hf.gradients(values[1], theirs.model.hc_head, Y)
    a = {v4_hf.in_hyper(n): g for n, g in a.items()}
    b = {n.removeprefix("hc_"): g for n, g in b.items()} | {"0": b["0"].transpose(0, 1)}
    assert a.keys() == b.keys() and max(v4_hf.off_gradient(a[n], b[n]) for n in a) < 1e-4


def test_columns_sum_to_one_and_rows_only_about():
    """The larger the logits, the further rows are from it after 20 iterations: order and end are part of the model."""
    logits = torch.randn(4000, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for spread_, rows in ((1, 1e-3), (8, 1.5e-1)):
        found = sinkhorn(spread_ * logits, 20, 1e-6)
        assert (found.sum(-2) - 1).abs().max() < 2e-6
        assert 1e-5 < (found.sum(-1) - 1).abs().max() < rows


def test_the_weights_of_the_sublayer_before_can_be_given():
    c = v4.Config()
    module, X = connection(c), streams(c)
    pre = torch.tensor([1.0, 0.0, 0.0]).expand(len(X), 1, -1)
    x, found = module(X, pre)
    assert torch.equal(x, X[:, :, 0])
    own, same = module(X)
    assert not torch.allclose(own, x) and torch.equal(same.post, found.post)


def test_bf16_streams_are_mixed_in_fp32_and_rounded_once():
    c = v4.Config()
    module, X = connection(c), streams(c, dtype=torch.bfloat16)
    x, found = module(X)
    assert x.dtype == torch.bfloat16 and {part.dtype for part in found} == {torch.float32}
    wide = expand(x.float(), X.float(), found.post, found.comb)
    narrow = expand(x, X, found.post, found.comb)
    assert narrow.dtype == torch.bfloat16 and torch.equal(narrow, wide.bfloat16())


@pytest.mark.parametrize("kind", [HyperConnection, HyperHead])
def test_parameters_stay_fp32_and_begin_anew(kind):
    c = v4.Config()
    module = connection(c, kind)
    assert all(fp32.kept(p) and p.dtype == torch.float32 for p in module.parameters())
    module.reset_parameters()
    assert not module.bias.any() and bool((module.scale == 1).all())
    assert 0.015 < float(module.mapping_proj.weight.detach().std()) < 0.025


def test_the_first_layer_gets_equal_streams():
    hidden = torch.randn(5, 1, 3)
    found = spread(hidden, 4)
    assert found.shape == (5, 1, 4, 3) and all(torch.equal(found[:, :, i], hidden) for i in range(4))
