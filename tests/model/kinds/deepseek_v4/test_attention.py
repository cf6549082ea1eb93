"""Attention: parameters by the published formulas, keys counted query by query."""

import dataclasses
from collections import Counter

import pytest

from model.families.deepseek_v4 import SIZES
from model.kinds.deepseek_v4 import attention
from model.kinds.deepseek_v4.attention import COMPRESSORS, INDEXERS, PART
from model.kinds.kind import GEMM
from model.profile.work import Documents

FLASH, TINY = SIZES["v4_flash"], SIZES["v4_tiny"]
LENGTHS = {1: 2, 3: 1, 15: 4, 16: 1, 33: 2, 200: 1}
NORM = 4096  # of a layer's input, which the formula of attention leaves out


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("v4_flash", (106_956_352, 8_393_216, 4_260_352, 10_749_056)),
        ("v4_pro", (299_894_912, 14_684_672, 7_406_080, 16_712_832)),
    ],
)
def test_parameters_of_the_public_sizes(name, counts):
    """Attention, CSA's and HCA's compressor, the indexer with its own."""
    kinds, hidden = SIZES[name].kinds, SIZES[name].hidden
    csa, hca = kinds["csa"].counts(), kinds["hca"].counts()
    assert (csa[PART] - hidden, csa[COMPRESSORS], hca[COMPRESSORS], csa[INDEXERS]) == counts
    assert csa[PART] == hca[PART] == kinds["sliding"].counts()[PART]
    assert {*kinds["sliding"].counts()} == {PART, "mHC"} and INDEXERS not in hca


def seen_by(tokens, window, ratio, topk):
    """(keys of the window, compressed keys that are taken, those that are seen) of all queries of a document."""
    counted = [0, 0, 0]
    for query in range(tokens):
        keys = [key for key in range(tokens) if key <= query and key > query - window]
        whole = [w for w in range(tokens) if ratio and ratio * w + ratio - 1 <= query]
        for place, number in enumerate((len(keys), min(len(whole), topk), len(whole))):
            counted[place] += number
    return counted


@pytest.mark.parametrize("name", ["sliding", "csa", "hca"])
def test_scores_are_of_the_keys_that_each_query_has(name):
    kind, a, i = TINY.kinds[name], TINY.attention, TINY.indexer
    ratio = {"sliding": 0, "csa": 4, "hca": 16}[name]
    each = [seen_by(n, a.window, ratio, i.topk if name == "csa" else n) for n in LENGTHS]
    window, taken, whole = (
        sum(x * n for x, n in zip(column, LENGTHS.values(), strict=True)) for column in zip(*each, strict=True)
    )
    scores = [one for one in kind.products(Documents(LENGTHS)) if one.kernels is not GEMM and one.part != "mHC"]
    found = Counter({(one.part, one.once): one.flops for one in scores})
    wanted = {(PART, False): 2 * 2 * 4 * 32 * (window + taken)}
    if name == "csa":
        assert taken < whole
        wanted |= {(INDEXERS, False): 2 * 4 * 32 * whole, (INDEXERS, True): 2 * 4 * 32 * taken}
    assert found == wanted


@pytest.mark.parametrize("name", ["sliding", "csa", "hca"])
@pytest.mark.parametrize("size", ["v4_flash", "v4_tiny"])
def test_projections_are_two_flops_a_weight(size, name):
    """Norms, sinks and biases of gates are no products; the indexer's inputs get no gradient."""
    kind, seen = SIZES[size].kinds[name], Documents({5: 1})
    flops = Counter()
    for one in kind.products(seen):
        if one.kernels is GEMM:
            flops[one.part] += one.flops
            assert one.backwards == (1 if one.part == INDEXERS else 2)
    for part in {PART, COMPRESSORS, INDEXERS} & {*kind.parts()}:
        matrices = [shape for key, shape in kind.parts()[part].items() if key.endswith(".weight") and len(shape) == 2]
        assert flops[part] == 5 * 2 * sum(rows * columns for rows, columns in matrices), part


def test_csa_sees_a_bounded_number_of_keys_and_hca_does_not():
    each = {
        name: [
            sum(p.flops for p in FLASH.kinds[name].products(Documents({n: 1})) if p.part == PART) / n
            for n in (2**16, 2**18)
        ]
        for name in ("sliding", "csa", "hca")
    }
    assert each["sliding"][1] / each["sliding"][0] == pytest.approx(1, abs=1e-3)
    assert each["csa"][1] / each["csa"][0] < 1.01
    keys = (2**18 - 2**16) / (2 * 128)
    assert each["hca"][1] - each["hca"][0] == pytest.approx(4 * 64 * 512 * keys, rel=1e-3)


def test_kept_grows_with_what_a_kind_has_more():
    a, i, h = TINY.attention, TINY.indexer, TINY.hidden
    sliding, csa, hca = (TINY.kinds[name] for name in ("sliding", "csa", "hca"))
    inner = h + 2 * a.q_lora_rank + 4 * 4 * a.head_dim + 2 * a.head_dim + a.o_groups * a.o_lora_rank
    assert sliding.kept() - sliding.around_kept() == 2 * inner + 4 * 4
    assert hca.kept() - sliding.kept() == 2 * (2 * 32 + 2 * 32 / 16)
    compressor = 2 * (2 * 2 * 32 + 2 * 32 / 4)
    assert csa.kept() - sliding.kept() == compressor + 2 * (2 * 4 * 32 + 4) + compressor + 3 * 4 * i.topk
    assert csa.normed() == h + 32 + 4 * 32 + 32


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("decoder.layers.2.self_attention.core_attention.indexer.compressor.ape", "indexer"),
        ("decoder.layers.2.self_attention.core_attention.compressor.ape", "compressor"),
        ("decoder.layers.2.self_attention_hyper_connection.bias", "mhc"),
        ("decoder.layers.2.self_attention.core_attention.attn_sink", "csa"),
    ],
)
def test_groups_of_gradients(name, group):
    assert TINY.kinds["csa"].group(name) == group and group in TINY.norm_groups
    assert {kind.group(key) for kind in TINY.kinds.values() for key in kind.shapes()} <= set(TINY.norm_groups)


def test_muon_takes_every_matrix_but_biases_of_gates_and_none_that_is_missing():
    size = TINY
    for kind in [*size.kinds.values(), size.mtp]:
        held = {
            key.split(".")[-2] for key, shape in kind.shapes().items() if len(shape) > 1 and key.endswith(".weight")
        }
        assert held == kind.matrices, kind.name


def test_a_wider_window_is_more_keys():
    wide = dataclasses.replace(
        TINY.kinds["sliding"], dims=attention.Dims(**TINY.attention.model_dump() | {"window": 33})
    )
    grown = sum(p.flops for p in wide.products(Documents({40: 1}))) - sum(
        p.flops for p in TINY.kinds["sliding"].products(Documents({40: 1}))
    )
    assert grown == 4 * 4 * 32 * (40 - 32)
