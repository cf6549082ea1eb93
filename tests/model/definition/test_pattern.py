"""The layer map of each size, and that Megatron's parser reads the same from the string."""

import pytest

from model.definition import pattern
from model.definition.sizes import SIZES

NAM56R = SIZES["nam56r"]
DSA = [5, 9, 13, 21, 25, 29, 37, 41, 45]


def parsed(text):
    """What Megatron reads: (layer kinds of the main stack by its symbols, MTP pattern, MTP depths)."""
    from megatron.core.models.hybrid import hybrid_layer_allocation as allocation

    found = allocation.parse_hybrid_pattern(text)
    layers = [allocation.validate_segment_layers(part) for part in found.main_pattern.split("|")]
    return layers, found.mtp_pattern, found.mtp_num_depths


def shares(size):
    """{layer: layer that computes its indices} by Megatron's rule, for the size's sparse layers."""
    from megatron.core.transformer.experimental_attention_variant import dsa

    rule = pattern.index_sharing(size.layers)
    return {number: dsa.source_dsa_compute_layer(number, *rule) for number in size.numbers("dsa")}


@pytest.mark.parametrize("name", ["nam56r", "nam56r_wide"])
def test_layers_of_the_full_sizes(name):
    size = SIZES[name]
    assert size.numbers("mla") == [1, 17, 33, 49]
    assert size.numbers("dsa") == DSA
    assert size.numbers("m2rnn") == [12, 24, 36, 48]
    assert size.numbers("mamba3") == list(range(3, 52, 4))
    assert size.numbers("moe") == [n for n in range(2, 53, 2) if n % 12]
    counts = {kind: size.count(kind) for kind in pattern.SYMBOLS}
    assert counts == {"mla": 4, "dsa": 9, "moe": 22, "mamba3": 13, "m2rnn": 4}
    assert [layer.number for layer in size.layers] == list(range(1, 53))


@pytest.mark.parametrize("name", SIZES)
def test_every_size_has_every_kind(name):
    assert all(SIZES[name].count(kind) for kind in pattern.SYMBOLS)


def test_three_sparse_layers_compute_indices_for_the_other_six():
    sources = {layer.number: layer.indices_from for layer in NAM56R.layers if layer.kind == "dsa"}
    assert sources == dict(zip(DSA, [5] * 3 + [21] * 3 + [37] * 3, strict=True))
    assert all(layer.indices_from is None for layer in NAM56R.layers if layer.kind != "dsa")


def test_sharing_that_megatron_has_no_rule_for_is_refused():
    moved = tuple(pattern.Layer(x.number, x.kind, 9 if x.number == 13 else x.indices_from) for x in NAM56R.layers)
    with pytest.raises(ValueError, match=r"layer 13\b.*\b9\b"):
        pattern.index_sharing(moved)


def test_no_pipeline_stage_parts_a_sparse_layer_from_its_indices():
    allowed = pattern.possible_cuts(NAM56R.layers)
    assert not set(allowed) & {*range(5, 13), *range(21, 29), *range(37, 45)}
    assert {1, 4, 13, 20, 29, 36, 45, 51} <= set(allowed)
    assert pattern.even_cuts(NAM56R.layers, 4) == (13, 29, 36)


@pytest.mark.parametrize("name", SIZES)
def test_a_stack_is_cut_into_as_many_stages_as_there_are_places(name):
    layers = SIZES[name].layers
    allowed = pattern.possible_cuts(layers)
    for stages in range(1, len(allowed) + 2):
        cuts = pattern.even_cuts(layers, stages)
        assert len(set(cuts)) == stages - 1 and list(cuts) == sorted(cuts) and set(cuts) <= set(allowed)
    assert pattern.even_cuts(layers, len(allowed) + 1) == tuple(allowed)
    with pytest.raises(ValueError, match=rf"\b{len(allowed) + 1}\b"):
        pattern.even_cuts(layers, len(allowed) + 2)


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_megatrons_parser_reads_the_pattern(megatron, name):
    size = SIZES[name]
    text = pattern.megatron_pattern(size.layers, size.mtp_depths)
    symbols = [pattern.SYMBOLS[layer.kind] for layer in size.layers]
    assert megatron.call(parsed, text) == ([symbols], "+-", size.mtp_depths)


@pytest.mark.upstream
def test_megatrons_parser_reads_pipeline_stages(megatron):
    text = pattern.megatron_pattern(NAM56R.layers, 1, (20, 36))
    stages, _, _ = megatron.call(parsed, text)
    assert [len(stage) for stage in stages] == [20, 16, 16]


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_megatrons_sharing_rule_gives_the_same_sources(megatron, name):
    size = SIZES[name]
    assert megatron.call(shares, size) == {n: x.indices_from for n, x in enumerate(size.layers, 1) if x.kind == "dsa"}
