"""Sparse MLA that keeps its output for the backward pass, for queries that all have a key.

Takes the place of ``SparseMLA`` (megatron/core/transformer/experimental_attention_variant/ops/sparse_mla.py @
5be9626709af2722333bf54797c954c09edeada3), whose backward pass runs the forward kernel again, and which sets outputs,
statistics and gradients of queries without a key to zero by operators of their own: four passes over what it returns.
A query of a packed stream has itself. Kernels are upstream's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeptSparseMLA(torch.autograd.Function):  # type: ignore[misc]
    """Keeps [B, T, heads, d_v] in bf16 and [B, T, heads] in fp32 more than upstream's."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, indices: Tensor, scaling: float, *d_v: int) -> tuple[Tensor, Tensor]:
        """Output [B, T, heads, d_v] and log of the weights' sums [B, T, heads], without a gradient of its own.

        q [B, T, heads, D], kv [B, T, 1, D], bf16; indices [B, T, 1, topk] int32, -1 for none; d_v where pack 02 gives
        it: the leading channels of kv that are the values.
        """
        from megatron.core.transformer.experimental_attention_variant.ops import sparse_mla

        q, kv, indices = (sparse_mla._canonicalize_batch_stride(given) for given in (q, kv, indices))
        width = {"d_v": d_v[0]} if d_v else {}
        out, lse = sparse_mla.sparse_mla_fwd_interface(q, kv, indices, sm_scale=scaling, **width)
        ctx.scaling, ctx.more = scaling, len(d_v)
        ctx.save_for_backward(q, kv, indices, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from megatron.core.transformer.experimental_attention_variant.ops import sparse_mla

        q, kv, indices, out, lse = ctx.saved_tensors
        grad = grad.contiguous()
        delta = sparse_mla.sparse_mla_delta(out, grad)
        d_q, d_kv = sparse_mla.sparse_mla_bwd(q, kv, None, grad, indices, lse, sm_scale=ctx.scaling, delta=delta)
        return d_q, d_kv, *(None,) * (2 + ctx.more)
