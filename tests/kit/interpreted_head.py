"""Run by test_head in a process of its own: Liger-Kernel's losses under Triton's interpreter against fp64.

Prints one JSON object: {path: [relative errors of the losses and of the gradients of hidden states and weight]}; exits
77 where something is missing.
"""

import json

import torch

from model.patched import overlay
from reproducers.base.errors import CannotTestHere
from reproducers.probe.checks import CannotTest
from reproducers.probe.lanes import triton
from reproducers.upstream.store import Store

try:
    triton.interpret_triton()
    overlay.activate(overlay.build(Store(), overlay.chosen("all"), "cpu"))
except (CannotTest, CannotTestHere) as error:
    print(error)
    raise SystemExit(77) from None

import tiny
from torch.nn.functional import cross_entropy

from model.layers import head


def errors(path: str) -> list[float]:
    """Of 50 tokens in three chunks, each with a weight of its own, one without a label."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 24, requires_grad=True), torch.randn(70, 24, requires_grad=True)
    labels, scale = torch.randint(70, (50,)), torch.rand(50)
    labels[7] = head.IGNORED
    loss = head.LOSSES[path](hidden, weight, labels)
    (loss * scale).sum().backward()
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    ideal = cross_entropy(h @ w.T, labels, reduction="none")
    (ideal * scale).sum().backward()
    return [tiny.error(loss, ideal), tiny.error(hidden.grad, h.grad), tiny.error(weight.grad, w.grad)]


print(json.dumps({path: errors(path) for path in ("liger", "liger_unread")}))
