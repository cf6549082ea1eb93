"""Run by test_head in a process of its own: Liger-Kernel's losses under Triton's interpreter against fp64.

Prints one JSON object: {path: [relative errors of the losses and of the gradients of hidden states and weight]}, and
for the path that makes gradients with the losses whether they are NaN where its condition does not hold. Exits 77
where something is missing.
"""

# ruff: noqa: E402 - what follows imports triton

import json

import interpreted
import torch

interpreted.begin(patched=True)

import tiny
from torch.nn.functional import cross_entropy

from model.layers.ends import head


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


def alone() -> bool:
    """Whether losses without gradients are those of Liger-Kernel's own loss, bit by bit."""
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(50, 24), torch.randn(70, 24), torch.randint(70, (50,))
    labels[7] = head.IGNORED
    return torch.equal(head.losses_alone(hidden, weight, labels), head.liger_loss(hidden, weight, labels))


def once(tokens: int, hidden: int, vocab: int, chunk: int, share: float) -> list[float]:
    """Errors of the path that makes gradients with the losses, ``share`` of the tokens counted, all by one weight."""
    torch.manual_seed(tokens)
    head.CHUNK = chunk
    x, weight = torch.randn(tokens, hidden, requires_grad=True), torch.randn(vocab, hidden, requires_grad=True)
    labels, counted = torch.randint(vocab, (tokens,)), (torch.rand(tokens) < share).float()
    labels[-1] = head.IGNORED
    loss = head.once_loss(x, weight, labels, counted)
    (loss * counted * 0.37).sum().backward()
    h, w = (x.detach().double().requires_grad_() for x in (x, weight))
    ideal = cross_entropy(h @ w.T, labels, reduction="none")
    (ideal * counted * 0.37).sum().backward()
    return [tiny.error(loss, ideal * counted), tiny.error(x.grad, h.grad), tiny.error(weight.grad, w.grad)]


def unlike(change: float) -> bool:
    """Whether the gradients are NaN if one token that counts weighs otherwise than the others."""
    x, weight = torch.randn(9, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    scale = torch.ones(9)
    scale[4] += change
    (head.once_loss(x, weight, torch.arange(9)) * scale).sum().backward()
    return bool(weight.grad.isnan().all()) and bool(x.grad.isnan().all())


def again() -> bool:
    """Whether a second backward pass is refused: the first has changed the gradients where they lie."""
    x, weight = torch.randn(9, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    loss = head.once_loss(x, weight, torch.arange(9)).sum()
    loss.backward(retain_graph=True)
    try:
        loss.backward()
    except RuntimeError:
        return True
    return False


cases = [(50, 24, 70, 16, 0.7), (1, 8, 5, 4, 1.0), (33, 16, 65, 32, 0.5), (7, 8, 9, 4, 0.0)]
print(
    json.dumps(
        {
            "liger": errors("liger"),
            "alone": alone(),
            "once": [max(once(*case)) for case in cases],
            "again": again(),
            "unlike": [unlike(change) for change in (0.0, 0.01, -1.0)],
        }
    )
)
