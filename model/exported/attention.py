"""Multi-latent attention over a cache of latents, dense or over the keys that the indexer chooses.

The cache has a token's compressed key-value row and its rotated rope key; keys and values of the heads are never made:
their projection is absorbed into queries and outputs, as ``absorbed_mla.py`` of megatron-core 0.19.0 does it. In exact
arithmetic that is what the dense layers' expanded attention gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.exported.dims import Dims, Layer
from model.exported.step import Linear, Step, turned


class Rows:
    """One row for each token of a document so far; ``capacity`` of them have room before it grows."""

    def __init__(self, capacity: int, width: int, like: Tensor) -> None:
        self.held, self.count = like.new_empty(capacity, width), 0

    def append(self, rows: Tensor) -> Tensor:
        """Add ``rows`` [S, width]; all rows so far [T, width]."""
        room, width = self.held.shape
        if (missing := self.count + len(rows) - room) > 0:  # it grows by half at least, so that all copies are linear
            self.held = torch.cat((self.held, self.held.new_empty(max(missing, room // 2), width)))
        self.held[self.count : self.count + len(rows)] = rows
        self.count += len(rows)
        return self.held[: self.count]


def _paired(x: Tensor) -> Tensor:
    """Channels 2i and 2i + 1, which MLA rotates together, to i and i + d/2."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


class Indexer(nn.Module):  # type: ignore[misc]
    """DSA's lightning indexer with a cache of its keys."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        i = dims.indexer
        self.heads, self.topk, self.scale = i.heads, i.topk, i.head_dim**-0.5
        self.wq_b = Linear(dims.attention.q_lora_rank, i.heads * i.head_dim)
        self.wk = Linear(dims.hidden, i.head_dim)
        self.k_norm = nn.LayerNorm(i.head_dim, eps=1e-5)
        self.weights_proj = Linear(dims.hidden, i.heads)

    def _turned(self, x: Tensor, step: Step) -> Tensor:
        """x [S, n, d] with its first channels rotated."""
        wide = step.rotary[0].shape[-1]
        return torch.cat((turned(x[..., :wide], step.rotary), x[..., wide:]), dim=-1)

    def forward(self, x: Tensor, compressed: Tensor, cache: Rows, step: Step) -> Tensor:
        """x [S, h], compressed queries [S, rank] -> the best keys of each token, [S, k] int64; -1 where there is none.

        Of keys with equal scores it takes those that torch's topk takes, as the training forward does.
        """
        query = self._turned(self.wq_b(compressed).unflatten(-1, (self.heads, -1)), step)  # [S, H, d]
        keys = cache.append(self._turned(self.k_norm(self.wk(x)).unsqueeze(1), step)[:, 0])  # [T, d]
        weights = self.weights_proj(x) * (self.heads**-0.5) * self.scale  # [S, H]
        work = torch.promote_types(x.dtype, torch.float32)
        scores = torch.einsum("shd,td->sht", query.to(work), keys.to(work)).relu()
        scores = torch.einsum("sht,sh->st", scores, weights.to(work)).masked_fill(step.future(len(keys)), -torch.inf)
        best, chosen = scores.topk(min(self.topk, len(keys)), dim=-1)
        return chosen.masked_fill(best == -torch.inf, -1)


@dataclass
class AttentionState:
    """``latents`` [T, rank + rope channels]; ``index`` [T, d] where the layer has an indexer."""

    latents: Rows
    index: Rows | None


class Attention(nn.Module):  # type: ignore[misc]
    """MLA; of a sparse layer over its own or an earlier layer's choice of keys."""

    def __init__(self, dims: Dims, layer: Layer) -> None:
        super().__init__()
        a, self.number, self.source = dims.attention, layer.number, layer.indices_from
        width = a.qk_nope_dim + a.qk_rope_dim
        self.heads, self.nope, self.rank, self.scale = a.heads, a.qk_nope_dim, a.kv_lora_rank, width**-0.5
        self.q_a_proj = Linear(dims.hidden, a.q_lora_rank)
        self.q_b_proj = Linear(a.q_lora_rank, a.heads * width)
        self.kv_a_proj_with_mqa = Linear(dims.hidden, a.kv_lora_rank + a.qk_rope_dim)
        self.kv_b_proj = Linear(a.kv_lora_rank, a.heads * (a.qk_nope_dim + a.v_dim))
        self.o_proj = Linear(a.heads * a.v_dim, dims.hidden)
        self.indexer = Indexer(dims) if self.source == self.number else None

    def begin(self, capacity: int) -> AttentionState:
        """The state ahead of a document of ``capacity`` tokens, or more."""
        like = self.kv_a_proj_with_mqa.weight
        index = Rows(capacity, len(self.indexer.wk.weight), like) if self.indexer else None
        return AttentionState(Rows(capacity, len(like), like), index)

    def forward(self, x: Tensor, state: AttentionState, step: Step) -> Tensor:
        """x [S, h] -> [S, h]."""
        compressed = self.q_a_proj(x)
        if self.indexer is not None:
            assert state.index is not None
            step.chosen[self.number] = self.indexer(x, compressed, state.index, step)
        up_key, up_value = self.kv_b_proj.weight.unflatten(0, (self.heads, -1)).tensor_split([self.nope], dim=1)
        plain, rope = self.q_b_proj(compressed).unflatten(-1, (self.heads, -1)).tensor_split([self.nope], dim=-1)
        query = torch.cat((torch.einsum("snd,ndk->snk", plain, up_key), turned(_paired(rope), step.rotary)), dim=-1)
        latent, key = self.kv_a_proj_with_mqa(x).tensor_split([self.rank], dim=-1)
        key = turned(_paired(key.unsqueeze(1)), step.rotary)[:, 0]
        rows = state.latents.append(torch.cat((latent, key), dim=-1))  # [T, rank + rope]
        mixed = self._attend(query, rows, step)  # [S, n, rank]
        return self.o_proj(torch.einsum("snk,ndk->snd", mixed, up_value).flatten(1))

    def _attend(self, query: Tensor, rows: Tensor, step: Step) -> Tensor:
        """query [S, n, d], rows [T, d] -> the latents that each head sees, [S, n, rank], in the query's dtype."""
        work = torch.promote_types(query.dtype, torch.float32)
        if self.source is None:
            keys, hidden = rows.to(work).expand(len(query), -1, -1), step.future(len(rows))
        else:
            chosen = step.chosen[self.source]
            keys, hidden = rows[chosen.clamp_min(0)].to(work), chosen < 0
        scores = torch.einsum("snd,skd->snk", query.to(work), keys) * self.scale
        share = scores.masked_fill(hidden.unsqueeze(1), -torch.inf).softmax(-1)
        return torch.einsum("snk,skd->snd", share, keys[..., : self.rank]).to(query.dtype)
