"""Core attention of the full MLA layers over packed documents; DSA's sparse one is Megatron's own.

Takes the place that Transformer Engine's DotProductAttention has in Megatron's hybrid spec, with its contract for
``qkv_format="thd"``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.layers.attention import logits
from model.layers.attention.logits import document_of


def masked_attention(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scale: float) -> Tensor:
    """query, key [T, n, d], value [T, n, dv] -> [T, n, dv]; each token sees its document up to itself. Any dtype."""
    for given in (query, key, value):
        if given.requires_grad:  # torch gives some transposed, and Megatron's fused rotary embedding takes none of them
            given.register_hook(Tensor.contiguous)
    document = document_of(cu_seqlens, query.shape[0])
    visible = (document[:, None] == document[None, :]).tril()  # [T, T]
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # [1, n, T, .]
    return scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)[0].transpose(0, 1)


@functools.cache
def _fused(heads: int, widths: tuple[int, int], scale: float) -> Any:
    """Transformer Engine's attention. It has no parameters, and as a layer's own it would add state to checkpoints."""
    from transformer_engine.pytorch import DotProductAttention

    return DotProductAttention(
        heads, widths, attention_dropout=0.0, qkv_format="thd", attn_mask_type="padding_causal", softmax_scale=scale
    )


def cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, longest: int, scale: float
) -> Tensor:
    """``masked_attention`` by cuDNN through Transformer Engine: CUDA, bf16 or fp16; values keep their own width."""
    heads, width = value.shape[1:]
    result: Tensor = _fused(heads, (query.shape[-1], width), scale)(
        query,
        key,
        value,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        pad_between_seqs=False,
    )
    return result.view(-1, heads, width)


class PackedAttention(MegatronModule):
    """Causal attention within each packed document; ``config.model_paths["mla"]`` says by which kernel."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)
        self.path: str = config.model_paths["mla"].name

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> Tensor:
        """query, key [T, n, d], value [T, n, dv] -> [T, n, dv]."""
        logits.note(self, self.config, query, key, packed_seq_params, self.scale)
        bounds = packed_seq_params.cu_seqlens_q
        if self.path == "cudnn":
            return cudnn_attention(query, key, value, bounds, packed_seq_params.max_seqlen_q, self.scale)
        return masked_attention(query, key, value, bounds, self.scale)
