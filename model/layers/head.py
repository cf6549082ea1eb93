"""The output head and its loss as one: logits are never held whole, for the main head and for MTP's.

Megatron hands whatever its output layer returns to ``compute_language_model_loss``; ours returns the hidden states.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from model.layers.common import paths

# Tokens whose logits exist at a time on the torch path: 1.5 GiB in bf16 and fp32 at a vocabulary of 65,536
CHUNK = 4096


class Head(ColumnParallelLinear):
    """Megatron's output layer, whose forward defers the product with its weight to the loss."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        """hidden [s, b, h] -> (hidden, no bias)."""
        return hidden, None

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., h] -> [..., vocab]."""
        return linear(hidden, self.weight)


def _chunk_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(linear(hidden, weight).float(), labels, reduction="none")


def chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """hidden [T, h], weight [vocab, h], labels [T] -> loss [T] fp32; logits recomputed chunk by chunk backward."""
    from torch.utils.checkpoint import checkpoint

    parts = zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True)
    return torch.cat([checkpoint(_chunk_loss, h, weight, y, use_reentrant=False) for h, y in parts])


def liger_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """As ``chunked_loss`` by Liger-Kernel's fused linear cross entropy with pack 09's per-token gradients."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    # (input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction)
    found = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, labels, None, None, -100, 0.0, 0.0, "none")
    result: Tensor = found[0] if isinstance(found, tuple) else found
    return result


def loss(path: paths.Path, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """hidden [s, b, h], weight [vocab, h], labels [b, s] -> [b, s] fp32."""
    flat = hidden.transpose(0, 1).flatten(0, 1)  # [b s, h]
    function = liger_loss if path.name == "liger" else chunked_loss
    return function(flat, weight, labels.flatten()).view_as(labels)
