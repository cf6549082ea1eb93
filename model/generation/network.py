"""NAM56R's main stack with the states of one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model.families.nam56r import Size
from model.families.pattern import Layer
from model.kinds.path import called
from model.layers.common.decoding import Linear, Step, rotary
from model.layers.ends.ngram import NgramHashEmbedding
from model.layers.ends.structure import StructureEmbedding


@dataclass
class State:
    """A document so far: tokens read, the last ones of them for the n-grams, and each layer's own state."""

    read: int
    last: Tensor  # [orders - 1 at most] int64
    layers: list[Any]


class Decoder(nn.Module):  # type: ignore[misc]
    """The model without its MTP depths, which only training uses. Build it on the meta device, then load."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.ModuleDict({"word_embeddings": nn.Embedding(size.vocab, size.hidden)})
        n, s = size.ngram, size.structure
        self.ngram = NgramHashEmbedding(size.hidden, size.vocab, n.rows, n.orders, n.heads, n.dim)
        self.structure = StructureEmbedding(size.hidden, s.fields, s.bottleneck)
        layers = nn.ModuleList(_layer(size, layer) for layer in size.layers)
        self.decoder = nn.ModuleDict({"layers": layers, "final_norm": nn.RMSNorm(size.hidden, eps=1e-5)})
        self.output_layer = Linear(size.hidden, size.vocab)
        self.requires_grad_(False)

    def begin(self, capacity: int) -> State:
        """The state ahead of a document of at most ``capacity`` tokens."""
        layers = [inner.begin(capacity) for _, inner in map(nn.ModuleDict.values, self.decoder["layers"])]
        return State(0, torch.empty(0, dtype=torch.int64, device=self.output_layer.weight.device), layers)

    def forward(self, tokens: Tensor, fields: Mapping[str, Tensor] | None, state: State) -> Tensor:
        """The document's next ``tokens`` [S] int64 and their ``fields`` [S] -> hidden states [S, h] for ``logits``.

        ``fields`` are None for a model whose data had none. The state is then that after these tokens.
        """
        positions = torch.arange(state.read, state.read + len(tokens), device=tokens.device)
        a = self.size.attention
        step = Step(positions, rotary(positions, a.qk_rope_dim, a.rope_base))
        hidden = self._entrance(tokens, fields, state)
        for layer, held in zip(self.decoder["layers"], state.layers, strict=True):
            norm, inner = layer.values()
            hidden = hidden + inner(norm(hidden), held, step)
        state.read += len(tokens)
        out: Tensor = self.decoder["final_norm"](hidden)
        return out

    def _entrance(self, tokens: Tensor, fields: Mapping[str, Tensor] | None, state: State) -> Tensor:
        known = torch.cat((state.last, tokens))
        places = torch.arange(state.read - len(state.last), state.read + len(tokens), device=tokens.device)
        state.last = known[1 - max(self.ngram.orders) :]
        words: Tensor = self.embedding["word_embeddings"](tokens)
        added = self.ngram(known, places)[-len(tokens) :]
        if fields is not None:
            added = added + self.structure(fields)
        return words + added.to(words.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, h] -> [S, vocab]."""
        out: Tensor = self.output_layer(hidden)
        return out


def _layer(size: Size, layer: Layer) -> nn.ModuleDict:
    norm, inner = layer.of.inside
    return nn.ModuleDict({norm: nn.RMSNorm(size.hidden, eps=1e-5), inner: called(layer.of.state)(size, layer)})
