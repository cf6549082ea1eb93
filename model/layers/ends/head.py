"""The output head and its loss as one, so that logits are never held whole, for the main head and for MTP's.

Megatron hands its output layer's result to ``compute_language_model_loss``; this one returns the hidden states.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from model.kinds import ends as kind
from model.patched import seams

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


def _cross_entropy(logits: Tensor, labels: Tensor, losses: Tensor, gradients: bool) -> None:
    """losses [T] fp32 of logits [T, vocab], by Liger-Kernel's kernel; ``gradients``: theirs are written over logits."""
    import triton
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    vocab = logits.shape[1]
    fused.liger_cross_entropy_kernel[(len(logits),)](
        X_ptr=logits,
        X_stride=logits.stride(-2),
        Y_ptr=labels,
        Y_stride=1,
        weight_ptr=None,
        loss_ptr=losses,
        z_loss_ptr=None,
        loss_stride=1,
        token_accuracy_ptr=None,
        token_accuracy_stride=0,
        n_cols=vocab,
        n_non_ignore=len(logits),
        sum_non_ignore_weight=len(logits),
        weight_sum=0.0,
        ignore_index=IGNORED,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="none",
        softcap=None,
        RETURN_Z_LOSS=False,
        RETURN_TOKEN_ACCURACY=False,
        HAS_WEIGHT=False,
        HAS_SOFTCAPPING=False,
        HAS_GRADIENTS=gradients,
        BLOCK_SIZE=min(fused.MAX_FUSED_SIZE, triton.next_power_of_2(vocab)),
        num_warps=32,
    )


def losses_alone(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """``liger_loss`` by the same kernels and chunks, [T] fp32, without gradients and without a wait of the host.

    Liger-Kernel counts labels, which its reduction "none" ignores and the host waits for.
    """
    import triton

    hidden, labels = hidden.contiguous(), labels.contiguous()
    tokens, vocab = len(hidden), len(weight)
    losses = hidden.new_zeros(tokens, dtype=torch.float32)
    chunk = triton.next_power_of_2(triton.cdiv(tokens, triton.cdiv(vocab, hidden.shape[1])))
    for at in range(0, tokens, chunk):
        rows = slice(at, at + chunk)
        _cross_entropy(hidden[rows] @ weight.t(), labels[rows], losses[rows], gradients=False)
    return losses


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """Loss of each token whose gradients are made beside it, for losses that will all be weighted alike or not at all.

    The backward pass multiplies them by that weight: no logits are computed again. What the weight is need not be known
    before; which tokens count must be, for the gradient of ``weight`` sums over them.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
        losses = hidden.new_zeros(len(hidden), dtype=torch.float32)
        inputs, weights = torch.empty_like(hidden), torch.zeros_like(weight)
        labels = labels.masked_fill(counted == 0, IGNORED)
        for at in range(0, len(hidden), CHUNK):
            rows = slice(at, at + CHUNK)
            logits = hidden[rows] @ weight.t()
            _cross_entropy(logits, labels[rows], losses[rows], gradients=True)
            torch.mm(logits, weight, out=inputs[rows])
            weights.addmm_(logits.t(), hidden[rows])
        ctx.made = inputs, weights
        ctx.save_for_backward(counted)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """NaN for all where ``grad`` is not one number for the tokens that count. RuntimeError if it is done again."""
        if ctx.made is None:
            raise RuntimeError(
                "liger_once has given its gradients away: no second backward pass\n  fix: --path loss=liger"
            )
        (counted,), made, ctx.made = ctx.saved_tensors, ctx.made, None
        alike = (grad * counted).sum() / counted.sum().clamp(min=1)
        differs = ((grad - alike) * counted).abs().max() > 1e-4 * alike.abs()
        scale = alike.masked_fill(differs, float("nan"))
        for gradient in made:
            _multiply(gradient, scale)
        return (*made, None, None)


def _multiply(x: Tensor, scale: Tensor) -> None:
    """x [rows, n], in place, by scale [] fp32, in fp32 and rounded once: a product in torch would round the scale."""
    import triton
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    fused.element_mul_kernel[(len(x),)](
        x,
        x.stride(-2),
        scale,
        x.shape[-1],
        BLOCK_SIZE=min(fused.MAX_FUSED_SIZE, triton.next_power_of_2(x.shape[-1])),
        num_warps=32,
    )


def once_loss(hidden: Tensor, weight: Tensor, labels: Tensor, counted: Tensor | None = None) -> Tensor:
    """``liger_loss`` in three products instead of four, for losses that are multiplied by ``counted`` and one number.

    counted [T] fp32 of zeros and ones; None: all count. The loss of a token that does not is 0. Gradients are made with
    the losses, and held until the backward pass. They are NaN if the losses were weighted otherwise.
    """
    if not torch.is_grad_enabled():
        return losses_alone(hidden, weight, labels)
    counted = hidden.new_ones(len(hidden), dtype=torch.float32) if counted is None else counted
    losses: Tensor = _Once.apply(hidden.contiguous(), weight, labels.contiguous(), counted)
    return losses


LOSSES = {"liger": liger_loss, "torch": chunked_loss}


def loss(path: str, hidden: Tensor, weight: Tensor, labels: Tensor, counted: Tensor | None = None) -> Tensor:
    """hidden [s, b, h], weight [vocab, h], labels [b, s] -> [b, s] fp32; counted [b, s] as ``once_loss`` has it."""
    flat = hidden.transpose(0, 1).flatten(0, 1)  # [b s, h]
    if path == "liger_once":
        return once_loss(flat, weight, labels.flatten(), counted if counted is None else counted.flatten()).view_as(
            labels
        )
    return LOSSES[path](flat, weight, labels.flatten()).view_as(labels)


def ours(network: Any) -> None:
    """The output layer of ``network``'s last stage hands hidden states to ``loss``."""
    if network.post_process:
        seams.verify(kind.HEAD)
        network.output_layer.__class__ = Head


def megatrons(network: Any) -> None:
    """Megatron's output layer computes the losses, which ``network.shared`` weights; pack 11 gives it to the model."""
    if network.post_process:
        _platform()
        network.output_layer.register_forward_hook(network.shared)


def _platform() -> None:
    """Have Megatron's linear cross entropy take pack 10's operations on a CPU too; it asks once a process."""
    from megatron.core.fusions import fused_linear_cross_entropy as fusion

    seams.verify(kind.LINEAR_LOSS)
    if torch.cuda.is_available():
        return
    with (
        seams.replaced(torch.cuda, "is_available", lambda: True),
        seams.replaced(torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
    ):
        fusion._get_platform()
