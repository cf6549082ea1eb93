"""A whole model of the room's modules: against transformers', against the formulas, and over packed documents."""

from dataclasses import replace

import pytest
import torch
import v4_hf
import v4_model as v4
import v4_network as net
from hypothesis import given, settings
from hypothesis import strategies as st

from model.alignment.deepseek_v4 import formulas, objective
from model.layers.common import fp32

WEIGHTS = {"lm": 1.0, "mtp": 0.3, "index": 0.7}


def whole(c, seed=0):
    return v4.fill(v4.Whole(c), seed, 0.3).double()


def chosen_sets(said):
    return [[sorted(row) for row in a.chosen.tolist()] for a in said["attended"] if a.chosen is not None]


@pytest.mark.parametrize("seed", range(-1, 6))
def test_transformers_has_the_same_logits_loss_choices_and_gradients(seed):
    """Two unpadded documents, which it takes as two rows."""
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed + 1)
    S = 41
    ids = torch.stack([v4.row([S], c, n)[0] for n in (1, 2)])
    cu = torch.tensor([0, S, 2 * S]).int()
    seen, hooks = {}, []
    for i, layer in enumerate(theirs.model.layers):
        hooks.append(
            layer.mlp.gate.register_forward_hook(lambda _, __, out, i=i: seen.update({("experts", i): out[2]}))
        )
        if c.kinds[i] == "csa":
            indexer = layer.self_attn.compressor.indexer
            hooks.append(indexer.register_forward_hook(lambda _, __, out, i=i: seen.update({("chosen", i): out})))
    said, out = ours(ids.flatten(), cu), theirs(ids, labels=ids, use_cache=False)
    assert v4_hf.off(said["logits"], out.logits.flatten(0, 1)) < 1e-5
    loss = v4.losses(said, ids.flatten(), cu, c)["lm"]
    assert float((loss - out.loss).detach().abs()) < 1e-6
    for i, kind in enumerate(c.kinds):
        assert torch.equal(said["routed"][i].sort(-1).values, seen["experts", i].sort(-1).values)
        if kind == "csa":
            first = (torch.arange(2 * S) >= S)[:, None] * (S // c.csa)
            mine = said["attended"][i].chosen
            mine = torch.where(mine < 0, -1, mine - first)[:, : seen["chosen", i].shape[-1]]
            others = seen["chosen", i].flatten(0, 1)
            assert torch.equal(mine.sort(-1).values, others.sort(-1).values)
    out.loss.backward()
    named = dict(ours.named_parameters())
    grads = dict(zip(named, torch.autograd.grad(loss, named.values(), allow_unused=True), strict=True))
    held = dict(theirs.named_parameters())
    given = {name: grad for name, grad in grads.items() if grad is not None}
    for name, grad in v4_hf.theirs_of(given, c).items():
        assert v4_hf.off_gradient(grad, held[name].grad) < 1e-4, name
    none = {name for name, grad in grads.items() if grad is None}
    assert none == {name for name in grads if "indexer" in name}
    assert {name for name, p in held.items() if p.grad is None} == set(
        v4_hf.theirs_of({name: named[name] for name in none}, c)
    )


@pytest.mark.parametrize("seed", range(3))
def test_values_choices_and_gradients_are_the_formulas_of_each_document(seed):
    c = v4.drawn(seed + 20)
    model, lengths = whole(c), [11, 2, 9]
    tokens, cu = v4.row(lengths, c)
    said = model(tokens, cu, index_loss=True)
    w = net.to_network(net.held(model))
    documents = [formulas.document(part.tolist(), w, c, index=True) for part in tokens.split(lengths)]
    for name in ("logits", "mtp"):
        expected = torch.cat([document[name] for document in documents])
        torch.testing.assert_close(said[name], expected, rtol=0, atol=1e-11)
    for i, found in enumerate(said["routed"]):
        expected = [sorted(row) for document in documents for row in document["routed"][i]]
        assert [sorted(row) for row in found.tolist()] == expected
    ours = v4.losses(said, tokens, cu, c)
    theirs = objective.losses(documents, [part.tolist() for part in tokens.split(lengths)], c)
    del theirs["aux"]
    assert ours.keys() == theirs.keys() == WEIGHTS.keys()
    totals = (sum(WEIGHTS[name] * of[name] for name in WEIGHTS) for of in (ours, theirs))
    both = [torch.autograd.grad(total, list(model.parameters()), allow_unused=True) for total in totals]
    for name, mine, other in zip(dict(model.named_parameters()), *both, strict=True):
        if mine is None or other is None:  # of one chosen entry the indexer learns nothing
            assert mine is other or not (other if mine is None else mine).any(), name
        else:
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any), st.integers(0, 5), st.booleans())
def test_a_document_is_the_same_packed_and_alone(lengths, seed, dense):
    c = v4.drawn(seed)
    model = whole(c, seed)
    tokens, cu = v4.row(lengths, c, seed)
    with torch.no_grad():
        said, first = model(tokens, cu, index_loss=True, dense=dense), 0
        for start, length in zip(cu.tolist(), lengths, strict=False):
            rows = slice(start, start + length)
            if length:
                alone = model(tokens[rows], torch.tensor([0, length]).int(), index_loss=True, dense=dense)
                for name in ("logits", "mtp"):
                    torch.testing.assert_close(said[name][rows], alone[name], rtol=0, atol=1e-12)
                for ours, one in zip(said["attended"], alone["attended"], strict=True):
                    if one.index_loss is not None:
                        torch.testing.assert_close(ours.index_loss[rows], one.index_loss, rtol=0, atol=1e-12)
                    if one.chosen is not None:
                        mine = ours.chosen[rows].clone()
                        mine[mine >= 0] -= first
                        assert torch.equal(mine[:, : one.chosen.shape[1]], one.chosen)
                        assert bool((mine[:, one.chosen.shape[1] :] == -1).all())
            first += length // c.csa


@pytest.mark.parametrize("at", [0, 7, 20, 33])
def test_a_token_changes_nothing_before_it_and_nothing_in_another_document(at):
    c, lengths = v4.Config(), [13, 30]
    model = whole(c)
    tokens, cu = v4.row(lengths, c)
    other = tokens.clone()
    other[at] = (tokens[at] + 1) % c.vocab
    with torch.no_grad():
        before, after = model(tokens, cu), model(other, cu)
    own = slice(at, 13) if at < 13 else slice(at, None)
    for name, early in (("logits", 0), ("mtp", 1)):  # MTP reads the next token
        same = torch.ones(43, dtype=torch.bool)
        same[max(own.start - early, 0 if at < 13 else 13) : own.stop] = False
        moved = (before[name] - after[name]).abs().amax(-1)
        assert moved[same].max() < 1e-12 and moved[~same].min() > 1e-9


def test_two_bounds_in_a_row_of_one_document_change_nothing():
    c = v4.Config()
    model, (tokens, _) = whole(c), v4.row([30], c)
    with torch.no_grad():
        a, b = (model(tokens, torch.tensor(cu).int())["logits"] for cu in ([0, 30], [0, 0, 30, 30]))
    assert torch.equal(a, b)


@pytest.mark.parametrize("seed", range(-1, 3))
def test_parameters_are_those_of_the_published_formulas(seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    d, H, D, n = c.hidden, c.heads, c.head_dim, c.streams
    attention = d * c.q_lora_rank + c.q_lora_rank + c.q_lora_rank * H * D + d * D + D + H
    attention += H * D * c.o_lora_rank + c.o_groups * c.o_lora_rank * d
    hyper = (n * n + 2 * n) * n * d + (n * n + 2 * n) + 3
    expert = 3 * d * c.ffn

    def compressor(ratio, width, series):
        return 2 * d * series * width + ratio * series * width + width

    index = c.q_lora_rank * c.index_heads * c.index_width + d * c.index_heads + compressor(c.csa, c.index_width, 2)
    extra = {"sliding": 0, "hca": compressor(c.hca, D, 1), "csa": compressor(c.csa, D, 2) + index}
    layer = attention + (c.experts + 1) * expert + c.experts * d + 2 * d + 2 * hyper
    head = n * n * d + n + 1
    total = sum(layer + extra[kind] for kind in c.kinds) + 2 * c.vocab * d + head + d
    mtp = layer + 2 * d * d + 3 * d + head
    assert sum(p.numel() for p in v4.Whole(c).parameters()) == total + mtp


PUBLISHED = {  # of V4-Flash and V4-Pro: attention, CSA's compressor, HCA's, indexer, a hyper-connection, an expert
    "flash": (
        {"hidden": 4096, "heads": 64, "q_lora_rank": 1024, "o_groups": 8, "ffn": 2048},
        (106_956_352, 8_393_216, 4_260_352, 10_749_056, 393_243, 25_165_824),
    ),
    "pro": (
        {"hidden": 7168, "heads": 128, "q_lora_rank": 1536, "o_groups": 16, "ffn": 3072},
        (299_894_912, 14_684_672, 7_406_080, 16_712_832, 688_155, 66_060_288),
    ),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parts_at_published_widths_have_the_published_parameters(size):
    changed, expected = PUBLISHED[size]
    common = {"head_dim": 512, "o_lora_rank": 1024, "index_heads": 64, "index_width": 128, "rope_width": 64}
    c = replace(v4.Config(), **common, **changed, hca=128, streams=4)
    m = v4.room()
    with torch.device("meta"):
        csa, hca = (m["attention"].Attention(v4.shape(c, kind, m)) for kind in ("csa", "hca"))
        hyper = m["hyper"].HyperConnection(c.hidden, c.streams)
        expert = m["experts"].SharedExpert(c.hidden, c.ffn, c.limit)
    (compressor, index), hca = (csa.core_attention.compressor, csa.core_attention.indexer), hca.core_attention
    counted = [sum(p.numel() for p in x.parameters()) for x in (csa, compressor, hca.compressor, index, hyper, expert)]
    assert (counted[0] - counted[1] - counted[3], *counted[1:]) == expected


def test_a_model_of_bf16_keeps_what_stays_fp32_and_is_near_the_fp32_one():
    c = replace(v4.Config(), index_topk=99)  # all entries: rounding may change which are the best
    wide, narrow = (v4.fill(v4.Whole(c, mtp=False), 0, 0.15) for _ in range(2))
    for parameter in narrow.parameters():
        if not fp32.kept(parameter):
            parameter.data = parameter.data.bfloat16()
    for of in (wide, narrow):
        for layer in of.layers:
            layer.moe.router.weight.data.zero_()  # likewise which experts: the bias chooses
    (tokens, cu) = v4.row([21, 20], c)
    said, exact = narrow(tokens, cu, index_loss=True), wide(tokens, cu, index_loss=True)
    assert said["logits"].dtype == torch.bfloat16
    assert v4_hf.off(said["logits"].float(), exact["logits"]) < 0.05
    losses = v4.losses({**said, "logits": said["logits"].float()}, tokens, cu, c)
    (losses["lm"] + losses["index"]).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in narrow.parameters())


def test_without_compression_no_layer_needs_windows_and_one_stream_is_enough():
    c = replace(v4.Config(), kinds=("sliding",), streams=1)
    tokens, cu = v4.row([5, 4], c)
    assert whole(c)(tokens, cu)["logits"].shape == (9, c.vocab)
