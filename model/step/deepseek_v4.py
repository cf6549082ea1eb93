"""DeepSeek-V4 as a Megatron-Core HybridModel: the embedding copied to all streams, token ids for hash routers, MTP over
the streams; and its part of Megatron's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.experimental_attention_variant.dsa import DSAIndexerLossAutoScaler
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import init_method_normal
from torch import Tensor
from torch.nn.functional import silu

from model.families.deepseek_v4 import Size
from model.kinds.path import Choice
from model.kinds.run import Run
from model.layers.deepseek_v4.hybrid import install
from model.layers.deepseek_v4.hybrid.stack import carried
from model.layers.deepseek_v4.hyper import spread
from model.step import megatron
from model.step.network import Network

DEVIATION = 0.02  # of first matrices: transformers 5.24.0's; DeepSeek says nothing of it


def _own(size: Size) -> dict[str, Any]:
    """What Megatron's part of the model reads: embedding, head, MTP's loss, routers and experts. Its clamp of gated
    experts is DeepSeek-V4's, before the product, of the gate from above alone."""
    e = size.experts
    return {
        "num_layers": len(size.layers),
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "ffn_hidden_size": e.ffn,
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": silu,
        "activation_func_clamp_value": e.clamp,
        "init_method": init_method_normal(DEVIATION),
        "output_layer_init_method": init_method_normal(DEVIATION),
        "mtp_num_layers": size.mtp_depths or None,
        "mtp_loss_scaling_factor": size.mtp_loss_coeff,
        "num_moe_experts": e.count,
        "moe_router_topk": e.topk,
        "moe_router_topk_scaling_factor": e.scaling,
        "moe_ffn_hidden_size": e.ffn,
        "moe_shared_expert_intermediate_size": e.shared * e.ffn,
        "moe_router_score_function": "sqrtsoftplus",
        "moe_router_bias_update_rate": e.bias_update_rate,
        "moe_aux_loss_coeff": e.aux_loss_coeff,
        "dsa_indexer_loss_coeff": size.indexer.loss_coeff,
        # by this the schedule tells what one micro-batch's part of the indexers' loss is multiplied by
        "experimental_attention_variant_loss_scale_func": DSAIndexerLossAutoScaler.set_loss_scale,
    }


class DeepseekV4(Network):
    """One pipeline stage of DeepSeek-V4."""

    def _configuration(self, size: Size, run: Run, chosen: dict[str, Choice]) -> Any:
        return megatron.configured(TransformerConfig, _own(size), size, run, chosen, size.rms_norm_eps)

    def _stack(self, size: Size, chosen: Mapping[str, Choice], on_cpu: bool) -> ModuleSpec:
        return install.stack(size, chosen, on_cpu)

    def _complete(self, size: Size) -> None:
        install.streamed(self)

    def _carried(self, tokens: Tensor, packed_seq_params: PackedSeqParams) -> PackedSeqParams:
        return carried(packed_seq_params, tokens)

    def _entrance(self, tokens: Tensor, positions: Tensor, fields: Mapping[str, Tensor] | None) -> Tensor:
        """[T, 1, n d]: each token's embedding, n times."""
        words: Tensor = self.embedding(input_ids=tokens, position_ids=positions)  # [T, 1, d]
        return spread(words, self.config.model_size.hyper.streams).flatten(-2)
