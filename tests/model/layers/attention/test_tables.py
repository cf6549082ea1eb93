"""The rotary embedding of packed batches with tables made once: when they are made anew, and which layers share."""

import pytest
import torch
from scripted import run
from torch import nn

ANEW = {
    "queries": 1,
    "keys of the same": 0,
    "another layer": 0,
    "another scale": 1,
    "pairs apart": 1,
    "in fp32": 1,
    "more frequencies": 1,
    "a packed batch's frequencies": 1,
    "another batch": 1,
    "asked in inference mode before": 1,
    "lengths of inference mode": 1,
    "lengths changed": 1,
    "and again": 0,
    "frequencies changed": 1,
    "captured": 1,
}

FP32 = ("in fp32", "asked in inference mode before")


@pytest.mark.upstream
def test_upstream_finds_angles_once_for_equal_lengths_and_frequencies():
    found = run("interpreted_tables.py", TRITON_INTERPRET="1")
    assert {what: calls for what, (*_, calls) in found.items()} == ANEW
    off = {what: errors for what, (*errors, _) in found.items() if max(errors) > (2e-6 if what in FP32 else 0)}
    assert off == {}


class Embedding(nn.Module):
    def __init__(self, base, interleaved=False, weight=False):
        super().__init__()
        self.inv_freq = base ** -torch.arange(4.0)
        self.interleaved = interleaved
        if weight:
            self.weight = nn.Parameter(torch.ones(1))


class Another(Embedding):
    """Of another class: it may turn by the same numbers otherwise."""


class Layer(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.rotary_pos_emb = embedding


def test_layers_share_an_embedding_that_holds_the_same():
    pytest.importorskip("triton")
    from model.layers.attention import tables

    made = [Embedding(10.0), Embedding(10.0), Embedding(20.0), Embedding(10.0, True), Embedding(10.0, weight=True)]
    made += [Embedding(10.0, weight=True), None, Another(10.0)]
    layers = nn.ModuleList(map(Layer, made))
    tables.share(layers)
    assert [made.index(layer.rotary_pos_emb) for layer in layers] == [0, 0, 2, 3, 4, 5, 6, 7]
