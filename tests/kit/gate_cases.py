"""The routers' product, forward and backward, against fp64 and beside Megatron's."""

import torch
from megatron.core.transformer.moe.moe_utils import router_gating_linear

from model.layers.experts.gate import gate


def errors(device, tokens=512, hidden=256, experts=16):
    """{whose: the norm of the error of logits, inputs' and weights' gradients, over the norm in fp64}."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 1, hidden, generator=draw).bfloat16().to(device)
    weight = (0.02 * torch.randn(experts, hidden, generator=draw)).bfloat16().to(device)
    above = (1e-4 * torch.randn(tokens, 1, experts, generator=draw)).to(device)

    def run(function, dtype=torch.bfloat16):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight)]
        out = function(*leaves)
        return [t.double() for t in (out, *torch.autograd.grad(out, leaves, above.to(out.dtype)))]

    right = run(lambda x, weight: x @ weight.t(), torch.float64)
    ours = run(gate)
    theirs = run(lambda x, weight: router_gating_linear(x, weight, None, torch.float32))
    return {
        whose: [((a - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)]
        for whose, found in (("ours", ours), ("theirs", theirs))
    }
