"""RMSNorm in the form that Megatron's specs build: torch's fused kernels on CUDA, or Transformer Engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.layers.common import fp32


class _ByTransformerEngine(torch.autograd.Function):  # type: ignore[misc]
    """x [rows, n] and weight [n], bf16 both -> the norm [rows, n] and x as it is, for a residual.

    The backward pass reads x once for both gradients, and adds the residual's in the same kernel. The kernels are those
    of transformer_engine/pytorch/ops/basic/rmsnorm.py and ops/fused/backward_add_rmsnorm.py @ v2.13, without its
    layers' work on the host.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        import transformer_engine_torch as tex  # type: ignore[import-not-found]
        from transformer_engine.pytorch.constants import TE_DType

        # (input, weight, eps, out, quantizer, out dtype, SMs to spare, whether weight counts from zero)
        y, _, scales = tex.rmsnorm_fwd(x, weight, eps, None, None, TE_DType[x.dtype], 0, False)
        ctx.save_for_backward(x, weight, scales)
        ctx.set_materialize_grads(False)
        return y, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, above: Tensor | None, residual: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        import transformer_engine_torch as tex

        x, weight, scales = ctx.saved_tensors
        if above is None:
            return residual, None, None
        if residual is None:
            inputs, weights = tex.rmsnorm_bwd(above.contiguous(), x, scales, weight, 0, False)
        else:
            above, residual = above.contiguous(), residual.contiguous()
            inputs, weights = tex.rmsnorm_bwd_add(above, x, residual, scales, weight, 0, False)
        return inputs, weights, None


def by_transformer_engine(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x [..., n] by weight [n], bf16 both, in fp32 within, and x, whose gradient is added to the norm's.

    Needs CUDA.
    """
    y, through = _ByTransformerEngine.apply(x.reshape(-1, x.shape[-1]).contiguous(), weight, eps)
    return y.view(x.shape), through.view(x.shape)


class RMSNorm(nn.RMSNorm):
    """RMSNorm over the last dimension, weight in ``config.params_dtype``, by the path of ``config.model_paths``."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.path = config.model_paths["norm"].name

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., n], in ``x``'s dtype."""
        if self.path == "te":
            return by_transformer_engine(x, self.weight, self.eps)[0]
        return super().forward(x)


class ResidualNorm(RMSNorm):
    """The norm at a layer's entrance, whose input goes around the layer as well."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """[..., n] -> the norm and what goes around: a pair that Megatron's TransformerLayer takes."""
        if self.path == "te":
            return by_transformer_engine(x, self.weight, self.eps)
        return super().forward(x), x


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm over the last dimension: the DSA indexer's norm of its key."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x [..., n] over its root mean square, times weight [n] if there is one; [..., n] in x's dtype.

    The statistics and the product with the weight are in fp32 or more, and rounded once.
    """
    inner = fp32.wide(x)
    normed = inner * torch.rsqrt(inner.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(x.dtype)


class WideRMSNorm(nn.Module):  # type: ignore[misc]
    """``rms_norm`` by a weight [n] that starts at 1 and stays fp32 (``fp32.keep``).

    ``by`` computes it: ``rms_norm``, or kernels with the same values.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.by: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
        self.weight = fp32.keep(nn.Parameter(torch.ones(width, dtype=torch.float32)))

    def reset_parameters(self) -> None:
        """Initialise the weight anew, as ``to_empty`` requires."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] -> [..., n], in ``x``'s dtype."""
        return self.by(x, self.weight, self.eps)
