"""Linear layers with products in FP8, by Transformer Engine with one scale a tensor, from its own largest entry.

Inputs and weights in E4M3, what comes from above in E5M2, sums in fp32: the recipe Float8CurrentScaling of Transformer
Engine 2.13 (transformer_engine/common/recipe/__init__.py @ v2.13), whose tensor cores on sm_90 multiply at twice the
rate of bf16.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from model.layers.linear import wgrad

ALIGNED = 16  # rows and columns of what an FP8 product takes come in sixteens


def quantized(x: Tensor, kind: str) -> Any:
    """``x`` [rows, columns] bf16 in FP8 "E4M3" or "E5M2", as it is and transposed, with its scale; needs CUDA."""
    import transformer_engine_torch as tex  # type: ignore[import-not-found]
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

    return Float8CurrentScalingQuantizer(getattr(tex.DType, f"kFloat8{kind}"), x.device)(x)


def product(a: Any, b: Any, layout: str, out: Tensor | None = None) -> Tensor:
    """``b aᵀ`` for layout TN, ``b a`` for NN, both bf16; for NT ``bᵀ a``, added to ``out`` fp32 if it is given."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    dtype = torch.bfloat16 if out is None else out.dtype
    result: Tensor = general_gemm(
        a,
        b,
        out_dtype=dtype,
        layout=layout,
        out=out,
        accumulate=out is not None,
        grad=layout != "TN",
        use_split_accumulator=layout != "TN",
    )[0]
    return result


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """x [T, in], weight [out, in] -> [T, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.low, ctx.eight, ctx.weight = quantized(x, "E4M3"), quantized(weight, "E4M3"), weight
        return product(ctx.eight, ctx.low, "TN")

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor | None]:
        weight, high = ctx.weight, quantized(above.contiguous(), "E5M2")
        inputs = product(ctx.eight, high, "NN")
        added = hasattr(weight, "main_grad")
        into = weight.main_grad if added else weight.new_zeros(weight.shape, dtype=torch.float32)
        product(ctx.low, high, "NT", out=into)
        ctx.low = ctx.eight = None
        return inputs, left(weight) if added else into.to(weight.dtype)


def left(weight: Tensor) -> Tensor | None:
    """What autograd gets for a weight whose gradient is in Megatron's: as Megatron's own linear layers have it."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return torch.empty_like(weight)


def _linear(x: Tensor, weight: Tensor) -> Tensor | None:
    """x [..., in], weight [out, in] -> [..., out]; None if dtype or sizes, which come in sixteens, do not allow it."""
    rows = x.numel() // x.shape[-1]
    if x.dtype != torch.bfloat16 or any(size % ALIGNED for size in (rows, *weight.shape)):
        return None
    y: Tensor = _Product.apply(x.reshape(rows, -1), weight)
    return y.view(*x.shape[:-1], -1)


class Linear(wgrad.Linear):
    """The layer without a bias."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]; in bf16 where sizes are no sixteens."""
        y = _linear(x, self.weight)
        return super().forward(x) if y is None else y


class _Parallel:
    """Megatron's layer on one tensor-parallel rank, with products in FP8 if it has no bias and sizes are sixteens."""

    def _forward_impl(self, input: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
        whole = not (args or options.get("bias") is not None or options.get("allreduce_dgrad"))
        y = _linear(input, weight) if whole and not options.get("sequence_parallel") else None
        return super()._forward_impl(input, weight, *args, **options) if y is None else y  # type: ignore[misc]


class Column(_Parallel, ColumnParallelLinear):  # type: ignore[misc]
    """Megatron's ColumnParallelLinear with products in FP8."""


class Row(_Parallel, RowParallelLinear):  # type: ignore[misc]
    """Megatron's RowParallelLinear with products in FP8."""
