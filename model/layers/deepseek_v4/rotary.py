"""Rotary position embedding of DeepSeek-V4: interleaved pairs in the last channels, with two bases, and its inverse.

Layers without compression rotate by base 10,000, those with compression by 160,000 under YaRN (arXiv 2309.00071), whose
attention factor is left out: neither the tables nor the softmax's scale have it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.layers.common import documents

Table = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Yarn:
    """Contexts ``factor`` times as long as ``original`` tokens. A pair of channels that turns more than ``beta_fast``
    times within ``original`` keeps its frequency, one that turns less than ``beta_slow`` times has it divided."""

    factor: float = 16.0
    original: int = 65_536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Rope:
    """The rotation of a vector's last ``width`` channels, of which 2i and 2i + 1 are a pair."""

    width: int
    base: float
    yarn: Yarn | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a ``width`` that has no pairs."""
        if self.width < 2 or self.width % 2:
            raise ValueError(f"a rotation takes an even number of channels, two or more, not {self.width}")

    def frequencies(self, like: Tensor) -> Tensor:
        """Radians a position, [width / 2], on the device of ``like`` and in its dtype, at least fp32."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        pair = torch.arange(0, self.width, 2, dtype=dtype, device=like.device)
        plain = 1.0 / self.base ** (pair / self.width)
        if self.yarn is None:
            return plain
        low, high = self._ramp(self.yarn)
        ramp = ((pair / 2 - low) / (high - low)).clamp(0, 1)
        return plain / self.yarn.factor * ramp + plain * (1 - ramp)

    def _ramp(self, yarn: Yarn) -> tuple[float, float]:
        """The pairs between which frequencies go over from kept to divided."""

        def turning(times: float) -> float:
            return self.width * math.log(yarn.original / (2 * math.pi * times)) / (2 * math.log(self.base))

        low = max(math.floor(turning(yarn.beta_fast)), 0)
        high = min(math.ceil(turning(yarn.beta_slow)), self.width - 1)
        return low, high if high != low else high + 0.001

    def table(self, positions: Tensor, like: Tensor) -> Table:
        """cos and sin of positions [T] int64: [T, width / 2] each, as ``frequencies``."""
        frequencies = self.frequencies(like)
        angles = positions.to(frequencies.dtype)[:, None] * frequencies
        return angles.cos(), angles.sin()

    def shared(self, cu_seqlens: Tensor, ratio: int, positions: Tensor, like: Tensor) -> Table:
        """``table`` of the ``positions`` of windows of ``ratio`` tokens, or of tokens; kept as ``documents.once``."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        what = ("rotation", self, ratio, dtype, len(positions))
        return documents.once(cu_seqlens, what, lambda: self.table(positions, like))


PLAIN = Rope(64, 10_000.0)  # of V4-Flash's and V4-Pro's layers without compression
COMPRESSED = Rope(64, 160_000.0, Yarn())  # and of those with it: queries, keys, entries, outputs and indexers


def rotate(x: Tensor, table: Table, inverse: bool = False) -> Tensor:
    """x [T, ..., D], its last channels rotated by ``table``, or turned back; computed in the table's dtype, in x's own.

    Raises ValueError where D is less than the table's channels.
    """
    cos, sin = (part.reshape(len(part), *[1] * (x.dim() - 2), part.shape[1]) for part in table)
    width = 2 * cos.shape[-1]
    if x.shape[-1] < width:
        raise ValueError(f"a rotation of {width} channels needs as many, x has {x.shape[-1]}")
    plain, turned = x.split([x.shape[-1] - width, width], dim=-1)
    even, odd = turned.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    sin = -sin if inverse else sin
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((plain, pairs.flatten(-2).to(x.dtype)), dim=-1)
