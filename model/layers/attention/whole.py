"""Queries, keys and values of dense MLA that are written whole: no halves are joined, nor are their gradients.

Keys and values are by Megatron's own kernels (``fused_apply_mla_rope_for_kv``, megatron/core/fusions/
fused_mla_yarn_rope_apply.py @ 5be9626709af2722333bf54797c954c09edeada3), which its configuration refuses beside DSA and
for plain rotary embedding. Queries are by ``rotary.rotate_kernel`` and a copy, each into its part of one tensor:
Megatron's kernel for queries moves two bytes at a time. Tokens turn by their places in their documents, from 0.
Absorbed MLA and DSA's indexer are written whole by pack 50, in upstream's own code.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from megatron.core.models.common.embeddings import RotaryEmbedding
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from torch import Tensor, nn

from model.kinds import mla as kind
from model.layers.attention.rotary import Tables, rotated
from model.layers.common import documents
from model.patched import seams


class RotaryTables(RotaryEmbedding):
    """Megatron's rotary embedding, with the method of its YaRN that its fused kernels' caller asks."""

    def get_cached_cos_sin(self, length: int, dtype: torch.dtype, packed_seq: bool) -> Tables:
        """Cosines and sines [length, 1, 1, D] in ``dtype``; made anew, so that nothing outlives inference or graphs."""
        angles = self(length, packed_seq=packed_seq)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class _Whole(torch.autograd.Function):
    """The first ``plain`` of q's channels do not turn."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, cos: Tensor, sin: Tensor, plain: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.plain = plain
        return _turned(q, cos, sin, plain, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, sin, ctx.plain, back=True), None, None, None


def _turned(q: Tensor, cos: Tensor, sin: Tensor, plain: int, back: bool) -> Tensor:
    out = q.new_empty(q.shape)
    out[..., :plain] = q[..., :plain]
    rotated(q[:, None, :, plain:], cos, sin, True, back, out[:, None, :, plain:])
    return out


def dense(q: Tensor, cos: Tensor, sin: Tensor, plain: int, turning: int, cu_seqlens: Tensor, *_: Any) -> Tensor:
    """In place of ``fused_apply_mla_rope_for_q``: q [T, n, plain + turning] in memory of its own, its last channels
    turned by cosines and sines [P, 1, 1, turning] of places below P. cu_seqlens [documents + 1] int32.

    Raises ValueError as ``documents.check``.
    """
    place = documents.positions(cu_seqlens, len(q))
    return _Whole.apply(q, cos[place], sin[place], plain)  # type: ignore[no-any-return, no-untyped-call]


def fused(layer: MLASelfAttention, embedding: RotaryTables) -> None:
    """``layer`` turns by the tables of ``embedding``: keys by Megatron's fused kernels, queries by ``dense``.

    Megatron's checks of the configuration are behind: they refuse the kernels beside DSA, which stays without them. The
    layer's parts keep the model's own configuration. In the whole process a program has all heads of a token: of
    several programs the last goes on into the next token's heads, where they do not divide (NVIDIA/Megatron-LM issue
    7103), and a tuner would choose by time in which order heads are added.
    """
    import triton
    from megatron.core.fusions import fused_mla_yarn_rope_apply as kernels

    seams.verify(kind.FUSED_MLA)
    layer.config = copy.copy(layer.config)
    layer.config.apply_rope_fusion, layer.config.rope_type = True, "yarn"
    layer.rotary_pos_emb = embedding
    makes = seams.rebound(type(layer).get_query_key_value_tensors, {"fused_apply_mla_rope_for_q": dense})
    layer.get_query_key_value_tensors = types.MethodType(makes, layer)
    for kernel in (one for one in vars(kernels).values() if hasattr(one, "configs")):  # named otherwise on branch dev
        before = kernel.configs[0].kwargs["BLOCK_H"] if len(kernel.configs) == 1 else 1  # for another model
        heads = max(before, triton.next_power_of_2(layer.config.num_attention_heads))
        kernel.configs = [triton.Config({"BLOCK_H": heads})]


def enable(model: nn.Module) -> None:
    """All dense MLA of ``model`` writes its queries, keys and values whole."""
    for module in list(model.modules()):
        if isinstance(module, MLASelfAttention):
            c = module.config
            embedding = RotaryTables(
                c.qk_pos_emb_head_dim, c.rotary_percent, rotary_base=c.rotary_base, cp_group=module.pg_collection.cp
            )
            fused(module, embedding)
