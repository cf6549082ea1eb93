"""Queries, keys and values that are written whole: no halves are joined, nor in the backward pass their gradients.

Dense MLA's keys and values are by Megatron's own kernels (``fused_apply_mla_rope_for_kv``, megatron/core/fusions/
fused_mla_yarn_rope_apply.py @ 5be9626709af2722333bf54797c954c09edeada3), which its configuration refuses beside DSA and
for plain rotary embedding. Its queries, and absorbed MLA's, are by ``rotary.rotate_kernel`` and a copy or a product,
each into its part of one tensor: Megatron's kernel for queries moves two bytes at a time. Tokens turn by their places
in their documents, from 0.
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch
from megatron.core.models.common.embeddings import RotaryEmbedding
from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
from megatron.core.transformer.experimental_attention_variant import dsa
from megatron.core.transformer.experimental_attention_variant.absorbed_mla import AbsorbedMLASelfAttention
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from torch import Tensor, nn

from model.kinds import mla as kind
from model.layers.attention import tables
from model.layers.attention.rotary import Tables, rotated, turned
from model.layers.common import documents
from model.patched import seams


class RotaryTables(RotaryEmbedding):
    """Megatron's rotary embedding, with the method of its YaRN that its fused kernels' caller asks."""

    def get_cached_cos_sin(self, length: int, dtype: torch.dtype, packed_seq: bool) -> Tables:
        """Cosines and sines [length, 1, 1, D] in ``dtype``; made anew, so that nothing outlives inference or graphs."""
        angles = self(length, packed_seq=packed_seq)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class _Whole(torch.autograd.Function):
    """``weight`` may be None, for channels that stay as they are; ``plain`` of q's do not turn."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, plain: int) -> Tensor:
        ctx.save_for_backward(None if weight is None else q, weight, cos, sin)
        ctx.plain, ctx.width = plain, plain if weight is None else weight.shape[-1]
        out = q.new_empty((*q.shape[:2], ctx.width + q.shape[-1] - plain))
        _write(q[..., :plain], weight, out[..., : ctx.width])
        rotated(q[:, None, :, plain:], cos, sin, True, False, out[:, None, :, ctx.width :])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (q, weight, cos, sin), plain, content = ctx.saved_tensors, ctx.plain, grad[..., : ctx.width]
        turning = grad[:, None, :, ctx.width :]
        d_q = grad.new_empty((*grad.shape[:2], plain + turning.shape[-1]))
        _write(content, None if weight is None else weight.transpose(1, 2), d_q[..., :plain])
        rotated(turning, cos, sin, True, True, d_q[:, None, :, plain:])
        d_weight = None if weight is None else torch.bmm(q[..., :plain].permute(1, 2, 0), content.transpose(0, 1))
        return d_q, d_weight, None, None, None


def _write(x: Tensor, weight: Tensor | None, out: Tensor) -> None:
    if weight is None:
        out.copy_(x)
    else:
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))


def absorbed(q: Tensor, weight: Tensor, turns: Tables) -> Tensor:
    """Queries [T, n, rank + r]: the first d channels of q [T, n, d + r] times weight [n, d, rank], the others turned.

    ``turns``: cosines and sines [T, 1, 1, r]; all of one dtype, fp32 or of 16 bits.
    """
    return _Whole.apply(q, weight, *turns, weight.shape[1])  # type: ignore[no-any-return, no-untyped-call]


def dense(q: Tensor, cos: Tensor, sin: Tensor, plain: int, turning: int, cu_seqlens: Tensor, *_: Any) -> Tensor:
    """In place of ``fused_apply_mla_rope_for_q``: q [T, n, plain + turning] in memory of its own, its last channels
    turned by cosines and sines [P, 1, 1, turning] of places below P. cu_seqlens [documents + 1] int32.

    Raises ValueError as ``documents.check``.
    """
    place = documents.positions(cu_seqlens, len(q))
    return _Whole.apply(q, None, cos[place], sin[place], plain)  # type: ignore[no-any-return, no-untyped-call]


class WholeAbsorbedMLA(AbsorbedMLASelfAttention):
    """Upstream's absorbed MLA for training on packed documents without tensor parallelism."""

    def get_query_key_value_tensors(
        self, hidden_states: Tensor, key_value_states: Any = None, packed_seq_params: Any = None, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, n, rank + r], keys [T, 1, rank + r] and low-rank queries [T, rank of q] of hidden [T, 1, h]."""
        c, bounds = self.config, packed_seq_params.cu_seqlens_q
        low = self.q_layernorm(self.linear_q_down_proj(hidden_states)[0].squeeze(1))
        latent = self.linear_kv_down_proj(hidden_states)[0].squeeze(1)
        content, place = latent.split([c.kv_lora_rank, c.qk_pos_emb_head_dim], dim=-1)
        q = self.linear_q_up_proj(low)[0].unflatten(-1, (-1, self.q_head_dim))
        angles = self.rotary_pos_emb(packed_seq_params.max_seqlen_q, packed_seq=True)
        turns = tables.of(angles, bounds, len(q), q.dtype)
        place = turned(place[:, None, None], turns, True)[:, 0]
        key = torch.cat((self.kv_layernorm(content).unsqueeze(1), place), dim=-1)  # of one head: small
        return absorbed(q, self._get_kv_up_weights()[0], turns), key, low


class WholeIndexer(dsa.DSAIndexer):
    """Upstream's indexer, which joins what turns with the channels that do not, where there are none of these too."""

    def _apply_rope(
        self, x: Tensor, rotary_pos_emb: Tensor, mscale: float, cu_seqlens: Tensor | None = None, **more: Any
    ) -> Tensor:
        if self.index_head_dim > self.qk_pos_emb_head_dim or cu_seqlens is None:
            result: Tensor = super()._apply_rope(x, rotary_pos_emb, mscale, cu_seqlens, **more)
            return result
        result = apply_rotary_pos_emb(
            x.squeeze(1),
            rotary_pos_emb,
            config=self.config,
            cu_seqlens=cu_seqlens,
            mscale=mscale,
            cp_group=self.pg_collection.cp,
            mla_rotary_interleaved=self.config.dsa_indexer_rope_interleaved,
            **more,
        )
        return result.unsqueeze(1)


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
    """All attention of ``model`` writes its queries, keys and values whole."""
    for module in list(model.modules()):
        if isinstance(module, MLASelfAttention):
            c = module.config
            embedding = RotaryTables(
                c.qk_pos_emb_head_dim, c.rotary_percent, rotary_base=c.rotary_base, cp_group=module.pg_collection.cp
            )
            fused(module, embedding)
        elif isinstance(module, AbsorbedMLASelfAttention):
            seams.verify(kind.WHOLE_ABSORBED)
            module.__class__ = WholeAbsorbedMLA
        elif isinstance(module, dsa.DSAIndexer):
            seams.verify(kind.WHOLE_INDEXER)
            module.__class__ = WholeIndexer
