"""FLOPs of a training step per token: Megatron's published formula, and the matrix products that are really computed.

A multiply-add is two FLOPs; a backward pass is counted as two forwards. Publish tokens/s/GPU first, then both figures:
the formula overstates MLA (as if it were full multi-head attention) and understates Mamba-3's rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.families.family import Family
from model.kinds import kind
from model.kinds.kind import BACKWARD


@dataclass(frozen=True)
class Mean:
    """One token of a document of ``sequence``: on average it sees half of them. Windows are counted exactly."""

    sequence: int
    tokens: float = 1

    def keys(self, most: float = math.inf) -> float:
        return min(most, self.sequence / 2)

    def windows(self, ratio: int, most: float = math.inf) -> float:
        return kind.windows(self.sequence, ratio, most) / self.sequence


def megatron(size: Family, sequence: int | None = None) -> float:
    """``hybrid_flops`` of Megatron-LM's training.py: MLA and DSA as full attention, M²RNN as Mamba-2; of DeepSeek-V4's
    layers that of branch dev, as ``model.kinds.deepseek_v4`` says."""
    return BACKWARD * sum(one.published(sequence or size.sequence) for _, one in size.placed)


def built(size: Family, sequence: int | None = None) -> dict[str, float]:
    """Matrix products of a training step per token, by part; rows are one document of ``sequence`` tokens."""
    found = dict.fromkeys(size.flops_rows, 0.0)
    seen = Mean(sequence or size.sequence)
    for _, one in size.placed:
        for products in one.products(seen):
            if not products.once:
                found[products.part] = found.get(products.part, 0) + (1 + products.backwards) * products.flops
    return found


def total(size: Family, sequence: int | None = None) -> float:
    """All of ``built``."""
    return sum(built(size, sequence).values())
