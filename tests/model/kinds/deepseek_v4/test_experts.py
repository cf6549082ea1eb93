"""Mixture of experts: parameters, what one token meets, and the routers' tables."""

import math

import pytest

from model.families.deepseek_v4 import SIZES
from model.kinds.deepseek_v4.experts import BIASES, PART, TABLE
from model.profile.work import Documents

FLASH = SIZES["v4_flash"]


@pytest.mark.parametrize(("name", "expert"), [("v4_flash", 25_165_824), ("v4_pro", 66_060_288)])
def test_parameters_of_the_public_sizes(name, expert):
    size = SIZES[name]
    for kind in (size.kinds["hash_moe"], size.kinds["topk_moe"]):
        count, norm = size.experts.count, size.hidden
        assert kind.counts()[PART] == (count + 1) * expert + count * size.hidden + norm
        assert (kind.spread(), kind.idle()) == (count * expert, (count - 6) * expert)
        assert kind.dispatched() == 6 * size.hidden and kind.experts() == count


def test_a_router_by_hash_has_a_table_that_is_no_parameter_and_a_learned_one_has_biases():
    hashed, learned = FLASH.kinds["hash_moe"], FLASH.kinds["topk_moe"]
    assert hashed.parts()[PART][TABLE] == (129_280, 6) and TABLE in hashed.buffers
    assert BIASES not in hashed.counts() and learned.counts()[BIASES] == 256
    assert hashed.shapes().keys() ^ learned.shapes().keys() == {TABLE, "mlp.router.expert_bias"}
    # what three layers' tables hold, and what their shapes have beside their parameters
    assert 3 * math.prod(hashed.shapes()[TABLE]) == 2_327_040
    assert sum(map(math.prod, hashed.shapes().values())) == hashed.number() + 775_680


@pytest.mark.parametrize("name", ["hash_moe", "topk_moe"])
def test_products_are_of_the_weights_that_a_token_meets(name):
    kind = FLASH.kinds[name]
    (products,) = [one for one in kind.products(Documents({9: 1})) if one.part == PART]
    met = kind.counts()[PART] - kind.idle() - FLASH.hidden  # without the norm
    assert products.flops == 9 * 2 * met


@pytest.mark.parametrize("name", ["v4_flash", "v4_tiny"])
def test_kept_of_a_token(name):
    size, kind = SIZES[name], SIZES[name].kinds["topk_moe"]
    h, e = size.hidden, size.experts
    routed = e.topk * (h + e.ffn + e.ffn + e.ffn + h)  # input, gate, values, product, output
    assert kind.kept() - kind.around_kept() == 2 * (h + routed + 3 * e.ffn) + 2 * 4 * e.count
