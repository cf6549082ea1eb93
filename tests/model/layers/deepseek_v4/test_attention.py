"""The three kinds of layers against transformers', each document alone, and entries of another layer."""

from dataclasses import replace

import pytest
import torch
import v4_hf
import v4_model as v4

from model.alignment.deepseek_v4 import formulas
from model.layers.common import fp32
from model.layers.deepseek_v4.attention import Attention, grouped_output

KINDS = ["sliding", "csa", "hca"]


def attention(c, kind, dtype=torch.float64, **given):
    return v4.fill(Attention(v4.shape(c, kind, v4.room()), **given), 8).to(dtype)


def hidden(c, tokens, dtype=torch.float64):
    return torch.randn(tokens, 1, c.hidden, generator=torch.Generator().manual_seed(9)).to(dtype)


def bounds(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(-1, 5))
def test_transformers_has_the_same_outputs_and_gradients(kind, seed):
    c = v4.Config() if seed < 0 else v4.drawn(seed)
    ours, theirs = v4_hf.pair(c, seed, 0.25)
    layer, S = c.kinds.index(kind), 45
    mine, other = ours.layers[layer].attention, theirs.model.layers[layer].self_attn
    x = hidden(c, S, torch.float32).requires_grad_()
    y = x.detach().transpose(0, 1).clone().requires_grad_()
    place = torch.arange(S)[None]
    tables = {name: theirs.model.rotary_emb(y, position_ids=place, layer_type=name) for name in ("main", "compress")}
    back = torch.arange(S)[:, None] - torch.arange(S)
    mask = torch.zeros(S, S).masked_fill((back < 0) | (back >= c.window), -torch.inf)[None, None]
    values = mine(x, bounds(S)).output[:, 0], other(y, tables, place, mask)[0][0]
    assert v4_hf.off(*values) < 1e-5
    a, b = v4_hf.gradients(values[0], mine, x), v4_hf.gradients(values[1], other, y)
    assert v4_hf.off_gradient(a.pop("0"), b["0"].transpose(0, 1)) < 1e-4
    first = f"layers.{layer}.attention."
    theirs_of = v4_hf.theirs_of({first + name: grad for name, grad in a.items() if grad is not None}, c)
    for name, grad in theirs_of.items():
        assert v4_hf.off_gradient(grad, b[name.removeprefix(f"model.layers.{layer}.self_attn.")]) < 1e-4, name
    assert {name for name, grad in a.items() if grad is None} == {name for name in a if "indexer" in name}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_each_document_is_the_formulas(kind, dense, seed):
    c, lengths = v4.drawn(seed), [13, 0, 3, 22]
    module, x = attention(c, kind), hidden(c, 38)
    found = module(x, bounds(*lengths), index_loss=True, dense=dense)
    w = {name: p.detach() for name, p in module.named_parameters()}
    start, losses = 0, []
    for length in lengths:
        inner = list(x[start : start + length, 0])
        expected, _, _, index = formulas.attend(inner, w, "", c, kind, index=True, dense=dense)
        for s, y in enumerate(expected):
            torch.testing.assert_close(found.output[start + s, 0], y, rtol=0, atol=1e-12)
        start, losses = start + length, losses + index
    if kind == "csa":
        torch.testing.assert_close(found.index_loss, torch.stack(losses), rtol=0, atol=1e-11)
        assert (found.chosen is None) == dense
    else:
        assert found.index_loss is None and found.chosen is None


def reached(c, kind, at, length):
    """The tokens of a document that see the one at ``at``: by the window, or by an entry that it is part of."""
    found, ratio = set(range(at, min(at + c.window, length))), {"sliding": 0, "csa": c.csa, "hca": c.hca}[kind]
    if ratio:
        own = at // ratio
        entries = (own, own + 1) if kind == "csa" else (own,)  # CSA's have the window before theirs too
        seers = [range((entry + 1) * ratio - 1, length) for entry in entries if entry < length // ratio]
        found = found.union(*seers)
    return found


@pytest.mark.parametrize("at", [0, 5, 8, 9, 16, 26, 30, 31])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_reaches_those_that_see_it_and_no_earlier_one_and_no_other_document(kind, dense, at):
    c, lengths = v4.Config(), [9, 22, 7]
    module, x = attention(c, kind), hidden(c, 38)
    changed = x.clone()
    changed[at] += 1
    with torch.no_grad():
        before, after = (module(given, bounds(*lengths), dense=dense).output for given in (x, changed))
    moved = {*(before != after).any(-1)[:, 0].nonzero().flatten().tolist()}
    start, length = next((low, n) for low, n in ((0, 9), (9, 22), (31, 7)) if low <= at < low + n)
    due = {start + place for place in reached(c, kind, at - start, length)}
    if kind == "csa" and not dense:  # an entry that is not chosen is not seen
        assert {*range(at, min(at + c.window, start + length))} <= moved <= due
    else:
        assert moved == due


@pytest.mark.parametrize("kind", ["csa", "hca"])
def test_entries_of_another_layer_take_the_place_of_its_own(kind):
    c, cu = v4.Config(), bounds(21, 18)
    owner, x = attention(c, kind), hidden(c, 39)
    own = owner(x, cu)
    reader = attention(c, kind, owner=False)
    reader.load_state_dict(owner.state_dict(), strict=False)
    assert not any(name.startswith("core_attention.compressor") for name, _ in reader.named_parameters())
    again = reader(x, cu, own.entries)
    assert torch.equal(again.output, own.output) and again.entries is own.entries
    assert not torch.allclose(reader(x, cu, own.entries + 1).output, own.output)
    with pytest.raises(ValueError, match="owns no compressed entries"):
        reader(x, cu)
    with pytest.raises(ValueError, match=r"\[\d+, 16\]"):
        reader(x, cu, own.entries[1:])
    with pytest.raises(ValueError, match="none"):
        attention(c, "sliding")(x, cu, own.entries)


def test_the_indexers_loss_reaches_the_indexer_alone_and_the_output_all_the_rest():
    c, cu = v4.Config(), bounds(30)
    module, x = attention(c, "csa"), hidden(c, 30).requires_grad_()
    found = module(x, cu, index_loss=True)
    named = {**dict(module.named_parameters()), "x": x}
    by_loss, by_output = (
        dict(
            zip(named, torch.autograd.grad(of.sum(), named.values(), retain_graph=True, allow_unused=True), strict=True)
        )
        for of in (found.index_loss, found.output)
    )
    assert {name for name, grad in by_loss.items() if grad is not None} == {n for n in named if "indexer" in n}
    assert {name for name, grad in by_output.items() if grad is not None} == {n for n in named if "indexer" not in n}
    assert all(bool(grad.any()) for grad in [*by_loss.values(), *by_output.values()] if grad is not None)
    assert module(x, cu).index_loss is None


def test_groups_are_heads_in_order():
    x = torch.arange(8.0).view(1, 4, 2)
    down = torch.eye(4).repeat(2, 1)
    assert grouped_output(x, down, 2).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_goes_in_and_comes_out_and_what_stays_fp32_does(kind):
    c = v4.Config()
    module = attention(c, kind, torch.float32)
    for name, parameter in module.named_parameters():
        if not fp32.kept(parameter):
            parameter.data = parameter.data.bfloat16()
        assert fp32.kept(parameter) == ("norm" in name or name.endswith(("ape", "attn_sink")))
    found = module(hidden(c, 33, torch.bfloat16), bounds(33), index_loss=True)
    assert found.output.dtype == torch.bfloat16 and bool(found.output.isfinite().all())
    if kind == "csa":
        assert found.index_loss.dtype == torch.float32
        found.index_loss.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_begin_anew(kind):
    """Wide enough that a deviation says something."""
    c = replace(v4.Config(), hidden=200, heads=8, o_lora_rank=40, q_lora_rank=60)
    module = attention(c, kind, torch.float32)
    module.reset_parameters()
    for name, parameter in module.named_parameters():
        if "norm" in name:
            assert bool((parameter == 1).all())
        elif name.endswith(("ape", "attn_sink")):
            assert not parameter.any()
        else:
            assert 0.019 < float(parameter.detach().std()) < 0.021


@pytest.mark.parametrize(
    ("changed", "kind"),
    [({"o_groups": 3}, "hca"), ({"window": 0}, "hca"), ({"hca": -1}, "hca"), ({"csa": 0}, "csa")],
)
def test_what_no_layer_can_be_is_refused(changed, kind):
    with pytest.raises(ValueError, match=r"groups|window|indexer"):
        v4.shape(replace(v4.Config(), **changed), kind, v4.room())


@pytest.mark.parametrize("shape", [(12, 24), (6, 2, 24)])
def test_more_than_one_row_is_refused(shape):
    with pytest.raises(ValueError, match="one row"):
        attention(v4.Config(), "sliding")(torch.zeros(shape, dtype=torch.float64), bounds(12))
