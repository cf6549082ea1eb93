"""config.json of DeepSeek-V4: the published ones are the sizes, and what says other maths is refused by its field."""

import copy
import json

import pytest

from model.families import deepseek_v4_config as public
from model.families.deepseek_v4 import SIZES
from patchlane.base.errors import PatchlaneError
from patchlane.base.exits import Exit

# DeepSeek-V4-Flash's, as it is published; Pro's differences
FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "expert_dtype": "fp4",
    "hc_eps": 1e-06,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 129280,
}
PRO = FLASH | {
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],
    "hidden_size": 7168,
    "index_topk": 1024,
    "moe_intermediate_size": 3072,
    "n_routed_experts": 384,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "o_groups": 16,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 2.5,
}
YARN = FLASH["rope_scaling"]


@pytest.mark.parametrize(("said", "name"), [(FLASH, "v4_flash"), (PRO, "v4_pro")])
def test_the_published_ones_are_the_sizes(said, name):
    found = public.read(json.loads(json.dumps(said)), "config.json")
    assert found == SIZES[name] and public.quantised(said) == "quantization_config"


@pytest.mark.parametrize("name", SIZES)
def test_every_size_is_read_from_what_is_written(name):
    said = public.written(SIZES[name], "bfloat16", 256)
    assert public.read(json.loads(json.dumps(said)), "config.json") is SIZES[name]
    assert public.quantised(said) is None and (said["dtype"], said["eos_token_id"]) == ("bfloat16", 256)


def test_one_that_no_size_here_has_is_read_too():
    found = public.read(FLASH | {"hidden_size": 2048, "rope_theta": 5000.0}, "config.json")
    assert (found.hidden, found.attention.rope_theta) == (2048, 5000.0) and found.name not in SIZES
    changed = {"name": "v4_flash", "hidden": 4096, "attention": SIZES["v4_flash"].attention}
    assert found.model_copy(update=changed) == SIZES["v4_flash"]


@pytest.mark.parametrize("field", [*public.DIMENSIONS, *sorted(public.LAYERS - {"num_hidden_layers"})])
def test_each_dimension_is_of_its_own_field(field):
    """A field that is left unread would be none of the size's: another value is another size, or refused."""
    said = public.written(SIZES["v4_tiny"], "float32", None)
    of_deepseek = {"compress_ratios": [0, 4, 16, 0], "num_hash_layers": 2}
    if field in of_deepseek:
        said |= {"layer_types": None, "mlp_layer_types": None, "compress_ratios": [0, 4, 16, 4], "num_hash_layers": 1}
        assert public.read(said, "f") is SIZES["v4_tiny"]
        said |= {field: of_deepseek[field]}
    elif field == "compress_rates":
        said[field] = said[field] | {"heavily_compressed_attention": 32}
    elif isinstance(said[field], list):
        said[field] = [said[field][0], *said[field][:-1]]
    else:
        said[field] *= 2
    try:
        assert public.as_public(public.read(said, "f")) != public.as_public(SIZES["v4_tiny"])
    except PatchlaneError as error:  # heads and groups, widths and RoPE, depths' ratios
        assert field in error.what or "rope" in error.what


def nested(said, **changed):
    """transformers' form of RoPE, with YaRN's fields changed."""
    main = {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125}
    yarn = {name: value for name, value in YARN.items() if name != "type"} | {"rope_type": "yarn"}
    compress = yarn | main | {"rope_type": "yarn", "rope_theta": 160000, "attention_factor": 1.0} | changed
    said["rope_parameters"] = {"main": main, "compress": compress}
    del said["rope_scaling"]


def test_both_forms_of_rope_are_the_same():
    said = copy.deepcopy(FLASH)
    nested(said)
    assert public.read(said, "f") == SIZES["v4_flash"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"attention_bias": True}, "attention_bias"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"model_type": "deepseek_v41"}, "model_type"),
        ({"kv_source_layer_ids": [2]}, "kv_source_layer_ids is unknown"),
        ({"hc_mult": "four"}, "hc_mult"),
        ({"index_topk": None}, "index_topk"),
        ({"num_hidden_layers": 44}, "compress_ratios"),
        ({"num_hidden_layers": 45}, "num_hidden_layers"),
        ({"compress_ratios": [0, 0, *[4, 128] * 20, 4, 4]}, "compress_ratios"),
        ({"compress_ratios": [0, 0, *[4, 64] * 20, 4, 0]}, "compress_ratios"),
        ({"compress_ratios": 4}, ""),
        ({"layer_types": ["linear_attention"] * 43}, "layer_types"),
        ({"mlp_layer_types": ["moe"] * 42 + ["hash_moe"]}, "mlp_layer_types"),
        ({"num_hash_layers": None}, "num_hash_layers"),
        ({"qk_rope_head_dim": None}, "qk_rope_head_dim"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"rope_scaling": None}, "rope_scaling"),
        ({"rope_scaling": YARN | {"type": "linear"}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"attention_factor": 1.277}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"mscale": 1.0}}, "rope_scaling.mscale"),
        ({"rope_scaling": {name: YARN[name] for name in YARN if name != "factor"}}, "rope_scaling.factor"),
    ],
    ids=str,
)
def test_other_maths_is_refused_by_its_field(changed, named):
    if changed.get("num_hidden_layers") == 44:  # MTP's ratio, which is 0, would be one of a layer
        changed = changed | {"compress_ratios": [*FLASH["compress_ratios"][:-1], 4, 4]}
    with pytest.raises(PatchlaneError) as refused:
        public.read(FLASH | changed, "folder/config.json")
    assert refused.value.what.startswith("folder/config.json: ") and named in refused.value.what
    assert refused.value.exit_code is Exit.USAGE


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attention_factor": None}, "rope_parameters.compress"),
        ({"rope_theta": 40000}, "rope_parameters.compress.rope_theta"),
        ({"partial_rotary_factor": 0.5}, "rope_parameters.compress.partial_rotary_factor"),
        ({"truncate": False}, "rope_parameters.compress.truncate"),
    ],
    ids=str,
)
def test_rope_of_transformers_form_is_refused_by_its_field(changed, named):
    said = copy.deepcopy(FLASH)
    nested(said, **changed)
    with pytest.raises(PatchlaneError, match=named):
        public.read(said, "f")
    nested(said | {"rope_scaling": 0})
    said["rope_parameters"]["main"] = said["rope_parameters"]["main"] | {"rope_type": "yarn"}
    with pytest.raises(PatchlaneError, match="rope_parameters"):
        public.read(said, "f")


@pytest.mark.parametrize("field", ["model_type", "num_hidden_layers", "compress_ratios", *public.DIMENSIONS])
def test_a_missing_field_is_named(field):
    with pytest.raises(PatchlaneError, match=f"{field} is missing"):
        public.read({name: value for name, value in FLASH.items() if name != field}, "f")


def test_a_size_that_the_public_model_cannot_have_is_not_written():
    changed = SIZES["v4_tiny"].model_copy(update={"experts": SIZES["v4_tiny"].experts.model_copy(update={"shared": 2})})
    with pytest.raises(PatchlaneError, match="n_shared_experts"):
        public.written(changed, "float32", None)
