"""Hyper-connections: parameters by the published formula, and what streams cost."""

import dataclasses

import pytest

from model.families.deepseek_v4 import SIZES
from model.kinds.deepseek_v4 import hyper
from model.profile.work import Documents

SEEN = Documents({7: 3, 300: 1})


@pytest.mark.parametrize(("name", "count"), [("v4_flash", 393_243), ("v4_pro", 688_155)])
def test_parameters_of_the_public_sizes(name, count):
    size = SIZES[name]
    assert {kind.counts()[hyper.PART] for kind in size.kinds.values()} == {count}
    (table,) = {tuple(kind.around_parts()[hyper.PART].values()) for kind in (size.kinds["csa"], size.kinds["hash_moe"])}
    assert table == ((24, 4 * size.hidden), (24,), (3,))


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("name", ["sliding", "topk_moe"])
def test_streams_are_what_a_sublayer_keeps_and_computes(name, streams):
    """Counted one by one: coefficients from all streams, one mix to read, and for each stream one of all streams and
    the output."""
    size, h = SIZES["v4_tiny"], SIZES["v4_tiny"].hidden
    kind = dataclasses.replace(size.kinds[name], hyper=hyper.Dims(streams=streams))
    rows = streams + streams + streams * streams
    products = 2 * rows * streams * h + 2 * streams * h + streams * 2 * (streams + 1) * h
    assert sum(one.flops for one in kind.products(SEEN) if one.part == hyper.PART) == SEEN.tokens * products
    bare = kind.kept() - kind.around_kept()
    assert kind.around_kept() == 2 * (streams * h + 2 * h) + 2 * 4 * rows and bare > 0
    assert bare == size.kinds[name].kept() - size.kinds[name].around_kept()


def test_the_contraction_is_a_projection_to_one_coefficient_a_stream():
    assert hyper.contraction(4, 16) == {"mapping_proj.weight": (4, 64), "bias": (4,), "scale": (1,)}
    assert hyper.contraction_flops(4, 16) == 2 * (4 * 64 + 64)
