"""Compressed keys: entries that each stand for a window of a document's tokens, with or without overlap."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn

from model.exported.step import Linear
from model.layers.common import documents, fp32
from model.layers.common.norm import WideRMSNorm
from model.layers.deepseek_v4.rotary import Rope, rotate


@dataclass(frozen=True)
class Windows:
    """The whole windows of ``ratio`` tokens in each document of a row of T tokens, and which a token sees.

    A document's last len mod ratio tokens are in none. There are E = T // ratio slots, the documents' windows in order
    first; no token sees the others, which exist so that no shape depends on where documents end.
    """

    tokens: Tensor  # [E, ratio] int64, places in the row
    positions: Tensor  # [E] int64, of the window's first token within its document: what an entry is rotated by
    opens: Tensor  # [E] bool, whether it is its document's first
    begin: Tensor  # [T] int64, slot of the token's document's first window
    seen: Tensor  # [T] int64, how many from there the token sees: those that end with it or before it


@dataclass(frozen=True)
class Visible:
    """Which slots each of B tokens sees: the ``seen`` [B] from ``begin`` [B] on, or of those the ``chosen`` [B, k]
    int64 alone, -1 for none."""

    begin: Tensor
    seen: Tensor
    chosen: Tensor | None = None

    def of(self, rows: slice) -> Visible:
        """The same for some of the tokens."""
        return Visible(self.begin[rows], self.seen[rows], None if self.chosen is None else self.chosen[rows])

    def mask(self, slots: int) -> Tensor:
        """[B, k] bool, which of the chosen are there, or [B, slots] bool where none are chosen."""
        if self.chosen is not None:
            return self.chosen >= 0
        slot = torch.arange(slots, device=self.begin.device)
        return (slot >= self.begin[:, None]) & (slot < (self.begin + self.seen)[:, None])


def windows(cu_seqlens: Tensor, tokens: int, ratio: int) -> Windows:
    """The windows of a row of ``tokens`` with document bounds ``cu_seqlens`` int32 [D+1]; kept as ``documents.once``.

    Needs no host synchronisation. Raises ValueError as ``documents.check``.
    """
    place = documents.positions(cu_seqlens, tokens)
    return documents.once(cu_seqlens, ("windows", tokens, ratio), lambda: _windows(cu_seqlens, place, ratio))


def _windows(cu_seqlens: Tensor, place: Tensor, ratio: int) -> Windows:
    tokens, bounds = len(place), cu_seqlens.long()
    ends = (bounds.diff() // ratio).cumsum(0)  # [D]
    firsts = ends - bounds.diff() // ratio  # [D], each document's first slot
    slot = torch.arange(tokens // ratio, device=place.device)  # [E]
    owner = torch.searchsorted(ends, slot, right=True).clamp(max=len(ends) - 1)
    window = slot - firsts[owner]
    inner = torch.arange(ratio, device=place.device)
    at = bounds[owner, None] + window[:, None] * ratio + inner
    document = torch.searchsorted(bounds[1:], torch.arange(tokens, device=place.device), right=True)  # [T]
    return Windows(at.clamp(max=tokens - 1), window * ratio, window == 0, firsts[document], (place + 1) // ratio)


def pool(keys: Tensor, gates: Tensor, opens: Tensor, overlap: bool) -> Tensor:
    """Each window's keys, weighted by the softmax of the gates over its tokens, channel by channel: [E, D'].

    keys, gates [E, ratio, c D']; the result has the gates' dtype, the wider one. Without overlap c is 1. With it c is
    2: a window's own tokens give the second half of the channels, and the tokens of the window before it the first
    half, unless the document begins here (``opens``).
    """
    if overlap:
        (before, own), (weight, weight_own) = keys.chunk(2, dim=-1), gates.chunk(2, dim=-1)
        weight = weight.roll(1, 0).masked_fill(opens[:, None, None], -torch.inf)
        keys, gates = torch.cat((before.roll(1, 0), own), dim=1), torch.cat((weight, weight_own), dim=1)
    return (keys * gates.softmax(1)).sum(1)


class Compressor(nn.Module):  # type: ignore[misc]
    """Compressed keys of ``width`` D' channels, which are the values too.

    ``ape`` [ratio, c D'] is added to the gates by the token's place in its window; it starts at 0, as in transformers
    5.24.0, stays fp32 (``fp32.keep``) and, a bias, is not decayed (``_no_weight_decay``). The two products are in the
    weights' dtype: DeepSeek's inference code keeps them in fp32, Megatron-LM's branch dev @d48bd6be in the model's. All
    that follows is in fp32 and rounded once. ``kernels``: ``hybrid.kernels`` where they compute it.
    """

    def __init__(self, hidden: int, width: int, ratio: int, overlap: bool, rope: Rope, eps: float = 1e-6) -> None:
        super().__init__()
        self.ratio, self.overlap, self.rope = ratio, overlap, rope
        self.kernels: ModuleType | None = None
        channels = (2 if overlap else 1) * width
        self.linear_wkv, self.linear_wgate = Linear(hidden, channels), Linear(hidden, channels)
        self.ape = fp32.keep(nn.Parameter(torch.empty(ratio, channels, dtype=torch.float32)))
        self.ape._no_weight_decay = True
        self.norm = WideRMSNorm(width, eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every parameter anew, as ``to_empty`` requires."""
        for linear in (self.linear_wkv, self.linear_wgate):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(self.ape)
        self.norm.reset_parameters()

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """hidden [T, d] -> entries [E, D'] of the slots of ``windows``, in hidden's dtype.

        Raises ValueError for other ``cu_seqlens``, as ``documents.check``.
        """
        found = windows(cu_seqlens, len(hidden), self.ratio)
        inner = hidden.to(self.linear_wkv.weight.dtype)
        if self.kernels is not None:
            return self._entries(self.kernels, inner, found, cu_seqlens).to(hidden.dtype)
        keys = self.linear_wkv(inner)[found.tokens]  # [E, ratio, c D']
        gates = fp32.wide(self.linear_wgate(inner))[found.tokens]
        entries = self.norm(pool(keys, gates + self.ape.to(gates.dtype), found.opens, self.overlap))
        return rotate(entries, self.rope.shared(cu_seqlens, self.ratio, found.positions, entries)).to(hidden.dtype)

    def _entries(self, by: ModuleType, inner: Tensor, found: Windows, cu_seqlens: Tensor) -> Tensor:
        """Of ``inner`` [T, d] the same by kernels, in its dtype."""
        keys, gates = self.linear_wkv(inner), self.linear_wgate(inner)  # [T, c D']
        pooled = by.pool(keys, gates, self.ape, found, self.overlap)
        table = self.rope.shared(cu_seqlens, self.ratio, found.positions, pooled)
        entries: Tensor = by.norm_rotate(pooled, self.norm.weight, self.norm.eps, table, inner.dtype)
        return entries
