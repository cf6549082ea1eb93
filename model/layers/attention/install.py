"""MLA, dense and sparse, as layers of Megatron's hybrid stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.experimental_attention_variant import absorbed_mla, dsa
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from model.kinds.path import Choice
from model.layers.attention.attention import PackedAttention
from model.layers.attention.sparse import SparseAttention
from model.layers.captured.graphed import AttentionLayer, SparseLayer
from model.layers.common.norm import LayerNorm, ResidualNorm
from model.layers.linear.replicated import Replicated


def dense(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The spec of MLA over all keys of a document; arguments as every kind's."""
    submodules = MLASelfAttentionSubmodules(**_latent(), core_attention=PackedAttention)
    return _attention(AttentionLayer, MLASelfAttention, submodules)


def sparse(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The spec of absorbed MLA over the keys that the indexer chooses; arguments as every kind's."""
    indexer = dsa.DSAIndexerSubmodules(
        linear_wq_b=Replicated, linear_wk=Replicated, k_norm=LayerNorm, linear_weights_proj=Replicated
    )
    core = ModuleSpec(
        module=SparseAttention,
        submodules=dsa.DSAttentionSubmodules(indexer=ModuleSpec(module=dsa.DSAIndexer, submodules=indexer)),
    )
    submodules = absorbed_mla.AbsorbedMLASelfAttentionSubmodules(**_latent(), core_attention=core)
    return _attention(SparseLayer, absorbed_mla.AbsorbedMLASelfAttention, submodules)


def _latent() -> dict[str, Any]:
    """MLA's projections; no norm on the low-rank activations."""
    column = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
    parts: dict[str, Any] = dict.fromkeys(column, ColumnParallelLinear)
    return parts | {"linear_proj": RowParallelLinear, "q_layernorm": IdentityOp, "kv_layernorm": IdentityOp}


def _attention(layer: type, module: type, submodules: Any) -> ModuleSpec:
    causal = {"attn_mask_type": AttnMaskType.causal}
    inner = ModuleSpec(module=module, params=causal, submodules=submodules)
    parts = TransformerLayerSubmodules(
        input_layernorm=ResidualNorm, self_attention=inner, self_attn_bda=get_bias_dropout_add
    )
    return ModuleSpec(module=layer, submodules=parts)
