"""The layout of Mamba-3's scan in torch: rows and documents as one stream of steps, head first, in whole chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """All rows as one stream of T steps, padded to whole chunks; padding is a document of its own.

    ``document`` int64 [T]; ``ends`` int64 [documents], one past each document's last step; ``chunk`` C.
    """

    document: Tensor
    ends: Tensor
    chunk: int

    @classmethod
    def of(cls, batch: int, length: int, cu_seqlens: Tensor | None, chunk: int, device: torch.device) -> Stream:
        steps = torch.arange(batch * length + -batch * length % chunk, device=device)
        if cu_seqlens is None:
            ends = torch.arange(1, batch + 1, device=device) * length
        else:
            ends = cu_seqlens[1:].to(device=device, dtype=torch.int64)
        return cls(torch.bucketize(steps, ends, right=True), ends, chunk)

    @property
    def chunks(self) -> int:
        return len(self.document) // self.chunk

    def _padded(self, t: Tensor) -> Tensor:
        """[X, T without padding, ...] to [X, T, ...], with zeros."""
        return F.pad(t, (0, 0) * (t.dim() - 2) + (0, len(self.document) - t.shape[1]))

    def heads_first(self, t: Tensor) -> Tensor:
        """[B, S, ..., H, X] to [H, T, ..., X]."""
        return self._padded(t.movedim(-2, 0).flatten(1, 2))

    def rows_joined(self, t: Tensor) -> Tensor:
        """[B, H, S] to [H, T]."""
        return self._padded(t.transpose(0, 1).flatten(1))

    def same(self, left: Tensor, right: Tensor) -> Tensor:
        """bool [..., A, B]: the documents ``left`` [..., A] and ``right`` [..., B] are the same."""
        return left[..., :, None] == right[..., None, :]
