"""The hybrid stack's spec: each layer kind's, and Megatron-Core's own modules in place of Transformer Engine's."""

from __future__ import annotations

from collections.abc import Mapping

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.hybrid import hybrid_block
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from model.families.family import Family
from model.kinds.path import Choice, called
from model.layers.common.norm import ResidualNorm, RMSNorm
from model.layers.linear import fp8
from model.patched import dialect


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


def hybrid_stack(size: Family, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """Spec of the main stack and its MTP depths, which alone have dense MLPs; ``chosen``: every kind's path."""
    column, row = (
        (fp8.Column, fp8.Row) if chosen["mtp_proj"].name == "fp8" else (ColumnParallelLinear, RowParallelLinear)
    )
    parts = dialect.hybrid_submodules(
        **{kind.slot: called(kind.spec)(size, chosen, on_cpu) for kind in size.kinds.values()},
        mlp_layer=_mlp(column, row),
        mtp_block_spec=_mtp(column),
        final_norm=RMSNorm,
    )
    return ModuleSpec(module=hybrid_block.HybridStack, submodules=parts)
