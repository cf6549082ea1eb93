"""The output head and its loss as one, so that logits are never held whole, for the main head and for MTP's.

Megatron hands its output layer's result to ``compute_language_model_loss``; this one returns the hidden states.
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
IGNORED = -100  # a label without a loss


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
    """``chunked_loss`` by Liger-Kernel's fused linear cross entropy with pack 09's per-token gradients."""
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    # (input, weight, target, bias, ce_weight, ignore_index, lse_square_scale, label_smoothing, reduction)
    out = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, labels, None, None, IGNORED, 0.0, 0.0, "none")
    losses: Tensor = out[0] if isinstance(out, tuple) else out
    return losses


class _Unread(torch.autograd.Function):  # type: ignore[misc]
    """Liger-Kernel's loss of each token without its count of labels, which "none" ignores and the host waits for.

    Forward uses its chunks and kernel, backward is pack 09's.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        import triton
        from liger_kernel.ops import fused_linear_cross_entropy as fused

        ctx.save_for_backward(hidden, weight, labels)
        tokens, vocab = len(hidden), len(weight)
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        chunk = triton.next_power_of_2(triton.cdiv(tokens, triton.cdiv(vocab, hidden.shape[1])))
        for at in range(0, tokens, chunk):
            logits = hidden[at : at + chunk] @ weight.t()
            fused.liger_cross_entropy_kernel[(len(logits),)](
                X_ptr=logits, X_stride=logits.stride(-2), Y_ptr=labels[at : at + chunk], Y_stride=1, weight_ptr=None,
                loss_ptr=losses[at : at + chunk], z_loss_ptr=None, loss_stride=1, token_accuracy_ptr=None,
                token_accuracy_stride=0, n_cols=vocab, n_non_ignore=tokens, sum_non_ignore_weight=tokens,
                weight_sum=0.0, ignore_index=IGNORED, lse_square_scale=0.0, label_smoothing=0.0, reduction="none",
                softcap=None, RETURN_Z_LOSS=False, RETURN_TOKEN_ACCURACY=False, HAS_WEIGHT=False, HAS_SOFTCAPPING=False,
                HAS_GRADIENTS=False, BLOCK_SIZE=min(fused.MAX_FUSED_SIZE, triton.next_power_of_2(vocab)), num_warps=32,
            )  # fmt: skip
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_per_token_backward

        hidden, weight, labels = ctx.saved_tensors
        needed = (*ctx.needs_input_grad[:3], False)
        # (…, bias, ce_weight, needed, ignore_index, lse_square_scale, label_smoothing, softcap, accum_dtype, scaling)
        inputs, weights, _ = fused_linear_cross_entropy_per_token_backward(
            grad, hidden, weight, labels, None, None, needed, IGNORED, 0.0, 0.0, None, None, False
        )
        return inputs, weights, None


def unread_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """``liger_loss`` by the same kernels, without a wait of the host."""
    losses: Tensor = _Unread.apply(hidden.contiguous(), weight, labels.contiguous())
    return losses


LOSSES = {"liger": liger_loss, "liger_unread": unread_loss, "torch": chunked_loss}


def loss(path: paths.Path, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """hidden [s, b, h], weight [vocab, h], labels [b, s] -> [b, s] fp32."""
    flat = hidden.transpose(0, 1).flatten(0, 1)  # [b s, h]
    return LOSSES[path.name](flat, weight, labels.flatten()).view_as(labels)
