"""Weight gradients added to Megatron's fp32 ones inside their product, without a bf16 gradient and a kernel to add it.

Transformer Engine's layers do so themselves if ``gradient_accumulation_fusion`` is set, and so do Megatron's own with
Apex's extension or pack 46. torch's layers compute like Megatron's.
"""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel import layers
from torch import Tensor, nn

from model.kinds.recurrent import mamba3
from model.patched import seams


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
    """Have every linear layer of ``model`` without a bias add its gradient to the fp32 one."""
    for module in model.modules():
        if type(module) is nn.Linear:
            seams.verify(mamba3.WGRAD)
            module.__class__ = Linear
        if isinstance(module, Linear):
            module.accumulates = module.bias is None
