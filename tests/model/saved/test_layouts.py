"""How weights lie in files: each tensor of a checkpoint once in each layout that is read or written."""

import pytest

from model.definition import parameters
from model.families.sizes import SIZES
from model.saved import layouts
from model.saved.public import Place
from patchlane.base.errors import PatchlaneError

TINY, OTHER = SIZES["v4_tiny"], SIZES["nam56r_tiny"]
EXPERT = "decoder.layers.3.mlp.experts.experts.linear_fc1.weight"
MTP = "mtp.layers.0.mtp_model_layer.layers.0.self_attention.linear_kv_proj.weight"
INDEXER = "decoder.layers.2.self_attention.core_attention.indexer.compressor.norm.weight"
LATENT = "decoder.layers.2.self_attention.kv_layernorm.weight"
# {how they are called: {a checkpoint's key: its names}}; the two last as transformers 5.24.0 was seen to write them
NAMED = {
    "public": {
        EXPERT: ["model.layers.1.mlp.experts.gate_up_proj"],
        MTP: ["mtp.0.block.layers.0.self_attn.kv_proj.weight"],
        INDEXER: ["model.layers.1.self_attn.compressor.indexer.kv_norm.weight"],
        LATENT: ["model.layers.1.self_attn.kv_norm.weight"],
        "decoder.hc_head.scale": ["model.hc_head.hc_scale"],
    },
    "makers": {
        EXPERT: [f"layers.1.ffn.experts.{number}.{one}.weight" for number in range(8) for one in ("w1", "w3")],
        MTP: ["mtp.0.attn.wkv.weight"],
        INDEXER: ["layers.1.attn.indexer.compressor.norm.weight"],
        LATENT: ["layers.1.attn.kv_norm.weight"],
        "decoder.hc_head.scale": ["hc_head_scale"],
        "mtp.layers.0.hc_head.scale": ["mtp.0.hc_head_scale"],
        "mtp.layers.0.final_layernorm.weight": ["mtp.0.norm.weight"],
        "embedding.word_embeddings.weight": ["embed.weight"],
        "decoder.layers.3.mlp.router.expert_bias": ["layers.1.ffn.gate.bias"],
    },
    "public, resaved": {
        EXPERT: ["model.layers.1.mlp.experts.gate_up_proj"],
        INDEXER: ["model.layers.1.self_attn.compressor.indexer.norm.weight"],
        LATENT: ["model.layers.1.self_attn.norm.weight"],
    },
    "makers, resaved": {
        EXPERT: [f"model.layers.1.ffn.experts.{number}.{one}.weight" for number in range(8) for one in ("w1", "w3")],
        MTP: ["mtp.0.attn.wkv.weight"],
        LATENT: ["model.layers.1.attn.norm.weight"],
        "decoder.hc_head.scale": ["model.hc_head.hc_scale"],
        "embedding.word_embeddings.weight": ["model.embed_tokens.weight"],
        "output_layer.weight": ["head.weight"],
    },
}


def names_of(layout, key):
    return [name for name, place in layout.items() if place.key == key]


@pytest.mark.parametrize("called", NAMED)
def test_names_find_their_layout_and_it_has_every_tensor_once(called):
    first = [name for names in NAMED[called].values() for name in names]
    layout = layouts.of(TINY, first)
    assert {key: names_of(layout, key) for key in NAMED[called]} == NAMED[called]
    shapes = parameters.shapes(TINY)
    assert {place.key for place in layout.values()} == shapes.keys()
    counted = dict.fromkeys(shapes, 0)
    for place in layout.values():
        part = 1
        for extent in place.shape(shapes[place.key]):
            part *= extent
        counted[place.key] += part
    assert len(set(layout.values())) == len(layout)
    for key, shape in shapes.items():
        whole = 1
        for extent in shape:
            whole *= extent
        assert counted[key] == whole, key


def test_an_export_is_by_the_public_model_s_names():
    assert layouts.written(TINY) == layouts.of(TINY, NAMED["public"][LATENT])
    assert not [name for name in layouts.written(TINY) if "decoder" in name or "linear_" in name]


def test_an_architecture_without_a_public_model_has_its_own_names_alone():
    layout = layouts.of(OTHER, ["embed.weight"])
    assert layout == layouts.written(OTHER)
    key = "decoder.layers.3.mlp.experts.experts.linear_fc1.weight"
    found = {name: place for name, place in layout.items() if place.key == key}
    assert found == {
        f"model.layers.3.mlp.experts.{number}.up_proj.weight": Place(key, expert=number)
        for number in range(OTHER.experts.count)
    }
    assert not any(layouts.may_lack(OTHER, place) for place in layout.values())


def test_two_tensors_of_one_name_are_refused(monkeypatch):
    monkeypatch.setattr(layouts.Names, "of_makers", lambda self, name: name.replace("q_a_norm", "kv_norm"))
    with pytest.raises(PatchlaneError, match="kv_norm"):
        layouts.of(TINY, [])
