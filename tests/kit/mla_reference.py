"""Sparse multi-latent attention and its indexer in plain fp64 maths, from their weights; nothing of Megatron's.

Rotations are complex products. A head's rotary channels are pairs (2i, 2i+1) in MLA and (i, i + d/2) in the indexer.
"""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 500_000


def rotated(x: Tensor, place: Tensor, interleaved: bool) -> Tensor:
    """x [T, n, d] turned by the places [T]; complex [T, n, d/2], of which real products are the rotary scores."""
    half = x.shape[-1] // 2
    pairs = x.unflatten(-1, (half, 2)) if interleaved else x.unflatten(-1, (2, half)).transpose(-1, -2)
    angle = place.double()[:, None] * BASE ** (-torch.arange(half).double() / half)  # [T, d/2]
    return torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)[:, None]


def products(q: Tensor, k: Tensor) -> Tensor:
    """Real scores [n, T, T] of complex q and k [T, n, d] (k of one head or of n)."""
    return torch.einsum("tnd,snd->nts", q, k.expand(-1, q.shape[1], -1).conj()).real


def seen(cuts: tuple[int, ...]) -> Tensor:
    """[T, T] bool: the keys of each query's document up to itself."""
    lengths = torch.tensor(cuts).diff()
    document = torch.arange(len(lengths)).repeat_interleave(lengths)
    return (document[:, None] == document[None, :]).tril()


def expanded(x: Tensor, place: Tensor, mask: Tensor, w: dict[str, Tensor], heads: int, nope: int) -> Tensor:
    """x [T, h], mask [T, T] -> (output [T, h], probabilities [n, T, T]) of MLA with keys and values of each head."""
    q = (x @ w["q_down"].T @ w["q_up"].T).unflatten(-1, (heads, -1))  # [T, n, nope + rope]
    rank = w["kv_up"].shape[1]
    latent, rotary = (x @ w["kv_down"].T).split([rank, w["kv_down"].shape[0] - rank], dim=-1)
    k, v = (latent @ w["kv_up"].T).unflatten(-1, (heads, -1)).tensor_split([nope], dim=-1)  # [T, n, .]
    turn = (rotated(t, place, True) for t in (q[..., nope:], rotary[:, None]))
    scores = torch.einsum("tnd,snd->nts", q[..., :nope], k) + products(*turn)
    p = (scores * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    return torch.einsum("nts,snd->tnd", p, v).flatten(1) @ w["out"].T, p


def index_scores(x: Tensor, place: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """x [T, h] -> I [T, T], unmasked: sum over heads of w ReLU(q k), w scaled by (heads x channels)^-1/2."""
    q = (x @ w["q_down"].T @ w["wq_b"].T).unflatten(-1, (heads, -1))  # [T, H, d]
    k = torch.nn.functional.layer_norm(x @ w["wk"].T, w["k_norm"].shape, w["k_norm"], w["k_bias"], 1e-5)[:, None]
    weights = x @ w["weights"].T * (heads * q.shape[-1]) ** -0.5  # [T, H]
    turned = products(rotated(q, place, False), rotated(k, place, False)).relu()  # [H, T, T]
    return torch.einsum("th,hts->ts", weights, turned)


def indexer_loss(scores: Tensor, p: Tensor, mask: Tensor) -> Tensor:
    """[T]: KL(p̄ || softmax(scores)) of each query over the keys of ``mask``; p [n, T, T] the attention's."""
    target = p.detach().mean(0)  # rows sum to one
    log_r = scores.masked_fill(~mask, -torch.inf).log_softmax(-1).masked_fill(~mask, 0)
    return (torch.special.xlogy(target, target) - target * log_r).sum(-1)
