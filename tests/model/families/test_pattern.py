"""Cuts between stages of a pipeline, and that Megatron's parser reads the layers from the string."""

import pytest

from model.families import pattern
from model.families.sizes import SIZES

NAM56R = SIZES["nam56r"]


def parsed(text):
    """What Megatron reads: (layer kinds of the main stack by its symbols, MTP pattern, MTP depths)."""
    from megatron.core.models.hybrid import hybrid_layer_allocation as allocation

    found = allocation.parse_hybrid_pattern(text)
    layers = [allocation.validate_segment_layers(part) for part in found.main_pattern.split("|")]
    return layers, found.mtp_pattern, found.mtp_num_depths


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


def symbols():
    """{slot: Megatron's symbol}, and the slots that its submodules have."""
    from megatron.core.models.hybrid import hybrid_block

    from model.patched import dialect

    return dialect.SYMBOLS, list(hybrid_block.HybridStackSubmodules.__dataclass_fields__), dialect.PLACES


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_megatrons_parser_reads_the_pattern(megatron, name):
    size, (known, fields, places) = SIZES[name], megatron.call(symbols)
    assert {places.get(slot, slot) for slot in known} <= set(fields)
    text = pattern.megatron_pattern(size.layers, size.mtp, size.mtp_depths, symbols=known)
    read = [known[layer.of.slot] for layer in size.layers]
    depth = "".join(known[slot] for slot in size.mtp.slots)
    assert megatron.call(parsed, text) == ([read], depth, size.mtp_depths)
    of_kinds = {kind: {known[layer.of.slot] for layer in size.layers if layer.kind == kind} for kind in size.kinds}
    found = [symbol for held in of_kinds.values() for symbol in held]
    assert len(found) == len({*found})  # no two kinds share a place
    if size.upstream == "Megatron's":  # the kinds' own symbols are this release's
        assert text == pattern.megatron_pattern(size.layers, size.mtp, size.mtp_depths)


@pytest.mark.upstream
def test_megatrons_parser_reads_pipeline_stages(megatron):
    text = pattern.megatron_pattern(NAM56R.layers, NAM56R.mtp, 1, (20, 36))
    stages, _, _ = megatron.call(parsed, text)
    assert [len(stage) for stage in stages] == [20, 16, 16]
