"""The least work of a step, against the counts of model.definition and by hand."""

import math

import pytest

from model.definition import flops, parameters
from model.definition.memory import Layout
from model.families.sizes import SIZES
from model.profile import work
from model.profile.kernel_kinds import RULES
from model.profile.work import Documents, Share, between

NAMES = ("nam56r", "nam56r_wide", "nam56r_quarter", "nam56r_tiny")


def by_name(share, seen):
    return {each.name: each for each in work.of(share, seen)}


class Even:
    """What flops.built takes: half a sequence of keys a query."""

    tokens = 4096

    def keys(self, most=math.inf):
        return self.tokens * min(most, 2048)


def target(size, seen):
    computing = sum(layer.indices_from == layer.number for layer in size.layers)
    return computing * 2 * size.heads * size.attention.qk_dim * seen.keys()


@pytest.mark.parametrize("name", NAMES)
def test_all_products_are_those_that_are_built(name):
    size = SIZES[name]
    seen = Even()
    found = sum(each.flops or 0 for each in work.of(Share(size, Layout()), seen))
    assert found - target(size, seen) == pytest.approx(seen.tokens * flops.total(size, 4096), rel=1e-12)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_stages_of_a_pipeline_share_the_whole(stages):
    size = SIZES["nam56r"]
    seen = Even()
    whole = by_name(Share(size, Layout()), seen)
    parts = [by_name(Share(size, Layout(pipeline=stages), stage), seen) for stage in range(stages)]
    for name, all_of_it in whole.items():
        held = [part[name] for part in parts]
        if all_of_it.flops is not None:
            assert sum(each.flops for each in held) == pytest.approx(all_of_it.flops)
        elif name != "optimizer":  # the last stage has a copy of the embedding, for MTP
            assert sum(each.moved for each in held) == pytest.approx(all_of_it.moved)


def test_what_recompute_adds():
    size = SIZES["nam56r_quarter"]
    plain, again = (by_name(Share(size, Layout(), recompute=on), Even()) for on in (False, True))
    assert again["Mamba-3 MIMO forward"].flops == 2 * plain["Mamba-3 MIMO forward"].flops
    assert again["Mamba-3 MIMO backward"].flops == plain["Mamba-3 MIMO backward"].flops
    assert again["M²RNN"].flops == pytest.approx(plain["M²RNN"].flops * 4 / 3)
    added = again["matrix products"].flops - plain["matrix products"].flops
    mtp = size.kinds["mla"].projections() + 4 * size.hidden**2 + 4 * size.hidden * size.ffn
    entrance = 2 * size.hidden * (2 * 8 * 16 + 64)
    ends = mtp + entrance + 4 * size.hidden * size.vocab
    assert added == pytest.approx(plain["matrix products"].flops / 3 - 4096 * ends)
    channels = size.layer_count * size.hidden + size.count("mamba3") * 2 * 128 * 8 * 4
    assert again["norm"].moved - plain["norm"].moved == 4096 * channels * 2 * 2
    assert again["routing, sorting and indexing"].moved == 1.5 * plain["routing, sorting and indexing"].moved


def test_keys_are_those_of_the_document():
    seen = between([0, 5, 105, 105, 105])  # the last two are the loader's padding
    assert seen.tokens == 105
    assert seen.keys() == sum(range(1, 6)) + sum(range(1, 101))
    assert seen.keys(32) == sum(range(1, 6)) + sum(min(n, 32) for n in range(1, 101))
    assert (seen + seen).over(2) == seen


def test_bytes_by_hand():
    size = SIZES["nam56r_tiny"]
    tokens = 10
    found = by_name(Share(size, Layout()), Documents({1: tokens}))
    assert found["optimizer"].moved == 32 * parameters.total(size)
    assert found["cross entropy"].moved == tokens * size.vocab * 4 * 2
    moe, mamba = size.count("moe"), size.count("mamba3")
    assert found["routing, sorting and indexing"].moved == tokens * moe * size.hidden * 3 * 2 * 4
    channels = size.layer_count * size.hidden + mamba * 2 * 32 * 2 * 4 + 6 * size.hidden
    assert found["norm"].moved == tokens * channels * 2 * 5


def test_tokens_are_routed_in_mtp_too_where_it_has_experts():
    """Each channel is read once and written for two experts, and back, in four layers and one depth."""
    size, tokens = SIZES["v4_tiny"], 10
    found = [by_name(Share(size, Layout(), recompute=again), Documents({tokens: 1})) for again in (False, True)]
    moved = [one["routing, sorting and indexing"].moved for one in found]
    assert moved == [tokens * 2 * 3 * 128 * (4 * passes + 4) for passes in (4, 6)]


def test_ranks_share_the_optimizer():
    size = SIZES["nam56r"]
    experts = size.count("moe") * size.experts.count * 2 * size.hidden * size.experts.ffn
    dense = parameters.total(size) - experts
    assert work.updated(Share(size, Layout(data=4))) == pytest.approx((dense + experts) / 4)
    assert work.updated(Share(size, Layout(data=4, expert=2))) == pytest.approx((dense + experts) / 4)


def test_every_kind_is_one_of_the_traces_and_in_one_row():
    kinds = [kind for each in work.of(Share(SIZES["nam56r"], Layout()), Documents({1: 1})) for kind in each.kinds]
    assert len(kinds) == len(set(kinds)) and set(kinds) <= set(RULES)


def test_siso_kernels_are_not_counted():
    assert not any("Mamba-3" in name for name in by_name(Share(SIZES["nam56r_siso"], Layout()), Documents({1: 1})))
