"""Cuts between stages of a pipeline, and that Megatron's parser reads the layers from the string."""

import pytest

from model.families import pattern
from model.families.sizes import SIZES, TRAINED

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


@pytest.mark.upstream
@pytest.mark.parametrize("name", TRAINED)
def test_megatrons_parser_reads_the_pattern(megatron, name):
    size = SIZES[name]
    text = pattern.megatron_pattern(size.layers, size.mtp_depths)
    symbols = [layer.of.symbol for layer in size.layers]
    assert megatron.call(parsed, text) == ([symbols], "+-", size.mtp_depths)


@pytest.mark.upstream
def test_megatrons_parser_reads_pipeline_stages(megatron):
    text = pattern.megatron_pattern(NAM56R.layers, 1, (20, 36))
    stages, _, _ = megatron.call(parsed, text)
    assert [len(stage) for stage in stages] == [20, 16, 16]
