"""Weight gradients that their product adds to Megatron's fp32 ones, instead of a bf16 gradient and a kernel to add it.

Transformer Engine's layers do so by themselves when ``gradient_accumulation_fusion`` is set. Megatron's own would take
Apex's extension for it, and torch's know nothing of it; both get the same product here, Transformer Engine's.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor, nn


def accumulate(inputs: Tensor, grads: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] fp32 += gradsᵀ inputs, of inputs [T, in] and grads [T, out] in bf16; needs CUDA."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    general_gemm(inputs, grads, out_dtype=torch.float32, layout="NT", out=main_grad, accumulate=True, grad=True)


def placeholder(weight: Tensor) -> Tensor:
    """A tensor like ``weight`` that nobody reads: as its gradient it has the hook of data parallelism run."""
    from transformer_engine.pytorch.module.base import get_dummy_wgrad

    dummy: Tensor = get_dummy_wgrad(list(weight.shape), weight.dtype)
    return dummy


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        dx = grad @ weight if ctx.needs_input_grad[0] else None
        accumulate(x.flatten(0, -2).contiguous(), grad.flatten(0, -2).contiguous(), weight.main_grad)
        weight.grad_added_to_main_grad = True
        return dx, placeholder(weight)


class Linear(nn.Linear):  # type: ignore[misc]
    """torch's; told to, one without bias whose weight is bf16 and has Megatron's fp32 gradient adds to that."""

    accumulates = False

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        weight = self.weight
        if self.accumulates and weight.dtype == torch.bfloat16 and hasattr(weight, "main_grad"):
            out: Tensor = _Linear.apply(x, weight)
            return out
        return nn.functional.linear(x, weight, self.bias)


def enable(model: nn.Module) -> None:
    """Every linear layer of ``model`` without a bias adds its weight's gradient to the fp32 one."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
        if isinstance(module, Linear):
            module.accumulates = module.bias is None


def stand_in() -> None:
    """Give Megatron's linear layers ``accumulate`` for the Apex extension that they ask for; before they are built."""
    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(wgrad_gemm_accum_fp32=accumulate)
    layers._grad_accum_fusion_available = True
