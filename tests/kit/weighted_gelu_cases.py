"""How far the experts' fused activation is from fp64."""

import torch
from torch.nn.functional import gelu

from model.layers.experts.weighted_gelu import weighted_gelu


def errors(dtype, tokens, width, device="cpu"):
    """Greatest errors of y, dx and dweights, each relative to the greatest entry; 0 where there is none."""
    rng = torch.Generator().manual_seed(tokens)
    x, dy = (torch.randn(tokens, width, generator=rng).to(device, dtype) for _ in range(2))
    weights = torch.rand(tokens, generator=rng).to(device)
    found = _run(weighted_gelu, x, weights, dy)
    exact = _run(lambda x, w: gelu(x) * w[:, None], x.double(), weights.double(), dy.double())
    return [_relative(one.double(), other) for one, other in zip(found, exact, strict=True)]


def _relative(one, other):
    return float((one - other).abs().max() / other.abs().max()) if other.numel() else 0.0


def _run(function, x, weights, dy):
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    y = function(x, weights)
    y.backward(dy)
    return y.detach(), x.grad, weights.grad
