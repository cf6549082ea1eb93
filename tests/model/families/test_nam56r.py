"""The layer map of each size, and that Megatron shares indices by the same rule."""

from dataclasses import replace

import pytest

from model.families.nam56r import NAM56R, SIZES, index_sharing

DSA = [5, 9, 13, 21, 25, 29, 37, 41, 45]


def shares(size):
    """{layer: layer that computes its indices} by Megatron's rule, for the size's sparse layers."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    rule = index_sharing(size.layers)
    return {number: dsa.source_dsa_compute_layer(number, *rule) for number in size.numbers("dsa")}


@pytest.mark.parametrize("name", ["nam56r", "nam56r_wide"])
def test_layers_of_the_full_sizes(name):
    size = SIZES[name]
    assert size.numbers("mla") == [1, 17, 33, 49]
    assert size.numbers("dsa") == DSA
    assert size.numbers("m2rnn") == [12, 24, 36, 48]
    assert size.numbers("mamba3") == list(range(3, 52, 4))
    assert size.numbers("moe") == [n for n in range(2, 53, 2) if n % 12]
    counts = {kind: size.count(kind) for kind in size.kinds}
    assert counts == {"mla": 4, "dsa": 9, "moe": 22, "mamba3": 13, "m2rnn": 4}
    assert [layer.number for layer in size.layers] == list(range(1, 53))


@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_every_kind(name):
    assert all(SIZES[name].count(kind) for kind in SIZES[name].kinds)


def test_three_sparse_layers_compute_indices_for_the_other_six():
    sources = {layer.number: layer.indices_from for layer in NAM56R.layers if layer.kind == "dsa"}
    assert sources == dict(zip(DSA, [5] * 3 + [21] * 3 + [37] * 3, strict=True))
    assert all(layer.indices_from is None for layer in NAM56R.layers if layer.kind != "dsa")


def test_sharing_that_megatron_has_no_rule_for_is_refused():
    moved = tuple(replace(x, indices_from=9) if x.number == 13 else x for x in NAM56R.layers)
    with pytest.raises(ValueError, match=r"layer 13\b.*\b9\b"):
        index_sharing(moved)


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_megatrons_sharing_rule_gives_the_same_sources(megatron, name):
    size = SIZES[name]
    assert megatron.call(shares, size) == {n: x.indices_from for n, x in enumerate(size.layers, 1) if x.kind == "dsa"}
