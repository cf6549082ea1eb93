"""Entrance, head and a depth of MTP."""

import dataclasses

import pytest

from model.families.deepseek_v4 import SIZES
from model.profile.work import Documents

SEEN = Documents({11: 2, 64: 1})


@pytest.mark.parametrize("name", SIZES)
def test_a_depth_of_mtp_is_a_layer_without_compression_and_its_two_projections(name):
    size, d, n = SIZES[name], SIZES[name].hidden, SIZES[name].hyper.streams
    layer = size.kinds["sliding"].number() + size.kinds["topk_moe"].number()
    assert size.mtp.number() == layer + 2 * d * d + 3 * d + n * n * d + n + 1
    assert size.head.counts()["mHC head"] == n * n * d + n + 1
    assert (size.mtp.spread(), size.mtp.idle(), size.mtp.experts(), size.mtp.dispatched()) == (
        size.kinds["topk_moe"].spread(),
        size.kinds["topk_moe"].idle(),
        size.experts.count,
        size.experts.topk * d,
    )


def test_mtp_projects_each_stream_and_shares_the_head():
    size, d, n = SIZES["v4_tiny"], SIZES["v4_tiny"].hidden, 4
    layers = [p for kind in ("sliding", "topk_moe") for p in size.kinds[kind].products(SEEN)]
    own = SEEN.tokens * (2 * d * d + n * 2 * d * d + 2 * n * n * d + 2 * n * d)
    assert {p.part for p in size.mtp.products(SEEN)} == {"MTP"}
    assert sum(p.flops for p in size.mtp.products(SEEN)) == own + sum(p.flops for p in layers)
    assert size.head.logits() == 2 * size.vocab
    alone = dataclasses.replace(size.head, uses=1)
    logits = [sum(p.flops for p in head.products(SEEN) if p.part == "logits") for head in (size.head, alone)]
    assert logits == [SEEN.tokens * 4 * d * size.vocab, SEEN.tokens * 2 * d * size.vocab]


def test_norms_and_what_is_kept():
    size, d = SIZES["v4_tiny"], SIZES["v4_tiny"].hidden
    layers = [size.kinds["sliding"], size.kinds["topk_moe"]]
    assert size.mtp.normed() == (1 + 4 + 1) * d + sum(kind.normed() for kind in layers)
    assert size.mtp.kept() == 2 * d * (2 + 4 + 4 + 4 + 2) + sum(kind.kept() for kind in layers)
    assert (size.entrance.normed(), size.entrance.kept(), size.head.normed(), size.head.kept()) == (0, 0, d, 0)
    assert size.entrance.products(SEEN) == [] and size.entrance.number() == size.vocab * d
