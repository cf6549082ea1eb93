"""What several kinds of layers are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.alignment.comparison import compared

Weights = Mapping[str, Tensor]
Said = dict[str, Any]
EPS = 1e-5  # of all norms
BASE = 500_000  # of RoPE


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., n] over its root mean square, times a weight [n]."""
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def softplus(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """Not its approximation by tanh."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def rope(x: Tensor, neighbours: bool) -> Tensor:
    """x [S, n, w] of a document's tokens: pair i turned by s BASE^(-2i/w), its halves behind one another.

    Pair i is the channels 2i and 2i + 1, or, not of ``neighbours``, i and i + w/2.
    """
    w = x.shape[-1]
    angles = [[s * BASE ** (-2 * i / w) for i in range(w // 2)] for s in range(len(x))]
    turn = torch.tensor(angles, dtype=x.dtype)[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., : w // 2], x[..., w // 2 :])
    return torch.cat((a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()), -1)


def best(scores: Tensor, k: int) -> Tensor:
    """[S, N] bool: of each token the ``k`` largest of scores [S, N], or all that are not -inf where those are fewer."""
    found = torch.zeros(scores.shape, dtype=torch.bool)
    for token, row in enumerate(scores.tolist()):
        seen = [n for n, score in enumerate(row) if score > -math.inf]
        found[token, sorted(seen, key=lambda n: -row[n])[:k]] = True
    return found


def followed(own: Tensor, other: Tensor | None, scores: Tensor) -> Tensor:
    """``own`` choices [S, N] by scores [S, N], but for tokens of which rounding may have made the ``other`` ones."""
    if other is None:
        return own
    _, ties = compared(other, own, scores)
    found = own.clone()
    for token, _ in ties:
        found[token] = other[token]
    return found


def cross_entropy(logits: Tensor, targets: list[int]) -> Tensor:
    """Of each of S tokens, [S]."""
    return torch.logsumexp(logits, -1) - logits[torch.arange(len(targets)), torch.tensor(targets, dtype=torch.int64)]
