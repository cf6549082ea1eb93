"""The hybrid stack's spec: Megatron-Core's modules, and ours in place of missing ones and of Transformer Engine's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.hybrid import hybrid_block
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.experimental_attention_variant import absorbed_mla, dsa
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.multi_latent_attention import MLASelfAttention, MLASelfAttentionSubmodules
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules
from torch import Tensor

from model.families.nam56r import Size
from model.layers.attention.attention import PackedAttention
from model.layers.attention.sparse import SparseAttention
from model.layers.captured.graphed import AttentionLayer, ExpertsLayer, SparseLayer
from model.layers.common.norm import LayerNorm, ResidualNorm, RMSNorm
from model.layers.common.paths import Path
from model.layers.experts import fp8
from model.layers.experts.grouped import GroupedExperts, LocalExperts
from model.layers.experts.wgrad import Linear
from model.layers.mixer import M2rnnLayer, Mamba3Layer
from model.patched import dialect, seams

CAUSAL = {"attn_mask_type": AttnMaskType.causal}


class Replicated(Linear):
    """A projection that tensor parallelism does not split; it returns (output, bias) like Megatron's."""

    def __init__(
        self, inputs: int, outputs: int, *, config: Any, init_method: Any, bias: bool = False, **_: Any
    ) -> None:
        super().__init__(inputs, outputs, bias=bias, dtype=config.params_dtype)
        init_method(self.weight)

    def forward(self, hidden: Tensor) -> tuple[Tensor, None]:
        """hidden [..., inputs] -> ([..., outputs], no bias)."""
        return super().forward(hidden), None


def _latent() -> dict[str, Any]:
    """MLA's projections; no norm on the low-rank activations."""
    column = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
    parts: dict[str, Any] = dict.fromkeys(column, ColumnParallelLinear)
    return parts | {"linear_proj": RowParallelLinear, "q_layernorm": IdentityOp, "kv_layernorm": IdentityOp}


def _attention(layer: type, module: type, submodules: Any) -> ModuleSpec:
    inner = ModuleSpec(module=module, params=CAUSAL, submodules=submodules)
    parts = TransformerLayerSubmodules(
        input_layernorm=ResidualNorm, self_attention=inner, self_attn_bda=get_bias_dropout_add
    )
    return ModuleSpec(module=layer, submodules=parts)


def _mla() -> ModuleSpec:
    submodules = MLASelfAttentionSubmodules(**_latent(), core_attention=PackedAttention)
    return _attention(AttentionLayer, MLASelfAttention, submodules)


def _dsa() -> ModuleSpec:
    """Absorbed MLA over the keys that the indexer chooses."""
    indexer = dsa.DSAIndexerSubmodules(
        linear_wq_b=Replicated, linear_wk=Replicated, k_norm=LayerNorm, linear_weights_proj=Replicated
    )
    core = ModuleSpec(
        module=SparseAttention,
        submodules=dsa.DSAttentionSubmodules(indexer=ModuleSpec(module=dsa.DSAIndexer, submodules=indexer)),
    )
    submodules = absorbed_mla.AbsorbedMLASelfAttentionSubmodules(**_latent(), core_attention=core)
    return _attention(SparseLayer, absorbed_mla.AbsorbedMLASelfAttention, submodules)


def _moe(size: Size, path: str, on_cpu: bool) -> ModuleSpec:
    grouped = path in ("grouped", "grouped_fused")
    experts = get_moe_module_spec(
        use_te=not on_cpu and path != "sequential", num_experts=size.experts.count, moe_grouped_gemm=grouped
    )
    if path == "grouped_fused":
        from model.layers.experts.experts import WeightedExperts  # imports Triton

        parts = experts.keywords["submodules"]
        weighted = functools.partial(WeightedExperts, **parts.experts.keywords)
        parts = dataclasses.replace(parts, experts=weighted)
        experts = functools.partial(experts.func, submodules=parts)
    if path == "grouped_mm":
        linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
        parts = dataclasses.replace(
            experts.keywords["submodules"], experts=functools.partial(GroupedExperts, submodules=linear)
        )
        experts = functools.partial(LocalExperts, submodules=parts)
    parts = TransformerLayerSubmodules(pre_mlp_layernorm=ResidualNorm, mlp=experts, mlp_bda=get_bias_dropout_add)
    return ModuleSpec(module=ExpertsLayer, submodules=parts)


def _mlp(column: type, row: type) -> ModuleSpec:
    dense = ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=column, linear_fc2=row))
    parts = TransformerLayerSubmodules(pre_mlp_layernorm=ResidualNorm, mlp=dense, mlp_bda=get_bias_dropout_add)
    return ModuleSpec(module=MLPLayer, submodules=parts)


def _mtp(column: type) -> ModuleSpec:
    layer = MultiTokenPredictionLayerSubmodules(
        enorm=RMSNorm, hnorm=RMSNorm, eh_proj=column, mtp_model_layer=None, layer_norm=RMSNorm
    )
    depths = [ModuleSpec(module=MultiTokenPredictionLayer, submodules=layer)]
    return ModuleSpec(
        module=MultiTokenPredictionBlock, submodules=MultiTokenPredictionBlockSubmodules(layer_specs=depths)
    )


def hybrid_stack(size: Size, chosen: Mapping[str, Path], on_cpu: bool) -> ModuleSpec:
    """Spec of the main stack and its MTP depths, which alone have dense MLPs; ``chosen``: every kind's path.

    Of the paths of MoE, "sequential" runs experts one after the other; "grouped" is Transformer Engine's grouped
    product, and "grouped_fused" adds one kernel between two products; "grouped_mm" is torch's grouped product, which
    takes the experts' counts from the device.
    """
    seams.FINAL_NORM(RMSNorm)
    if chosen["rope"].name == "triton":
        from model.layers.attention import tables  # imports Triton

        tables.stand_in()
    eight = chosen["mtp_proj"].name == "fp8"
    column, row = (fp8.Column, fp8.Row) if eight else (ColumnParallelLinear, RowParallelLinear)
    parts = dialect.hybrid_submodules(
        mamba_layer=ModuleSpec(module=Mamba3Layer),
        gdn_layer=ModuleSpec(module=M2rnnLayer),
        mla_layer=_mla(),
        dsa_layer=_dsa(),
        moe_layer=_moe(size, chosen["moe"].name, on_cpu),
        mlp_layer=_mlp(column, row),
        mtp_block_spec=_mtp(column),
    )
    return ModuleSpec(module=hybrid_block.HybridStack, submodules=parts)
