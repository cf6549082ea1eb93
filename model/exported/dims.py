"""The dimensions of a NAM56R, as ``config.json`` has them under ``network``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """``kind``: "mla", "dsa", "moe", "mamba3" or "m2rnn". ``indices_from``: of sparse attention the number, from 1, of
    the layer whose indexer chooses its keys."""

    number: int
    kind: str
    indices_from: int | None


@dataclass(frozen=True)
class AttentionDims:
    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_dim: int
    rope_base: int


@dataclass(frozen=True)
class IndexerDims:
    heads: int
    head_dim: int
    topk: int


@dataclass(frozen=True)
class ExpertDims:
    count: int
    topk: int
    ffn: int
    shared_ffn: int


@dataclass(frozen=True)
class Mamba3Dims:
    """``angles``: rotary angles of a head, half of the channels that turn. ``rank``: 1 for SISO."""

    heads: int
    head_dim: int
    groups: int
    state: int
    rank: int
    angles: int
    A_floor: float


@dataclass(frozen=True)
class M2rnnDims:
    heads: int
    k_dim: int
    v_dim: int
    conv: int


@dataclass(frozen=True)
class NgramDims:
    """``sizes``: rows of each hash table, ``heads`` of them an order."""

    orders: tuple[int, ...]
    heads: int
    sizes: tuple[int, ...]
    dim: int


@dataclass(frozen=True)
class StructureDims:
    """``fields``: {field: its classes}, in the order of their embeddings."""

    fields: dict[str, int]
    bottleneck: int


@dataclass(frozen=True)
class Dims:
    """``hidden``: channels of a token between layers. ``vocab``: rows of the embedding and of the head."""

    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    attention: AttentionDims
    indexer: IndexerDims
    experts: ExpertDims
    mamba: Mamba3Dims
    m2rnn: M2rnnDims
    ngram: NgramDims
    structure: StructureDims

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Dims:
        """From JSON, of which it takes fields of these names alone. Raises KeyError and TypeError for others."""
        ngram = said["ngram"]
        return cls(
            said["hidden"],
            said["vocab"],
            tuple(Layer(number, **layer) for number, layer in enumerate(said["layers"], 1)),
            AttentionDims(**said["attention"]),
            IndexerDims(**said["indexer"]),
            ExpertDims(**said["experts"]),
            Mamba3Dims(**said["mamba"]),
            M2rnnDims(**said["m2rnn"]),
            NgramDims(tuple(ngram["orders"]), ngram["heads"], tuple(ngram["sizes"]), ngram["dim"]),
            StructureDims(**said["structure"]),
        )
