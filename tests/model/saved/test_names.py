"""Each name of a checkpoint has one of safetensors; ``test_layouts`` leads back."""

import pytest

from model.families.nam56r import NAM56R
from model.saved.names import Names

NAMES = Names(NAM56R)

INDEXER = "decoder.layers.4.self_attention.core_attention.indexer"
PLAIN = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "output_layer.weight": "lm_head.weight",
    "decoder.final_norm.weight": "model.norm.weight",
    "decoder.layers.12.self_attention.linear_q_proj.weight": "model.layers.12.self_attn.q_proj.weight",
    "decoder.layers.4.self_attention.kv_layernorm.weight": "model.layers.4.self_attn.kv_a_layernorm.weight",
    f"{INDEXER}.linear_wk.weight": "model.layers.4.self_attn.indexer.wk.weight",
    f"{INDEXER}.k_norm.bias": "model.layers.4.self_attn.indexer.k_norm.bias",
    "decoder.layers.3.mlp.router.expert_bias": "model.layers.3.mlp.gate.e_score_correction_bias",
    "decoder.layers.3.mlp.router.weight": "model.layers.3.mlp.gate.weight",
    "decoder.layers.3.mlp.shared_experts.linear_fc2.weight": "model.layers.3.mlp.shared_experts.down_proj.weight",
    "decoder.layers.2.mixer.mamba.D": "model.layers.2.mamba.D",
    "decoder.layers.11.mixer.D": "model.layers.11.m2rnn.D",
    "mtp.layers.0.mtp_model_layer.layers.1.mlp.linear_fc1.weight": "model.mtp.0.block.layers.1.mlp.up_proj.weight",
    "ngram.table.weight": "ngram.table.weight",
}


@pytest.mark.parametrize("key", PLAIN)
def test_names(key):
    assert NAMES.exported(key) == PLAIN[key] and not NAMES.stacked(PLAIN[key])


def test_experts_are_numbered():
    key = "decoder.layers.3.mlp.experts.experts.linear_fc1.weight"
    name = NAMES.exported(key)
    assert NAMES.stacked(name)
    assert NAMES.of_expert(name, 17) == "model.layers.3.mlp.experts.17.up_proj.weight"
