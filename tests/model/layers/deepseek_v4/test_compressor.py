"""Compressed entries against the formula window by window, transformers', and each document alone."""

import pytest
import torch
import v4_hf
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.common import fp32
from model.layers.deepseek_v4.compressor import Compressor, Visible, windows


def compressor(c, kind, dtype=torch.float64):
    ratio, overlap = (c.csa, True) if kind == "csa" else (c.hca, False)
    rope = v4.rope(c, True, v4.room())
    return v4.fill(Compressor(c.hidden, c.head_dim, ratio, overlap, rope, c.eps), 4).to(dtype)


def hidden(c, tokens, dtype=torch.float64):
    return torch.randn(tokens, c.hidden, generator=torch.Generator().manual_seed(5)).to(dtype)


def slots(lengths, ratio):
    """Each document's slots, by counting."""
    found, first = [], 0
    for length in lengths:
        found.append(range(first, first + length // ratio))
        first += length // ratio
    return found


def test_windows_restart_with_each_document_and_drop_what_is_left_of_it():
    found = windows(torch.tensor([0, 5, 5, 7, 11]).int(), 11, 2)
    assert found.tokens.tolist()[:5] == [[0, 1], [2, 3], [5, 6], [7, 8], [9, 10]] and len(found.tokens) == 5
    assert found.positions.tolist() == [0, 2, 0, 0, 2]
    assert found.opens.tolist() == [True, False, True, True, False]
    assert found.begin.tolist() == [0] * 5 + [2] * 2 + [3] * 4
    assert found.seen.tolist() == [0, 1, 1, 2, 2, 0, 1, 0, 1, 1, 2]


def test_a_token_sees_the_windows_that_end_with_it_or_before_it():
    seen = Visible(torch.tensor([0, 0, 2]), torch.tensor([0, 2, 1]))
    assert seen.mask(4).tolist() == [[False] * 4, [True, True, False, False], [False, False, True, False]]
    chosen = Visible(seen.begin, seen.seen, torch.tensor([[-1, -1], [1, -1], [2, -1]]))
    assert chosen.mask(4).tolist() == [[False, False], [True, False], [True, False]]
    assert chosen.of(slice(1, 3)).chosen.tolist() == [[1, -1], [2, -1]]


@pytest.mark.parametrize("kind", ["csa", "hca"])
@pytest.mark.parametrize("seed", range(5))
def test_entries_are_the_formulas_document_by_document(kind, seed):
    c = v4.drawn(seed)
    lengths = torch.randint(0, 20, (4,), generator=torch.Generator().manual_seed(seed)).tolist()
    module, x = compressor(c, kind), hidden(c, sum(lengths))
    cu = torch.tensor([0, *lengths]).cumsum(0).int()
    found, w = module(x, cu), dict(module.named_parameters())
    assert len(found) == sum(lengths) // module.ratio
    for start, length, at in zip(cu.tolist(), lengths, slots(lengths, module.ratio), strict=False):
        expected = formulas.compress(list(x[start : start + length]), w, "", c, module.ratio, kind == "csa")
        for slot, entry in zip(at, expected, strict=True):
            torch.testing.assert_close(found[slot], entry, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["csa", "hca"])
@pytest.mark.parametrize("seed", range(-1, 4))
def test_transformers_has_the_same_entries_and_gradients(kind, seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.3)
    layer, S = c.kinds.index(kind), 3 * c.hca + 1
    mine, other = (
        ours.layers[layer].attention.core_attention.compressor,
        theirs.model.layers[layer].self_attn.compressor,
    )
    x = hidden(c, S, torch.float32).requires_grad_()
    y = x.detach().clone().requires_grad_()
    low = torch.randn(1, S, c.q_lora_rank)
    values = mine(x, torch.tensor([0, S]).int()), other(y[None], low, torch.arange(S)[None], None, layer)[0][0, 0]
    assert values[0].shape[0] > 1 and v4_hf.off(*values) < 1e-5
    a, b = v4_hf.gradients(values[0], mine, x), v4_hf.gradients(values[1], other, y)
    for name, theirs_ in (("linear_wkv", "kv_proj"), ("linear_wgate", "gate_proj"), ("norm", "kv_norm")):
        assert v4_hf.off_gradient(a[f"{name}.weight"], b[f"{theirs_}.weight"]) < 1e-4
    assert v4_hf.off_gradient(a["ape"], b["position_bias"]) < 1e-4 and v4_hf.off_gradient(a["0"], b["0"]) < 1e-4


@pytest.mark.parametrize("kind", ["csa", "hca"])
def test_no_gradient_crosses_a_documents_edge_or_comes_from_what_is_left_over(kind):
    c = v4.Config()
    module, lengths = compressor(c, kind), [18, 21]
    x = hidden(c, 39).requires_grad_()
    found = module(x, torch.tensor([0, 18, 39]).int())
    at = slots(lengths, module.ratio)
    (grad,) = torch.autograd.grad(found[list(at[1])].sum(), x)
    rest = 18 + 21 // module.ratio * module.ratio
    assert not grad[:18].any() and not grad[rest:].any() and bool(grad[18:rest].any(1).all())


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_row_shorter_than_a_window_has_no_entries(tokens):
    c = v4.Config()
    assert compressor(c, "csa")(hidden(c, tokens), torch.tensor([0, tokens]).int()).shape == (0, c.head_dim)


def test_bf16_is_pooled_in_fp32_and_rounded_once():
    """In bf16 the 64 weights of a window, each near 1/64, would sum up with three digits."""
    c = v4.Config()
    module = v4.fill(Compressor(c.hidden, c.head_dim, 64, False, v4.rope(c, True, v4.room()), c.eps), 4)
    for linear in (module.linear_wkv, module.linear_wgate):
        linear.bfloat16()
    x, cu = hidden(c, 128, torch.bfloat16), torch.tensor([0, 128]).int()
    keys, gates = (linear(x).double().view(2, 64, -1) for linear in (module.linear_wkv, module.linear_wgate))
    pooled = (keys * (gates + module.ape.double()).softmax(1)).sum(1)
    expected = pooled * torch.rsqrt(pooled.square().mean(-1, keepdim=True) + c.eps) * module.norm.weight.double()
    found = module(x, cu)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found[0], expected[0].bfloat16())  # the first is turned by nothing


def test_weights_in_fp32_take_bf16_hidden_states():
    c = v4.Config()
    module, x, cu = compressor(c, "csa", torch.float32), hidden(c, 20, torch.bfloat16), torch.tensor([0, 20]).int()
    assert torch.equal(module(x, cu), module(x.float(), cu).bfloat16())


def test_gates_positions_begin_at_zero_and_stay_fp32():
    c = v4.Config()
    module = compressor(c, "csa", torch.float32)
    assert fp32.kept(module.ape) and fp32.kept(module.norm.weight)
    module.reset_parameters()
    assert not module.ape.any() and bool((module.norm.weight == 1).all())


@pytest.mark.parametrize("cu", [[0, 3], [1, 20], [0, 9, 8, 20]])
def test_documents_that_do_not_cover_the_row_are_refused(cu):
    c = v4.Config()
    with pytest.raises(ValueError, match=r"\b20\b"):
        compressor(c, "csa")(hidden(c, 20), torch.tensor(cu).int())
