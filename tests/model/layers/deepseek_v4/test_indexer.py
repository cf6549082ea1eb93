"""The indexer's scores and choice against transformers', its loss and gradients against the formula query by query."""

import math
from dataclasses import replace

import pytest
import torch
import v4_hf
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.deepseek_v4.compressor import Visible, windows
from model.layers.deepseek_v4.indexer import Indexer, choose, divergence, loss, scores, select


def indexer(c, dtype=torch.float64):
    sizes = c.hidden, c.q_lora_rank, c.index_heads, c.index_width, c.index_topk, c.csa
    return v4.fill(Indexer(*sizes, v4.rope(c, True, v4.room()), c.eps), 6).to(dtype)


def inputs(c, tokens, dtype=torch.float64):
    rng = torch.Generator().manual_seed(7)
    return [torch.randn(tokens, n, generator=rng).to(dtype).requires_grad_() for n in (c.hidden, c.q_lora_rank)]


def selected(module, x, low, cu):
    """What the indexer makes of the tokens, and which slots it chooses."""
    found, projected = windows(cu, len(x), module.compressor.ratio), module(x, low, cu)
    visible = Visible(found.begin, found.seen)
    return projected, Visible(found.begin, found.seen, select(projected, visible, module.topk)), visible


def plain_scores(module, x, low, c):
    """[S][visible] of one document."""
    w = dict(module.named_parameters())
    keys = formulas.compress(list(x), w, "compressor.", c, c.csa, True)
    return [formulas.index_scores(x[s], low[s], s, keys, w, "", c) for s in range(len(x))]


@pytest.mark.parametrize("seed", range(-1, 6))
def test_transformers_chooses_the_same_entries(seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.3)
    S, checked = 61, 0
    for layer, kind in enumerate(c.kinds):
        if kind == "csa":
            x, low = inputs(c, S, torch.float32)
            mine = selected(ours.layers[layer].attention.core_attention.indexer, x, low, torch.tensor([0, S]).int())[
                1
            ].chosen
            other = theirs.model.layers[layer].self_attn.compressor.indexer
            found = other(x[None], low[None], torch.arange(S)[None], None, layer)[0]
            sets = [[sorted(row) for row in side.tolist()] for side in (mine, found)]
            assert sets[0] == sets[1]
            checked += int((mine >= 0).sum())
    assert checked > 100


@pytest.mark.parametrize("seed", range(4))
def test_the_best_entries_of_each_document_are_chosen(seed):
    c = v4.drawn(seed)
    module, lengths = indexer(c), [17, 2, 29]
    x, low = inputs(c, sum(lengths))
    cu = torch.tensor([0, *lengths]).cumsum(0).int()
    chosen, first = selected(module, x, low, cu)[1].chosen, 0
    for start, length in zip(cu.tolist(), lengths, strict=False):
        rows = slice(start, start + length)
        for s, found in enumerate(plain_scores(module, x[rows], low[rows], c)):
            best = sorted(range(len(found)), key=lambda e, of=found: -float(of[e].detach()))[: c.index_topk]
            got = chosen[start + s]
            assert sorted(got[got >= 0].tolist()) == sorted(first + e for e in best)
        first += length // c.csa


def test_of_equal_scores_the_earlier_entries_are_chosen_and_none_that_is_not_visible():
    found = torch.tensor([[9.0, 0.0, 5.0, 0.0, 0.0, 9.0]])
    visible = Visible(torch.tensor([1]), torch.tensor([4]))
    assert choose(found, visible, 3).tolist() == [[2, 1, 3]]
    assert choose(found, visible, 9).tolist() == [[2, 1, 3, 4, -1, -1]]
    assert choose(found[:, :0], visible, 3).shape == (1, 0)


def test_scores_are_in_fp32_for_bf16():
    rng = torch.Generator().manual_seed(0)
    q, k, a = (torch.randn(s, generator=rng).bfloat16() for s in ((5, 8, 16), (7, 16), (5, 8)))
    exact = torch.einsum("bhe,bh->be", torch.einsum("bhd,ed->bhe", q.double(), k.double()).relu(), a.double())
    found = scores(q, k, a)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scores(q, k.expand(5, -1, -1), a), found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_are_the_formulas(seed, dense):
    c, S = replace(v4.drawn(seed), index_topk=2 + seed), 27  # of one chosen entry there is nothing to learn
    module, (x, low) = indexer(c), inputs(c, S)
    cu, rng = torch.tensor([0, S]).int(), torch.Generator().manual_seed(1)
    projected, sparse, whole = selected(module, x, low, cu)
    visible = whole if dense else sparse
    mass = torch.rand(visible.mask(S // c.csa).shape, generator=rng, dtype=torch.float64)
    found_loss = loss(projected, visible, mass)
    expected = []
    for s, found in enumerate(plain_scores(module, x.detach(), low.detach(), c)):
        held = range(len(found)) if dense else [e for e in sparse.chosen[s].tolist() if e >= 0]
        expected.append(formulas.divergence(mass[s, : len(held)].tolist(), [found[e] for e in held]))
    torch.testing.assert_close(found_loss, torch.stack(expected), rtol=0, atol=1e-12)
    weights = list(module.parameters())
    both = (torch.autograd.grad(of.sum(), weights, retain_graph=True) for of in (found_loss, torch.stack(expected)))
    for ours, theirs in zip(*both, strict=True):
        assert bool(theirs.any())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
    assert torch.autograd.grad(found_loss.sum(), (x, low), allow_unused=True) == (None, None)


def test_the_choice_takes_no_part_in_autograd():
    c = v4.Config()
    module, (x, low) = indexer(c), inputs(c, 20)
    projected, sparse, _ = selected(module, x, low, torch.tensor([0, 20]).int())
    assert projected.query.requires_grad and not sparse.chosen.requires_grad


def test_no_scores_of_single_heads_are_kept_for_backward():
    c, S = replace(v4.Config(), index_heads=64, index_width=4), 200
    module, (x, low) = indexer(c), inputs(c, S)
    mass, cu = torch.rand(S, S // c.csa), torch.tensor([0, S]).int()
    projected, _, visible = selected(module, x, low, cu)
    assert max(v4.kept(lambda: loss(projected, visible, mass))) < S * 64 * (S // c.csa) // 8


def test_divergence_by_hand():
    mass = torch.tensor([[0.1, 0.3, 99.0]], dtype=torch.float64)
    found = torch.tensor([[1.0, 2.0, 50.0]], dtype=torch.float64, requires_grad=True)
    found_loss = divergence(mass, found, torch.tensor([[True, True, False]]))
    q = [math.exp(1) / (math.exp(1) + math.exp(2)), math.exp(2) / (math.exp(1) + math.exp(2))]
    assert float(found_loss.detach()) == pytest.approx(
        0.25 * math.log(0.25 / q[0]) + 0.75 * math.log(0.75 / q[1]), rel=1e-14
    )
    (grad,) = torch.autograd.grad(found_loss.sum(), found)
    assert grad[0].tolist() == pytest.approx([q[0] - 0.25, q[1] - 0.75, 0], abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_without_entries_or_whose_window_takes_all_has_no_loss_and_no_gradient(dtype):
    found = torch.tensor([[1e4, -3.0], [2.0, 3.0]], dtype=dtype, requires_grad=True)
    found_loss = divergence(torch.zeros(2, 2, dtype=dtype), found, torch.tensor([[False, False], [True, True]]))
    (grad,) = torch.autograd.grad(found_loss.sum(), found)
    assert found_loss.tolist() == [0, 0] and not grad.any()


def test_teacher_and_scores_alike_have_no_loss():
    found = torch.randn(3, 4, dtype=torch.float64)
    mask = torch.ones(3, 4, dtype=torch.bool)
    assert divergence(5 * found.softmax(-1), found, mask).abs().max() < 1e-15
