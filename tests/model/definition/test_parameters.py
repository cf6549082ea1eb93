"""The accounting against the modules that are really built, on the meta device, part by part."""

from collections import Counter

import pytest

from model.definition import parameters
from model.families.nam56r import SIZES

NAM56R = SIZES["nam56r"]
# The independent accounting that the project decided by; its terms are listed in ``test_the_difference...``.
DECIDED = {"nam56r": 4_730_517_090, "nam56r_wide": 5_819_000_000}
DECIDED_ACTIVE = {"nam56r": 3.035e9, "nam56r_wide": 3.881e9}
OUTSIDE = {
    "embedding": "embedding",
    "ngram": "n-gram hash embedding",
    "structure": "structure embedding",
    "mtp": "MTP",
    "output_layer": "head",
}
KINDS = {"mla": "attention", "dsa": "attention", "moe": "MoE", "mamba3": "Mamba-3", "m2rnn": "M²RNN"}


def built(name):
    """{part: parameters} of a whole model, the layers that hold an indexer, {key: shape} of its checkpoint."""
    import torch

    from model.kinds import catalogue
    from model.kinds.run import Run
    from model.loop.saving import sharded
    from model.step.network import Nam56r

    size = SIZES[name]
    with torch.device("meta"):
        model = Nam56r(size, Run(), catalogue.choose(size, Run()))
    parts, indexers = Counter(), set()
    for path, parameter in model.named_parameters():
        assert parameter.device.type == "meta", path
        place = path.split(".")
        if place[0] == "decoder" and place[1] == "layers":
            number = int(place[2]) + 1
            part = "indexers" if "indexer" in place else KINDS[size.layers[number - 1].kind]
            indexers |= {number} if part == "indexers" else set()
        else:
            part = "final norm" if place[0] == "decoder" else OUTSIDE[place[0]]
        parts[part] += parameter.numel()
    kept = sharded.weights(model).values()
    return dict(parts), sorted(indexers), {held.key: held.global_shape for held in kept}


@pytest.mark.upstream
@pytest.mark.parametrize("name", SIZES)
def test_the_accounting_is_what_is_built(megatron, name):
    size = SIZES[name]
    parts, indexers, shapes = megatron.call(built, name)
    assert parts == parameters.by_part(size) and shapes == parameters.shapes(size)
    assert indexers == [layer.number for layer in size.layers if layer.indices_from == layer.number]


def test_totals():
    totals = {name: parameters.total(SIZES[name]) for name in SIZES}
    assert totals == {
        "nam56r": 4_727_618_912,
        "nam56r_wide": 5_815_688_056,
        "nam56r_quarter": 1_681_607_000,
        "nam56r_tiny": 2_135_816,
        "nam56r_siso": 1_974_536,
    }


def indexer(size):
    """Parameters of one."""
    return size.kinds["dsa"].counts()["indexers"]


def test_the_difference_from_the_decided_total_term_by_term():
    sharing = sum(x.kind == "dsa" and x.indices_from != x.number for x in NAM56R.layers)
    indexers = sharing * indexer(NAM56R)  # a sharing layer has none; the decision counts nine
    pre_norms = NAM56R.count("mamba3") * NAM56R.hidden  # the ancestor's mixer has a norm of its own behind the layer's
    unnamed = 2  # scalars of the ancestor that the decision's list of terms does not name
    assert (sharing, indexer(NAM56R)) == (6, 475_264)
    assert parameters.total(NAM56R) + indexers + pre_norms + unnamed == DECIDED["nam56r"]


@pytest.mark.parametrize("name", DECIDED)
def test_totals_are_the_decided_ones_but_for_the_unneeded_modules(name):
    size = SIZES[name]
    unneeded = 6 * indexer(size) + size.count("mamba3") * size.hidden
    assert parameters.total(size) + unneeded == pytest.approx(DECIDED[name], rel=1e-4)
    assert parameters.active(size) + unneeded == pytest.approx(DECIDED_ACTIVE[name], rel=2e-4)
