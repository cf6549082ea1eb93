"""The indexer of compressed sparse attention: which entries each token attends to, and how it learns to choose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.exported.step import Linear
from model.layers.common import documents, fp32
from model.layers.common.blocks import blocks
from model.layers.deepseek_v4.compressor import Compressor, Visible
from model.layers.deepseek_v4.rotary import Rope, rotate

UNSEEN = -1e30  # a score that a softmax makes 0, also where a token sees none and all are equal


def scores(query: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """The sum over heads of weight relu(query key): [B, E] of query [B, Hi, Di], keys [E, Di], or [B, k, Di] of each
    token's own, weights [B, Hi]. At least fp32."""
    shared = "bhd,ed->bhe" if keys.dim() == 2 else "bhd,bed->bhe"
    products = torch.einsum(shared, fp32.wide(query), fp32.wide(keys)).relu()
    return torch.einsum("bhe,bh->be", products, fp32.wide(weights))


def choose(found: Tensor, visible: Visible, topk: int) -> Tensor:
    """The ``topk`` best of the visible slots of each token, the earlier of equal ones: [B, min(topk, E)] int64, -1
    where it sees fewer. ``found`` [B, E] are the scores."""
    masked = found.masked_fill(~visible.mask(found.shape[1]), -torch.inf)
    best, slot = masked.sort(dim=-1, descending=True, stable=True)
    return slot[:, :topk].masked_fill(best[:, :topk] == -torch.inf, -1)


def divergence(mass: Tensor, found: Tensor, mask: Tensor) -> Tensor:
    """KL(teacher || softmax of the scores) of each token, [B]; 0 for a token that sees no entry.

    mass [B, k]: what the entries get of the main attention's probability, summed over heads, each head's denominator
    with its window and its sink; over its sum it is the teacher. found [B, k]: the scores. mask [B, k]: which are
    visible. A gradient goes to the scores alone. The loss is Megatron-LM's ``FusedDSAIndexerLoss``
    (experimental_attention_variant/dsa.py, branch dev @d48bd6be).
    """
    teacher = fp32.wide(mass.detach()).masked_fill(~mask, 0)
    teacher = teacher / teacher.sum(-1, keepdim=True).clamp(min=torch.finfo(teacher.dtype).tiny)
    student = found.masked_fill(~mask, UNSEEN).log_softmax(-1)
    return (torch.xlogy(teacher, teacher) - teacher * student).sum(-1)


class Projected(NamedTuple):
    """Queries [T, Hi, Di], compressed keys [E, Di] and the heads' weights [T, Hi], of ``select`` and ``loss``."""

    query: Tensor
    keys: Tensor
    weights: Tensor


class Indexer(nn.Module):  # type: ignore[misc]
    """Scores of all compressed entries by small heads, with compressed keys of its own.

    Its inputs are cut from the graph: it learns from ``loss`` alone, and what is before it learns nothing from that.
    DeepSeek's Hadamard transform of queries and keys is left out: without quantisation it changes no product.
    """

    def __init__(
        self,
        hidden: int,
        q_lora_rank: int,
        heads: int,
        width: int,
        topk: int,
        ratio: int,
        rope: Rope,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.heads, self.topk, self.rope = heads, topk, rope
        self.scale = heads**-0.5 * width**-0.5
        self.linear_wq_b, self.linear_weights_proj = Linear(q_lora_rank, heads * width), Linear(hidden, heads)
        self.compressor = Compressor(hidden, width, ratio, True, rope, eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        for linear in (self.linear_wq_b, self.linear_weights_proj):
            nn.init.normal_(linear.weight, std=0.02)
        self.compressor.reset_parameters()

    def forward(self, hidden: Tensor, latent: Tensor, cu_seqlens: Tensor) -> Projected:
        """hidden [T, d], the queries' latents [T, Lq] -> what ``select`` and ``loss`` take.

        Raises ValueError for other ``cu_seqlens``, as ``documents.check``.
        """
        hidden, latent = hidden.detach(), latent.detach()
        table = self.rope.shared(cu_seqlens, 1, documents.positions(cu_seqlens, len(hidden)), hidden)
        query = rotate(self.linear_wq_b(latent).unflatten(-1, (self.heads, -1)), table)
        return Projected(query, self.compressor(hidden, cu_seqlens), self.linear_weights_proj(hidden) * self.scale)


@torch.no_grad()
def select(given: Projected, visible: Visible, topk: int) -> Tensor:
    """Of the ``visible`` slots the ``topk`` best of each token, [T, min(topk, E)] int64, -1 for none."""
    return torch.cat(
        [
            choose(scores(given.query[rows], given.keys, given.weights[rows]), visible.of(rows), topk)
            for rows in blocks(given.query)
        ]
    )


def loss(given: Projected, visible: Visible, mass: Tensor) -> Tensor:
    """``divergence`` of each token, [T], at least fp32.

    ``mass`` is the core attention's second result: over the slots that ``visible`` has as chosen, or over all where it
    has none, for the stage in which attention is dense and the indexer warms up.
    """
    parts = []
    for rows in blocks(given.query):
        block = given.query[rows], given.keys, given.weights[rows], mass[rows], visible.of(rows)
        parts.append(checkpoint(_divergence, *block, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts)


def _divergence(query: Tensor, keys: Tensor, weights: Tensor, mass: Tensor, visible: Visible) -> Tensor:
    own, chosen = keys, visible.chosen
    if chosen is not None:
        own = keys.index_select(0, chosen.clamp(min=0).flatten()).unflatten(0, chosen.shape)
    return divergence(mass, scores(query, own, weights), visible.mask(len(keys)))
