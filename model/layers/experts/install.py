"""Mixture of experts as a layer of Megatron's hybrid stack."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import TransformerLayerSubmodules

from model.kinds.path import Choice
from model.layers.captured.graphed import ExpertsLayer
from model.layers.common.norm import ResidualNorm
from model.layers.experts.grouped import GroupedExperts, LocalExperts


def layer(size: Any, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
    """The layer's spec; arguments as every kind's.

    Of its paths, "sequential" runs experts one after the other; "grouped_fused" is Transformer Engine's grouped product
    with one kernel between two products; "grouped_mm" is torch's grouped product, which takes the experts' counts from
    the device.
    """
    path = chosen["moe"].name
    experts = get_moe_module_spec(
        use_te=not on_cpu and path != "sequential",
        num_experts=size.experts.count,
        moe_grouped_gemm=path == "grouped_fused",
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
