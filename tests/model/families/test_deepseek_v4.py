"""DeepSeek-V4's sizes: their layers, what does not fit, and how many parameters they and transformers' model have."""

from collections import Counter

import pytest
import v4_hf
from pydantic import ValidationError

from model.alignment.deepseek_v4 import public
from model.definition import parameters
from model.families import deepseek_v4_config, pattern
from model.families.deepseek_v4 import FLASH, SIZES, Size
from model.families.nam56r import NAM56R
from model.kinds.kind import GEMM
from model.profile.work import Documents

PRO, TINY = SIZES["v4_pro"], SIZES["v4_tiny"]
# Published: without MTP, one depth of MTP, active without MTP and without and with the embedding
PUBLISHED = {
    "v4_flash": (284_332_240_471, 6_610_048_891, 13_799_632_471, 13_270_101_591),
    "v4_pro": (1_572_997_201_763, 25_840_145_979, 49_779_081_059, 48_852_402_019),
}


def test_layers_of_the_public_sizes():
    counts = {
        size.name: {kind: size.count(kind) for kind in ("sliding", "csa", "hca", "hash_moe", "topk_moe")}
        for size in (FLASH, PRO)
    }
    assert counts == {
        "v4_flash": {"sliding": 2, "csa": 21, "hca": 20, "hash_moe": 3, "topk_moe": 40},
        "v4_pro": {"sliding": 0, "csa": 30, "hca": 31, "hash_moe": 3, "topk_moe": 58},
    }
    assert pattern.megatron_pattern(FLASH.layers[:10], FLASH.mtp, 1, (4,)) == "WEWE|CEHECE/WE"
    assert FLASH.numbers("hash_moe") == PRO.numbers("hash_moe") == [2, 4, 6]
    assert (FLASH.numbers("csa")[:2], PRO.numbers("hca")[:3]) == ([5, 9], [1, 3, 7])


@pytest.mark.parametrize(
    ("size", "theirs"),
    [
        (
            FLASH,
            {"hidden_size": 4096, "heads": 64, "q_lora_rank": 1024, "o_groups": 8, "experts": 256, "ffn": 2048}
            | {"index_topk": 512, "scaling": 1.5},
        ),
        (
            PRO,
            {"hidden_size": 7168, "heads": 128, "q_lora_rank": 1536, "o_groups": 16, "experts": 384, "ffn": 3072}
            | {"index_topk": 1024, "scaling": 2.5},
        ),
    ],
    ids=["flash", "pro"],
)
def test_the_public_configurations(size, theirs):
    """All that their config.json says; parameters follow from a part of it alone."""
    a, i, e, m = size.attention, size.indexer, size.experts, size.hyper
    found = {"hidden_size": size.hidden, "heads": size.heads, "q_lora_rank": a.q_lora_rank, "o_groups": a.o_groups}
    found |= {"experts": e.count, "ffn": e.ffn, "index_topk": i.topk, "scaling": e.scaling}
    assert found == theirs
    assert (size.vocab, size.mtp_depths, size.hash_layers, size.rms_norm_eps) == (129_280, 1, 3, 1e-6)
    assert (a.head_dim, a.qk_rope_head_dim, a.o_lora_rank, a.window) == (512, 64, 1024, 128)
    assert (a.rope_theta, a.compress_rope_theta) == (10_000, 160_000)
    yarn = a.yarn
    assert (yarn.factor, yarn.original_positions, yarn.beta_fast, yarn.beta_slow) == (16, 65_536, 32, 1)
    assert (i.heads, i.head_dim, e.topk, e.shared, e.clamp) == (64, 128, 6, 1, 10)
    assert (m.streams, m.sinkhorn_iterations, m.eps) == (4, 20, 1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_every_layer_is_attention_then_experts_and_its_ratio_says_which(name):
    size = SIZES[name]
    assert [layer.number for layer in size.layers] == [*range(1, 2 * len(size.compress_ratios) + 1)]
    for place, ratio in enumerate(size.compress_ratios):
        attention, experts = size.layers[2 * place].of, size.layers[2 * place + 1].of
        assert getattr(attention, "ratio", 0) == ratio and attention.symbol == "WCH"[(ratio > 0) + (ratio > 4)]
        assert experts.name == ("hash_moe" if place < size.hash_layers else "topk_moe")


@pytest.mark.parametrize("name", ["v4_tiny", "v4_small", "v4_medium"])
def test_sizes_of_our_own_have_every_kind(name):
    size = SIZES[name]
    assert all(size.count(kind) for kind in size.kinds) and size.mtp_depths == 1


def test_the_medium_size_has_flashs_layers():
    medium, left_out = SIZES["v4_medium"], ("name", "compress_ratios", "experts")
    same = [one.model_dump(exclude={*left_out}) for one in (FLASH, medium)]
    assert same[0] == same[1] and medium.kinds["csa"] == FLASH.kinds["csa"]
    assert medium.experts.model_copy(update={"count": FLASH.experts.count}) == FLASH.experts


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"heads": 5}, r"2 groups.* 5 heads"),
        ({"compress_ratios": (0, 4, 128, 4)}, r"layer 3\b.*\b128\b.*\b16\b"),
        ({"compress_ratios": ()}, "compress_ratios"),
        ({"hash_layers": 5}, r"\b5 layers.*\b4\b"),
        ({"attention": {"qk_rope_head_dim": 15}}, r"\b15\b.*odd"),
        ({"attention": {"qk_rope_head_dim": 34}}, r"\b34\b.*\bhead has 32"),
        ({"indexer": {"head_dim": 14}}, r"\b16\b.*\bindexer's head has 14"),
        ({"attention": {"csa_ratio": 16}}, r"CSA's ratio 16"),
        ({"attention": {"csa_ratio": 0}}, r"CSA's ratio 0"),
        ({"experts": {"topk": 9}}, r"\b9 experts of a token, of 8"),
        ({"experts": {"topk": 0}}, r"experts of a token: 0"),
        ({"attention": {"window": 0}}, "window: 0"),
        ({"indexer": {"topk": 0}}, "index topk: 0"),
        ({"hyper": {"streams": 0}}, "streams: 0"),
        ({"hyper": {"sinkhorn_iterations": 0}}, "iterations: 0"),
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"ffn": 3}, "ffn"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(changed, said):
    whole = TINY.model_dump()
    for field, value in changed.items():
        whole[field] = whole[field] | value if isinstance(value, dict) else value
    with pytest.raises(ValidationError, match=said):
        Size.model_validate(whole)


def test_coefficients_change_no_layer_and_a_record_is_no_other_familys():
    given = {"mtp_loss_coeff": 0.3, "aux_loss_coeff": 0.2, "bias_update_rate": 0.1, "indexer_loss_coeff": 1.0}
    other = TINY.with_coefficients(given)
    assert other.coefficients == given and other != TINY
    assert TINY.same_model(other.model_dump(mode="json")) and not TINY.same_model(PRO.model_dump(mode="json"))
    for one, two in ((TINY, NAM56R), (NAM56R, TINY)):
        assert not one.same_model(two.model_dump(mode="json"))
    assert Size.model_validate_json(PRO.model_dump_json()) == PRO


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_of_the_public_sizes_to_the_last_parameter(name):
    size = SIZES[name]
    main, depth, active, without_embedding = PUBLISHED[name]
    assert (parameters.total(size, mtp=False), size.mtp.number()) == (main, depth)
    assert parameters.total(size) == main + depth
    assert parameters.active(size, mtp=False) == active
    assert active - parameters.by_part(size)["embedding"] == without_embedding
    idle = (size.experts.count - size.experts.topk) * 3 * size.hidden * size.experts.ffn
    assert parameters.active(size) == active + depth - idle


def test_totals_of_our_own_sizes():
    totals = {name: parameters.total(SIZES[name], mtp=False) for name in ("v4_tiny", "v4_small", "v4_medium")}
    assert totals == {"v4_tiny": 1_255_717, "v4_small": 973_307_515, "v4_medium": 4_874_527_999}


@pytest.fixture(scope="module")
def transformers():
    v4_hf.needed()
    return public.require()


def configuration(transformers, size):
    """transformers' of a size."""
    return transformers.DeepseekV4Config(**deepseek_v4_config.written(size, "float32", None))


def test_flash_is_what_transformers_takes_for_it(transformers):
    """All fields of the maths but the layers' kinds, whose default there is V4-Pro's, and YaRN, which it has not."""
    default, ours = (one.to_dict() for one in (transformers.DeepseekV4Config(), configuration(transformers, FLASH)))
    other = {field for field in default.keys() | ours.keys() if default.get(field) != ours.get(field)}
    assert other - deepseek_v4_config.FREE == {"layer_types", "rope_parameters"}
    main, compress = (ours["rope_parameters"][kind] for kind in ("main", "compress"))
    assert main == default["rope_parameters"]["main"]
    bases = {name: compress[name] for name in ("rope_theta", "partial_rotary_factor")}
    assert default["rope_parameters"]["compress"] == {"rope_type": "default"} | bases


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_as_many_as_transformers_has(name, transformers):
    """Their names and shapes: tests/model/alignment/deepseek_v4/test_public.py."""
    import torch

    size = SIZES[name]
    with torch.device("meta"):
        model = transformers.DeepseekV4ForCausalLM(configuration(transformers, size))
    biases = parameters.by_part(size)["selection biases"]
    assert biases == size.count("topk_moe") * size.experts.count
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert parameters.total(size, mtp=False) == counted + biases


def multiplied(transformers, size, tokens):
    """{module: FLOPs} of products in a forward pass of transformers' model over one document."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = transformers.DeepseekV4ForCausalLM(configuration(transformers, size))
    model.set_experts_implementation("eager")  # grouped products are not counted
    for name, table in model.named_buffers():
        if name.endswith("tid2eid"):  # it begins with one expert for all
            table.copy_(torch.arange(table.numel()).view_as(table) % size.experts.count)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.arange(tokens)[None] % size.vocab, use_cache=False)
    prefix = "DeepseekV4ForCausalLM."
    return {name.removeprefix(prefix): sum(found.values()) for name, found in counted.get_flop_counts().items()}


def test_products_with_weights_are_those_that_transformers_computes(transformers):
    """It scores every compressed key for every query, and mixes streams without products that are counted."""
    size, tokens = TINY, 64
    found, seen = multiplied(transformers, size, tokens), Documents({tokens: 1})
    every_key = 2 * size.indexer.heads * size.indexer.head_dim * tokens * (tokens // size.attention.csa_ratio)
    lines = ("q_a_proj", "q_b_proj", "kv_proj", "o_a_proj", "o_b_proj")
    for number in range(len(size.compress_ratios)):
        layer, ours = f"model.layers.{number}.", []
        attention, experts = (size.layers[2 * number + place].of for place in (0, 1))
        for kind in (attention, experts):
            ours.append(Counter())
            for one in kind.products(seen):
                ours[-1][one.part] += one.flops if one.kernels is GEMM else 0
        theirs = {
            "attention": sum(found[f"{layer}self_attn.{line}"] for line in lines),
            "compressors": found.get(f"{layer}self_attn.compressor", 0),
            "mHC": found[f"{layer}attn_hc"],
        }
        if attention.name == "csa":
            theirs["compressors"] -= every_key
        inner = ours[0]["compressors"] + ours[0]["indexers"]
        assert theirs == {"attention": ours[0]["attention"], "compressors": inner, "mHC": ours[0]["mHC"]}
        assert ours[1] == {"MoE": found[f"{layer}mlp"], "mHC": found[f"{layer}ffn_hc"]}
    (logits,) = [one.flops for one in size.head.products(seen) if one.part == "logits"]
    assert logits == (1 + size.mtp_depths) * found["lm_head"]
