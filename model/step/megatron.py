"""Megatron's configuration of a size of NAM56R, and what those of all architectures share; ``model.step.deepseek_v4``
has the rest of DeepSeek-V4's. Nothing sets a value of a configuration elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.families import nam56r
from model.families.family import Family
from model.families.nam56r import Size
from model.kinds import catalogue
from model.kinds.path import Choice
from model.kinds.run import Run
from model.layers.captured import graphs


def megatron_config(size: Size, run: Run, chosen: dict[str, Choice]) -> Any:
    """The MLATransformerConfig of ``size`` (megatron-core 0.19.0) for ``run``, as ``configured``."""
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    own = _shape(size) | _attention(size) | _experts(size) | {"activation_func": torch.nn.functional.gelu}
    return configured(MLATransformerConfig, own, size, run, chosen)


def configured(
    of: type, own: Mapping[str, Any], size: Family, run: Run, chosen: Mapping[str, Choice], eps: float = 1e-5
) -> Any:
    """A configuration of the class ``of``: what the architecture says as its ``own``, and what all share. ``eps``: of
    norms. Call with the overlay active.

    Three attributes are for this project's layers: ``model_size``, ``model_row`` and ``model_paths``, which is
    ``chosen``, the result of ``catalogue.choose``.
    """
    import torch

    config = of(
        **own,
        **_routing(run),
        **_training(run),
        **graphs.settings(run.cuda_graphs, run.expert_parallel),
        layernorm_epsilon=eps,
        params_dtype=torch.bfloat16 if run.bf16 else torch.float32,
        pipeline_dtype=torch.bfloat16 if run.bf16 else torch.float32,
        **settings(run, chosen),
    )
    config.model_size, config.model_row, config.model_paths = size, run.row, chosen
    return config


def _shape(size: Size) -> dict[str, Any]:
    return {
        "num_layers": size.layer_count,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "ffn_hidden_size": size.ffn,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "gated_linear_unit": False,
        "mamba_state_dim": size.mamba.state,
        "mamba_head_dim": size.mamba.head_dim,
        "mamba_num_groups": size.mamba.groups,
        "mtp_num_layers": size.mtp_depths,
        "mtp_loss_scaling_factor": size.mtp_loss_coeff,
    }


def _attention(size: Size) -> dict[str, Any]:
    """MLA without norms on its low-rank activations, like Megatron's hybrid spec; DSA with index sharing."""
    a, i = size.attention, size.indexer
    offset, frequency = nam56r.index_sharing(size.layers)
    return {
        "multi_latent_attention": True,
        "q_lora_rank": a.q_lora_rank,
        "kv_lora_rank": a.kv_lora_rank,
        "qk_head_dim": a.qk_nope_dim,
        "qk_pos_emb_head_dim": a.qk_rope_dim,
        "v_head_dim": a.v_dim,
        "qk_layernorm": False,
        "rope_type": "rope",
        "rotary_base": a.rope_base,
        "rotary_percent": 1.0,
        "apply_rope_fusion": False,
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": i.heads,
        "dsa_indexer_head_dim": i.head_dim,
        "dsa_indexer_topk": i.topk,
        "dsa_indexer_loss_coeff": i.loss_coeff,
        "dsa_indexer_topk_freq": frequency,
        "dsa_indexer_skip_topk_offset": offset,
        # an orthogonal rotation of q and k for 8-bit quantization; scores are the same without it
        "dsa_indexer_rotate_activation": False,
    }


def settings(run: Run, chosen: Mapping[str, Choice]) -> dict[str, Any]:
    """What the chosen paths set; of the routers' fused kernels there are none for a CPU."""
    found: dict[str, Any] = {"dsa_kernel_backend": "none"}
    for kind, choice in chosen.items():
        found |= catalogue.PARTS[kind].path(choice.name).settings
    return found | ({"moe_router_fusion": False} if run.on_cpu else {})


def _experts(size: Size) -> dict[str, Any]:
    """Sigmoid router."""
    e = size.experts
    return {
        "num_moe_experts": e.count,
        "moe_router_topk": e.topk,
        "moe_ffn_hidden_size": e.ffn,
        "moe_shared_expert_intermediate_size": e.shared_ffn,
        "moe_router_score_function": "sigmoid",
        "moe_router_bias_update_rate": e.bias_update_rate,
        "moe_aux_loss_coeff": e.aux_loss_coeff,
    }


def _routing(run: Run) -> dict[str, Any]:
    """Routers in fp32 with a selection-only bias; on a CPU experts run one after the other."""
    return {
        "moe_router_enable_expert_bias": True,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_permute_fusion": not run.on_cpu,
        "moe_token_dispatcher_type": "allgather" if run.on_cpu else "alltoall",
        "expert_model_parallel_size": run.expert_parallel,
    }


def _training(run: Run) -> dict[str, Any]:
    return {
        "is_hybrid_model": True,
        "pipeline_model_parallel_size": run.pipeline_parallel,
        "bf16": run.bf16,
        "deterministic_mode": run.deterministic,
        "use_cpu_initialization": run.on_cpu,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "init_method_std": 0.02,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "persist_layer_norm": False,
        "calculate_per_token_loss": False,
        "recompute_granularity": "full" if run.recompute else None,
        "recompute_method": "uniform" if run.recompute else None,
        "recompute_num_layers": 1 if run.recompute else None,
    }
