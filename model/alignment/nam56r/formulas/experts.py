"""Mixture of experts: a sigmoid router whose bias takes part in the choice alone (arXiv 2408.15664); one is shared."""

from __future__ import annotations

import torch
from torch import Tensor

from model.alignment.nam56r.formulas.parts import Said, Weights, best, followed, gelu
from model.families.nam56r import Size


def mlp(xs: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """[S, h] -> [S, h] by weights [f, h] and [h, f]."""
    return gelu(xs @ up.T) @ down.T


def experts(xs: Tensor, w: Weights, p: str, c: Size, other: Tensor | None) -> Said:
    """[S, h] -> ``biased`` scores [S, E], by which experts are ``routed`` [S, E] bool, and their ``weights``, with what
    is followed of ``other`` experts; ``shared`` and ``mixed`` [S, h]; ``balance``, a document's loss."""
    scores = torch.sigmoid(xs @ w[p + "router.weight"].T)
    biased = (scores + w[p + "router.expert_bias"]).detach()
    routed = best(biased, c.experts.topk)
    taken = followed(routed, other, biased)
    weights = scores * taken / (scores * taken).sum(1, keepdim=True)
    shared = mlp(xs, w[p + "shared_experts.linear_fc1.weight"], w[p + "shared_experts.linear_fc2.weight"])
    mixed = shared
    for e in range(c.experts.count):
        up, down = (w[f"{p}experts.experts.linear_fc{n}.weight"][e] for n in (1, 2))
        mixed = mixed + weights[:, e, None] * mlp(xs, up, down)
    said = {"biased": biased, "routed": routed, "weights": weights, "shared": shared, "mixed": mixed}
    return said | {"balance": balance(scores, c.experts.topk)}


def balance(scores: Tensor, topk: int) -> Tensor:
    """Of scores [S, E] of a document: E times the sum over experts of their share of the choices without a bias and
    their mean share of a token's scores (arXiv 2412.19437, equations 17 to 20)."""
    S, E = scores.shape
    shares = best(scores.detach(), topk).sum(0) / (topk * S)
    means = (scores / scores.sum(1, keepdim=True)).mean(0)
    return E * (shares * means).sum()
