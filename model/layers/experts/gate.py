"""The routers' product with bf16 inputs, fp32 logits and fp32 gradients of these, without fp32 copies of inputs.

Megatron's backward pass (``RouterGatingLinearFunction``, megatron/core/transformer/moe/moe_utils.py @
5be9626709af2722333bf54797c954c09edeada3) makes inputs fp32 and multiplies in TF32, which keeps ten bits of a gradient.
An fp32 number is a sum of three bf16 ones, so that three times as many columns keep all 24, in bf16 products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from model.kinds import moe as kind
from model.patched import seams


def parts(x: Tensor) -> Tensor:
    """x [T, E] fp32 -> [T, 3 E] bf16: the nearest numbers, those nearest to what is left, and again."""
    made, left = [], x
    for _ in range(3):
        made.append(left.to(torch.bfloat16))
        left = left - made[-1].float()
    return torch.cat(made, dim=-1)


class _Gate(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        split = parts(grad)
        weights = _product(split.t(), x).view(3, *weight.shape).sum(0)
        return split @ weight.repeat(3, 1), weights.to(weight.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[M, K] and [K, N] bf16 -> [M, N] fp32."""
    return torch.mm(a, b, out_dtype=torch.float32)


def gate(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., h] and weight [E, h] bf16 -> logits [..., E] fp32. Needs CUDA."""
    logits: Tensor = _Gate.apply(x.reshape(-1, x.shape[-1]), weight)
    return logits.view(*x.shape[:-1], -1)


def enable(router: Any) -> None:
    """Have a Megatron router make its logits so. ValueError for one with a bias."""
    if router.bias is not None:
        raise ValueError("router=parts is for routers without a bias")
    seams.verify(kind.ROUTER_GATE)
    router.gating = lambda x: gate(x, router.weight)
