"""Names of weights in a Megatron checkpoint and in safetensors, one to one.

Where Hugging Face's DeepSeek-V3 has a name for the same thing it is that name
(transformers/models/deepseek_v3/modeling_deepseek_v3.py @ v4.57.0): ``model.layers.4.self_attn.kv_b_proj.weight``. A
checkpoint holds a layer's experts as one tensor [experts, out, in], safetensors hold one an expert.
"""

from __future__ import annotations

import re

# (part of a checkpoint's name, part of the other name); each replaced where it stands between dots, the first that fits
PARTS = [
    ("embedding.word_embeddings", "model.embed_tokens"),
    ("output_layer", "lm_head"),
    ("decoder.final_norm", "model.norm"),
    ("decoder.layers", "model.layers"),
    ("mtp.layers", "model.mtp"),
    ("mtp_model_layer", "block"),
    ("self_attention.core_attention.indexer.linear_wq_b", "self_attn.indexer.wq_b"),
    ("self_attention.core_attention.indexer.linear_wk", "self_attn.indexer.wk"),
    ("self_attention.core_attention.indexer.linear_weights_proj", "self_attn.indexer.weights_proj"),
    ("self_attention.core_attention.indexer", "self_attn.indexer"),
    ("self_attention.linear_q_down_proj", "self_attn.q_a_proj"),
    ("self_attention.q_layernorm", "self_attn.q_a_layernorm"),
    ("self_attention.linear_q_up_proj", "self_attn.q_b_proj"),
    ("self_attention.linear_q_proj", "self_attn.q_proj"),
    ("self_attention.linear_kv_down_proj", "self_attn.kv_a_proj_with_mqa"),
    ("self_attention.kv_layernorm", "self_attn.kv_a_layernorm"),
    ("self_attention.linear_kv_up_proj", "self_attn.kv_b_proj"),
    ("self_attention.linear_proj", "self_attn.o_proj"),
    ("pre_mlp_layernorm", "post_attention_layernorm"),
    ("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias"),
    ("mlp.router", "mlp.gate"),
    ("mlp.experts.experts.linear_fc1", "mlp.experts.up_proj"),
    ("mlp.experts.experts.linear_fc2", "mlp.experts.down_proj"),
    ("mlp.shared_experts.linear_fc1", "mlp.shared_experts.up_proj"),
    ("mlp.shared_experts.linear_fc2", "mlp.shared_experts.down_proj"),
    ("mlp.linear_fc1", "mlp.up_proj"),
    ("mlp.linear_fc2", "mlp.down_proj"),
    ("mixer.mamba", "mamba"),
    ("mixer", "m2rnn"),
]
STACKED = re.compile(r"\.mlp\.experts\.(up|down)_proj\.")
EXPERT = re.compile(r"(\.mlp\.experts)\.(\d+)\.")


def exported(key: str) -> str:
    """The name for safetensors of a checkpoint's ``key``; of all experts of a layer without a number."""
    return _exchanged(key, PARTS)


def imported(name: str) -> tuple[str, int | None]:
    """(the checkpoint's key of a name in safetensors; the expert's number where it is one of a layer's)."""
    found = EXPERT.search(name)
    key = _exchanged(EXPERT.sub(r"\1.", name), [(new, old) for old, new in PARTS])
    return key, int(found[2]) if found else None


def of_expert(name: str, number: int) -> str:
    """The name of one expert's part of a tensor that ``exported`` names for all."""
    return name.replace(".mlp.experts.", f".mlp.experts.{number}.")


def stacked(name: str) -> bool:
    """Whether a name that ``exported`` gives is of all experts of a layer."""
    return STACKED.search(name) is not None


def _exchanged(name: str, parts: list[tuple[str, str]]) -> str:
    for old, new in parts:
        name = re.sub(rf"(^|\.){re.escape(old)}(?=\.|$)", rf"\g<1>{new}", name, count=1)
    return name
