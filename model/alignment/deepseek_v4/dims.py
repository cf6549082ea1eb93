"""Widths, counts and epsilons by which the formulas go."""

from __future__ import annotations

from dataclasses import dataclass

from model.families.deepseek_v4 import Size


@dataclass(frozen=True)
class Config:
    """``kinds``: of each published layer "sliding", "csa" or "hca"; the first ``hashed`` ones have a hash router."""

    kinds: tuple[str, ...]
    vocab: int
    hidden: int
    heads: int
    head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    csa: int
    hca: int
    index_heads: int
    index_width: int
    index_topk: int
    rope_width: int
    original: int
    ffn: int
    experts: int
    topk: int
    hashed: int
    scaling: float
    limit: float
    streams: int
    iterations: int
    hc_eps: float
    eps: float


def config(size: Size) -> Config:
    """Of a size: its widths, counts and epsilons."""
    a, i, e, m = size.attention, size.indexer, size.experts, size.hyper
    kinds = tuple(layer.kind for layer in size.layers[::2])
    return Config(
        *(kinds, size.vocab, size.hidden, size.heads, a.head_dim, a.q_lora_rank, a.o_groups, a.o_lora_rank),
        *(a.window, a.csa_ratio, a.hca_ratio, i.heads, i.head_dim, i.topk, a.qk_rope_head_dim),
        *(a.yarn.original_positions, e.ffn, e.count, e.topk, size.hash_layers, e.scaling, e.clamp),
        *(m.streams, m.sinkhorn_iterations, m.eps, size.rms_norm_eps),
    )
