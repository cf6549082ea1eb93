"""The largest attention logit of a layer, computed beside the attention: no kernel on these paths returns it.

Megatron's ``log_max_attention_logit`` (megatron/core/optimizer/qk_clip.py @ core_v0.19.0) takes it from Transformer
Engine's attention, which this model does not have, and reads it on the host for each layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 512  # queries whose logits are held at a time: 128 MiB of bf16 for 32 heads and rows of 4,096


def document_of(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """The number of each token's document, [T] int64."""
    return torch.bucketize(torch.arange(tokens, device=cu_seqlens.device), cu_seqlens[1:].long(), right=True)


@torch.no_grad()
def largest(query: Tensor, key: Tensor, cu_seqlens: Tensor, scale: float, row: int | None = None) -> Tensor:
    """query [T, n, d], key [T, n or 1, d] -> fp32 scalar on the device: over each token's document up to itself.

    ``row``: no document spans two rows of this many tokens.
    """
    tokens = len(query)
    document, at = document_of(cu_seqlens, tokens), torch.arange(tokens, device=query.device)
    keys, found = key.permute(1, 2, 0), []  # [n or 1, d, T]
    for first in range(0, tokens, CHUNK):
        last = min(first + CHUNK, tokens)
        begin = first // row * row if row else 0
        logits = query[first:last].transpose(0, 1) @ keys[:, :, begin:last]  # [n, queries, keys]
        hidden = (document[first:last, None] != document[None, begin:last]) | (
            at[first:last, None] < at[None, begin:last]
        )
        found.append(logits.masked_fill_(hidden, -torch.inf).amax())
    return torch.stack(found).amax().float() * scale


def note(layer: nn.Module, config: Any, query: Tensor, key: Tensor, packed: Any, scale: float) -> None:
    """Keep the largest logit of this and earlier micro-batches in ``layer.largest_logit`` if the step is diagnosed.

    query [T, n, d] or [T, 1, n, d], key alike with one head or n.
    """
    if not getattr(config, "model_diagnosed", False):
        return
    flat = [x.detach().reshape(len(x), -1, x.shape[-1]) for x in (query, key)]
    value = largest(*flat, packed.cu_seqlens_q, scale, config.model_row)
    before: Tensor | None = getattr(layer, "largest_logit", None)
    layer.largest_logit = value if before is None else torch.maximum(before, value)
