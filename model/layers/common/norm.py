"""RMSNorm in the form that Megatron's specs build; torch's fused kernel on CUDA."""

from __future__ import annotations

from typing import Any

from torch import nn


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm over the last dimension, weight in ``config.params_dtype``."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm over the last dimension: the DSA indexer's norm of its key."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
