"""What the layers with states share in one pass over a document's next tokens."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Linear = functools.partial(nn.Linear, bias=False)


@dataclass
class Step:
    """What the layers of one pass over S tokens share. ``chosen``: [S, k] int64 keys by indexing layer, -1 for none."""

    positions: Tensor  # [S] int64, within the document
    rotary: tuple[Tensor, Tensor]  # cos, sin [S, 1, rope channels] fp32
    chosen: dict[int, Tensor] = field(default_factory=dict)

    def future(self, keys: int) -> Tensor:
        """[S, keys] bool: the keys that a token does not see."""
        at = torch.arange(keys, device=self.positions.device)
        return at > self.positions[:, None]


def rotary(positions: Tensor, width: int, base: int) -> tuple[Tensor, Tensor]:
    """cos, sin [S, 1, width] fp32, by the arithmetic of megatron-core's RotaryEmbedding (rotary_pos_embedding.py)."""
    frequency = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width))
    angle = torch.outer(positions.to(torch.float32), frequency).repeat(1, 2).unsqueeze(1)
    return angle.cos(), angle.sin()


def turned(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """x [S, n, d], whose channels i and i + d/2 are a pair, rotated; its dtype."""
    cos, sin = (part.to(x.dtype) for part in by)
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin
