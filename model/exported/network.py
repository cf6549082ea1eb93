"""NAM56R's main stack with the states of one document. Modules have the names of an export's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from model.exported.attention import Attention
from model.exported.dims import Dims, Layer
from model.exported.experts import Experts
from model.exported.m2rnn import M2rnn
from model.exported.mamba3 import Mamba3
from model.exported.ngram import NgramHashEmbedding
from model.exported.step import Linear, Step, rotary
from model.exported.structure_embedding import StructureEmbedding

# of a layer: what its norm is called, what the rest is called, and the rest
INSIDE: dict[str, tuple[str, str, type[nn.Module]]] = {
    "mla": ("input_layernorm", "self_attn", Attention),
    "dsa": ("input_layernorm", "self_attn", Attention),
    "moe": ("post_attention_layernorm", "mlp", Experts),
    "mamba3": ("norm", "mamba", Mamba3),
    "m2rnn": ("norm", "m2rnn", M2rnn),
}
# last parts of the names of tensors that stay fp32 in a model of bf16
FP32 = ("dt_bias", "D", "A_log", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o", "e_score_correction_bias")


def fp32(name: str) -> bool:
    """Whether the tensor of this name stays fp32 in a model of bf16."""
    return name.rpartition(".")[2] in FP32


@dataclass
class State:
    """A document so far: tokens read, the last ones of them for the n-grams, and each layer's own state."""

    read: int
    last: Tensor  # [orders - 1 at most] int64
    layers: list[Any]


class Network(nn.Module):  # type: ignore[misc]
    """The model without its MTP depths, which only training uses."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.dims = dims
        n, s = dims.ngram, dims.structure
        self.ngram = NgramHashEmbedding(dims.hidden, dims.vocab, n.sizes, n.orders, n.heads, n.dim)
        self.structure = StructureEmbedding(dims.hidden, s.fields, s.bottleneck)
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(dims.vocab, dims.hidden),
                "layers": nn.ModuleList(_layer(dims, layer) for layer in dims.layers),
                "norm": nn.RMSNorm(dims.hidden, eps=1e-5),
            }
        )
        self.lm_head = Linear(dims.hidden, dims.vocab)

    def begin(self, capacity: int) -> State:
        """The state ahead of a document, with room for ``capacity`` tokens before its caches have to grow."""
        layers = [inner.begin(capacity) for _, inner in map(nn.ModuleDict.values, self.model["layers"])]
        return State(0, torch.empty(0, dtype=torch.int64, device=self.lm_head.weight.device), layers)

    def forward(self, tokens: Tensor, fields: Mapping[str, Tensor] | None, state: State) -> Tensor:
        """The document's next ``tokens`` [S] int64 and their ``fields`` [S] -> hidden states [S, h] for ``logits``.

        ``fields`` are None for a model whose data had none. The state is then that after these tokens.
        """
        positions = torch.arange(state.read, state.read + len(tokens), device=tokens.device)
        a = self.dims.attention
        step = Step(positions, rotary(positions, a.qk_rope_dim, a.rope_base))
        hidden = self._entrance(tokens, fields, state)
        for layer, held in zip(self.model["layers"], state.layers, strict=True):
            norm, inner = layer.values()
            hidden = hidden + inner(norm(hidden), held, step)
        state.read += len(tokens)
        out: Tensor = self.model["norm"](hidden)
        return out

    def _entrance(self, tokens: Tensor, fields: Mapping[str, Tensor] | None, state: State) -> Tensor:
        known = torch.cat((state.last, tokens))
        places = torch.arange(state.read - len(state.last), state.read + len(tokens), device=tokens.device)
        state.last = known[1 - max(self.ngram.orders) :]
        words: Tensor = self.model["embed_tokens"](tokens)
        added = self.ngram(known, places)[-len(tokens) :]
        if fields is not None:
            added = added + self.structure(fields)
        return words + added.to(words.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [S, h] -> [S, vocab]."""
        out: Tensor = self.lm_head(hidden)
        return out


def _layer(dims: Dims, layer: Layer) -> nn.ModuleDict:
    norm, inner, of = INSIDE[layer.kind]
    return nn.ModuleDict({norm: nn.RMSNorm(dims.hidden, eps=1e-5), inner: of(dims, layer)})
