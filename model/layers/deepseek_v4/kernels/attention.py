"""What an attention layer of DeepSeek-V4 takes of the kernels, under the names of their torch twins."""

from __future__ import annotations

from torch import Tensor

from model.layers.deepseek_v4 import indexer as reference
from model.layers.deepseek_v4.compressor import Visible
from model.layers.deepseek_v4.indexer import Projected
from model.layers.deepseek_v4.kernels import indexer
from model.layers.deepseek_v4.kernels.core import core_attention
from model.layers.deepseek_v4.kernels.pool import pool
from model.layers.deepseek_v4.kernels.rows import norm_rotate

__all__ = ["core_attention", "loss", "norm_rotate", "pool", "select"]


def select(given: Projected, visible: Visible, topk: int) -> Tensor:
    """As ``deepseek_v4.indexer.select``, which itself chooses among more than ``indexer.SLOTS`` entries."""
    if len(given.keys) > indexer.SLOTS:
        return reference.select(given, visible, topk)
    return indexer.select(*given, visible, topk)


def loss(given: Projected, visible: Visible, mass: Tensor) -> Tensor:
    """As ``deepseek_v4.indexer.loss``, of chosen entries."""
    return reference.divergence(mass, indexer.scores(*given, visible), visible.mask(len(given.keys)))
