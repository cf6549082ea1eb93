"""Routers of DeepSeek-V4's experts: learned, or by a table of token ids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.exported.ngram import splitmix64
from model.layers.common import fp32


def affinity(logits: Tensor) -> Tensor:
    """sqrt(softplus(logits)), at least fp32."""
    products = F.softplus(fp32.wide(logits))
    # where softplus underflows to 0 the root would have an infinite gradient, and the product of both were no number
    return products.clamp(min=torch.finfo(products.dtype).tiny).sqrt()


def affinities(x: Tensor, weight: Tensor) -> Tensor:
    """``affinity`` of x weight, [..., E] of x [..., d] and weight [E, d]; the product too in fp32 or more.

    In bf16, of 64 experts at random weights, one of ten tokens gets another six.
    """
    return affinity(fp32.wide(x) @ fp32.wide(weight).T)


def normalised(scores: Tensor, chosen: Tensor, scaling: float) -> Tensor:
    """The chosen experts' affinities over their sum, times ``scaling``: [..., k]."""
    taken = scores.gather(-1, chosen)
    return taken / (taken.sum(-1, keepdim=True) + 1e-20) * scaling


class Router(nn.Module):  # type: ignore[misc]
    """The experts with the largest affinity plus bias. The bias takes part in the choice alone; it is no parameter, but
    a buffer that stays fp32 and follows the experts' loads (arXiv 2408.15664)."""

    def __init__(self, hidden: int, experts: int, topk: int, scaling: float) -> None:
        super().__init__()
        self.topk, self.scaling = topk, scaling
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("expert_bias", fp32.keep(torch.empty(experts, dtype=torch.float32)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weight and bias anew, as ``to_empty`` requires."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.zeros_(self.expert_bias)

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [..., d] -> experts [..., k] int64 and their weights [..., k], at least fp32; ``tokens`` are not read."""
        scores = affinities(x, self.weight)
        chosen = (scores + self.expert_bias).topk(self.topk, dim=-1).indices
        return chosen, normalised(scores, chosen, self.scaling)


class HashRouter(nn.Module):  # type: ignore[misc]
    """The experts that a table gives a token's id; their weights are learned as ``Router``'s.

    The table [vocab, k] int32 is a buffer, saved with the model: a trained model's comes with its checkpoint, and one
    from scratch has ``hash_table``'s.
    """

    def __init__(self, hidden: int, experts: int, topk: int, scaling: float, vocab: int, layer: int) -> None:
        super().__init__()
        self.experts, self.topk, self.scaling, self.vocab, self.layer = experts, topk, scaling, vocab, layer
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("tid2eid", torch.empty(vocab, topk, dtype=torch.int32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise weight and table anew, as ``to_empty`` requires."""
        nn.init.normal_(self.weight, std=0.02)
        self.tid2eid.copy_(hash_table(self.vocab, self.experts, self.topk, self.layer))

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x [s, b, d], tokens [s, b] -> as ``Router``.

        Raises ValueError unless there is a token for each vector of ``x``, in its order.
        """
        if tokens is None or tokens.shape != x.shape[:-1]:
            given = None if tokens is None else list(tokens.shape)
            raise ValueError(f"a hash router needs token ids {list(x.shape[:-1])}, not {given}")
        chosen = self.tid2eid[tokens].long()
        return chosen, normalised(affinities(x, self.weight), chosen, self.scaling)


def hash_table(vocab: int, experts: int, topk: int, layer: int) -> Tensor:
    """``topk`` different experts of each token id, [vocab, topk] int32, for a model from scratch: no recipe is public.

    Permutations of all experts, drawn by ``splitmix64`` of layer, permutation and expert, stand one after the other,
    and each id takes the next ``topk``. So among the first ids, however many, no expert is taken more than once more
    than another, also where ids are ordered by how often they occur. Experts that an id has from one permutation go
    behind the others in the next. Integer arithmetic alone: the same on every machine.
    Raises ValueError for more experts of a token than there are.
    """
    if topk > experts:
        raise ValueError(f"a token cannot go to {topk} of {experts} experts")
    rows: list[list[int]] = []
    left: list[int] = []  # of the newest permutation, not taken yet
    drawn = layer << 40
    while len(rows) < vocab:
        if len(left) < topk:
            fresh = sorted(range(experts), key=lambda expert: splitmix64(drawn + expert))
            drawn += experts
            wanted = topk - len(left)
            first = [expert for expert in fresh if expert not in left][:wanted]
            left += first + [expert for expert in fresh if expert not in first]
        rows.append(left[:topk])
        left = left[topk:]
    return torch.tensor(rows, dtype=torch.int32)
