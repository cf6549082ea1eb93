"""Weight gradients added to Megatron's fp32 ones inside their product, without a bf16 gradient and a kernel to add it.

Transformer Engine's layers do so themselves if ``gradient_accumulation_fusion`` is set. Megatron's own layers want
Apex's extension; here they get Transformer Engine's product instead. torch's layers compute like Megatron's.
"""

from __future__ import annotations

import types

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor, nn

from model.kinds import catalogue, mamba3
from model.patched import seams


def accumulate(inputs: Tensor, grads: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] fp32 += gradsᵀ inputs, of inputs [T, in] and grads [T, out] in bf16; needs CUDA."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    general_gemm(inputs, grads, out_dtype=torch.float32, layout="NT", out=main_grad, accumulate=True, grad=True)


class Linear(nn.Linear):  # type: ignore[misc]
    """torch's Linear. With ``accumulates``, a bf16 weight with Megatron's fp32 gradient adds its gradient to that."""

    accumulates = False

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] or [s, b, in] -> [T, out] or [s, b, out]."""
        weight = self.weight
        if self.accumulates and weight.dtype == torch.bfloat16 and hasattr(weight, "main_grad"):
            out: Tensor = layers.linear_with_grad_accumulation_and_async_allreduce(
                x, weight, None, gradient_accumulation_fusion=True, allreduce_dgrad=False, sequence_parallel=False
            )
            return out
        return nn.functional.linear(x, weight, self.bias)


def enable(model: nn.Module) -> None:
    """Have every linear layer of ``model`` without a bias add its gradient to the fp32 one; call after ``stand_in``."""
    for module in model.modules():
        if type(module) is nn.Linear:
            seams.verify(mamba3.WGRAD)
            module.__class__ = Linear
        if isinstance(module, Linear):
            module.accumulates = module.bias is None


def stand_in() -> None:
    """Give Megatron ``accumulate`` in place of the Apex extension that its layers want; call before they are built."""
    seams.verify(catalogue.APEX_WGRAD)
    layers.fused_weight_gradient_mlp_cuda = types.SimpleNamespace(wgrad_gemm_accum_fp32=accumulate)
    layers._grad_accum_fusion_available = True
