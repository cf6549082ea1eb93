"""A projection whose output comes in parts, each a tensor of its own: nothing is made contiguous, nothing joined.

Mamba3 splits the columns of its in-projection's output (``torch.split``, mamba_ssm/modules/mamba3.py @
a14b1dff0454a3bc27d9eb31355dc01e4b2490ec). Of each slice its kernels and norms take a copy, and autograd joins the
slices' gradients, which are as large. Here each part is a product of its own rows of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from model.layers.linear import fp8, wgrad


def accumulate(inputs: Tensor, grads: Tensor, main_grad: Tensor) -> None:
    """main_grad [out, in] fp32 += gradsᵀ inputs, of inputs [T, in] and grads [T, out] in bf16; needs CUDA."""
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    general_gemm(inputs, grads, out_dtype=torch.float32, layout="NT", out=main_grad, accumulate=True, grad=True)


class Parts:
    """What ``torch.split`` along the last dimension, by the widths of ``parts``, gives back; nothing else takes it."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = tuple(parts)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """torch's protocol for what is no tensor: NotImplemented makes torch raise TypeError."""
        if function is not torch.split or len(arguments) != 2 or (options or {}).get("dim") != -1:
            return NotImplemented
        whole, widths = arguments
        return whole.parts if list(widths) == [part.shape[-1] for part in whole.parts] else NotImplemented


class _Parted(torch.autograd.Function):  # type: ignore[misc]
    """x [T, in], weight [out, in] -> [T, width] for each width; those before the last in FP8 if ``eight``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, widths: tuple[int, ...], eight: bool) -> tuple[Tensor, ...]:
        ctx.weight, ctx.widths, ctx.eight = weight, widths, eight
        ctx.save_for_backward(x)
        if not eight:
            return tuple(torch.mm(x, part.t()) for part in weight.split(widths))
        *wide, last = weight.split(widths)
        ctx.low, ctx.eights = fp8.quantized(x, "E4M3"), [fp8.quantized(part, "E4M3") for part in wide]
        return (*(fp8.product(part, ctx.low, "TN") for part in ctx.eights), torch.mm(x, last.t()))

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """The input's gradient is a sum of as many products as there are parts, rounded after each."""
        (x,), weight = ctx.saved_tensors, ctx.weight
        added = hasattr(weight, "main_grad")
        into = weight.main_grad if added else weight.new_zeros(weight.shape, dtype=torch.float32)
        inputs: Tensor | None = None
        eights = [*ctx.eights, None] if ctx.eight else [None] * len(above)
        for grad, rows, due, low in zip(above, weight.split(ctx.widths), into.split(ctx.widths), eights, strict=True):
            grad = grad.contiguous()
            if low is None:
                inputs = grad @ rows if inputs is None else inputs.addmm_(grad, rows)
                accumulate(x, grad, due)
            else:
                high = fp8.quantized(grad, "E5M2")
                inputs = fp8.product(low, high, "NN", out=inputs)
                fp8.product(ctx.low, high, "NT", out=due)
        ctx.low = ctx.eights = None
        return inputs, fp8.left(weight) if added else into.to(weight.dtype), None, None


class Linear(wgrad.Linear):
    """The layer without a bias: an output for each of ``wide``, and one more product for all of ``rest``, in bf16."""

    wide: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()
    eight = False  # the wide ones in FP8

    def forward(self, x: Tensor) -> Parts:  # type: ignore[override]
        """x [..., in] -> parts [..., width]; all in bf16 where sizes are no sixteens. Needs CUDA."""
        rows = x.numel() // x.shape[-1]
        eight = self.eight and not any(size % fp8.ALIGNED for size in (rows, x.shape[-1], *self.wide))
        made = _Parted.apply(x.reshape(rows, -1), self.weight, (*self.wide, sum(self.rest)), eight)
        *parts, last = (part.view(*x.shape[:-1], -1) for part in made)
        return Parts([*parts, *last.split(self.rest, dim=-1)])
