"""Tables of the rotary embedding, made once for packed documents: when they are made anew, and which layers share."""

import pytest
import torch
from scripted import run
from torch import nn

pytestmark = pytest.mark.long
ANEW = {
    "queries": 1,
    "keys of the same": 0,
    "a part taken anew": 0,
    "pairs apart": 0,
    "another scale": 1,
    "in fp32": 1,
    "in fp16 again": 0,
    "more frequencies": 1,
    "frequencies from elsewhere": 1,
    "a packed batch's frequencies": 1,
    "other ranks": 1,
    "wider": 1,
    "not turned whole": 1,
    "nor again": 1,
    "another batch": 1,
    "asked in inference mode before": 1,
    "lengths of inference mode": 1,
    "frequencies of inference mode": 1,
    "lengths changed": 1,
    "and again": 0,
    "frequencies changed": 1,
    "captured": 1,
    "not captured": 0,
    "fewer tokens": 1,
}
FP32 = ("in fp32", "asked in inference mode before")
# Of a forward: what turns in three MLA layers, two of DSA and their one indexer, and who asks for tokens' places
ROTATED, PLACED = 3 * 2 + 2 * 2 + 2, 3 + 2  # in three layers of Mamba-3, and twice in one of M²RNN


@pytest.fixture(scope="module")
def found():
    return run("interpreted_tables.py", TRITON_INTERPRET="1")


@pytest.mark.upstream
def test_tables_are_made_anew_for_whatever_they_depend_on_and_are_megatrons(found):
    calls = found[0]
    assert {what: count for what, (*_, count) in calls.items()} == ANEW
    off = {what: errors for what, (*errors, _) in calls.items() if max(errors) > (2e-6 if what in FP32 else 0)}
    assert off == {}


@pytest.mark.upstream
def test_a_forward_of_the_model_makes_them_once_and_computes_what_it_did(found):
    _, (operators, *kept), (before, *made), (calls, bounds, forgotten), embeddings = found
    assert kept == made
    assert (calls, bounds, forgotten, embeddings) == (1, 0, True, 1)  # nothing outlives the forward's bounds
    spared = {name: before[name] - operators.get(name, 0) for name in ("searchsorted", "_assert_async", "cos", "sin")}
    again = ROTATED - 1
    assert spared == {"searchsorted": again + PLACED - 1, "_assert_async": again, "cos": again, "sin": again}


class Embedding(nn.Module):
    def __init__(self, base, interleaved=False, weight=False):
        super().__init__()
        self.inv_freq = base ** -torch.arange(4.0)
        self.interleaved = interleaved
        if weight:
            self.weight = nn.Parameter(torch.ones(1))


class Layer(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.rotary_pos_emb = embedding


def test_layers_share_an_embedding_that_holds_the_same_and_nothing_that_is_saved():
    pytest.importorskip("triton")
    from model.layers.attention import tables

    made = [Embedding(10.0), Embedding(10.0), Embedding(20.0), Embedding(10.0, True), Embedding(10.0, weight=True)]
    made += [Embedding(10.0, weight=True), None]
    layers = nn.ModuleList(map(Layer, made))
    saved = list(layers.state_dict())
    tables.share(layers)
    assert [made.index(layer.rotary_pos_emb) for layer in layers] == [0, 0, 2, 3, 4, 5, 6]
    assert list(layers.state_dict()) == saved == ["4.rotary_pos_emb.weight", "5.rotary_pos_emb.weight"]
