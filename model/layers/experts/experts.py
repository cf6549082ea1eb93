"""Megatron-Core's grouped experts with one kernel between their two products."""

from __future__ import annotations

import functools
from typing import Any

from megatron.core.transformer.moe.experts import TEGroupedMLP
from torch import Tensor

from model.kinds import moe as kind
from model.layers.experts.weighted_gelu import weighted_gelu
from model.patched import seams


class Applied:
    """Stand-in for the routers' weights: multiplying by it is a no-op, because the activation already applied them."""

    def unsqueeze(self, _: int) -> Applied:
        return self

    def __rmul__(self, weighted: Any) -> Any:
        return weighted


class WeightedExperts(TEGroupedMLP):
    """Megatron's grouped experts, bf16 without biases, with ``weighted_gelu`` between their products."""

    def forward(self, hidden: Tensor, tokens: Tensor, weights: Tensor, *rest: Any) -> tuple[Tensor, None]:
        """hidden [T, h] sorted by expert, tokens of each expert [E], weights [T] fp32 -> ([T, h], no bias)."""
        seams.verify(kind.WEIGHTED_EXPERTS)
        self.activation_func = functools.partial(weighted_gelu, weights=weights)
        try:
            out: tuple[Tensor, None] = super().forward(hidden, tokens, Applied(), *rest)
            return out
        finally:
            self.activation_func = self.config.activation_func  # it keeps no graph alive until the next forward
