"""Run by test_upstream in a process of its own: Liger-Kernel's norm under Triton's interpreter against fp64.

Prints one JSON list of relative errors of value, input's and weight's gradients, for rows that its kernel for few rows
takes and for those of the kernel for many; exits 77 where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json
from types import SimpleNamespace

import interpreted
import torch

interpreted.begin(patched=True)

import tiny

from model.layers.mamba3.upstream import LigerNorm


def errors(*shape: int) -> list[float]:
    """Of a view whose rows lie apart, as the in-projection's parts are."""
    torch.manual_seed(0)
    x = torch.randn(*shape[:-1], 3 * shape[-1])[..., shape[-1] : 2 * shape[-1]].requires_grad_()
    weight, above = torch.nn.Parameter(torch.randn(shape[-1])), torch.randn(shape)
    y = LigerNorm(SimpleNamespace(weight=weight, eps=1e-5))(x)
    got = torch.autograd.grad(y, (x, weight), above.clone())
    xs, ws = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    ideal = torch.nn.functional.rms_norm(xs, shape[-1:], ws, 1e-5)
    want = torch.autograd.grad(ideal, (xs, ws), above.double())
    return [tiny.error(one, other) for one, other in zip((y, *got), (ideal, *want), strict=True)]


print(json.dumps([errors(2, 7, 4, 8, 16), errors(2, 2050, 1, 8, 16)]))
