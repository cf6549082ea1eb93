"""Core attention over a window of keys and compressed entries, with a sink, by blocks of queries.

Keys are the values too. Memory is linear in the row's tokens: no block's logits outlive it, backward makes them anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model.layers.common import fp32
from model.layers.common.blocks import blocks
from model.layers.deepseek_v4.compressor import Visible


def core_attention(
    query: Tensor,
    kv: Tensor,
    sink: Tensor,
    positions: Tensor,
    window: int,
    entries: Tensor | None = None,
    visible: Visible | None = None,
) -> tuple[Tensor, Tensor | None]:
    """query [T, H, D], kv [T, D], sink [H], positions [T] int64 within documents -> output [T, H, D] in query's dtype.

    A token sees the ``window`` keys of its document that end with its own, and of the compressed entries [E, D] the
    ``visible``. The softmax's denominator has exp(sink) besides, its numerators do not; its scale is 1 / sqrt(D).

    The second result is what the compressed entries get of the probability, summed over heads, without a gradient:
    [T, k] of the chosen or [T, E] of all; None without entries. It is what the indexer learns from.
    """
    outputs, masses = [], []
    for rows in blocks(query):
        first = max(0, rows.start - window + 1)
        block = _Block(rows.start, first, window, positions[rows], None if visible is None else visible.of(rows))
        given = query[rows], kv[first : rows.stop], sink, entries
        if torch.is_grad_enabled():
            output, mass = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            output, mass = block(*given)
        outputs.append(output)
        masses.append(mass)
    return torch.cat(outputs), None if entries is None else torch.cat(masses)


@dataclass(frozen=True)
class _Block:
    """B queries, from place ``start`` of the row on, over the keys from place ``first`` on.

    Chunks of as many queries as the window has keys see the keys of two chunks, so that no more than half of the
    products near a query are masked.
    """

    start: int
    first: int
    window: int
    positions: Tensor
    visible: Visible | None

    def __call__(self, query: Tensor, kv: Tensor, sink: Tensor, entries: Tensor | None) -> tuple[Tensor, Tensor | None]:
        q = fp32.wide(query) * query.shape[-1] ** -0.5
        keys = self._near(fp32.wide(kv))  # [N, C + W - 1, D]
        logits = torch.einsum("nchd,ntd->ncht", self._chunks(q), keys).flatten(0, 1)[: len(q)]
        wanted = [
            sink.to(q.dtype).expand(len(q), -1)[..., None],
            logits.masked_fill(~self._seen()[:, None], -torch.inf),
        ]
        if entries is None or self.visible is None:
            return self._of_near(torch.cat(wanted, -1).softmax(-1)[..., 1:], keys).to(query.dtype), None
        chosen, values, each = self.visible.chosen, fp32.wide(entries), "ed"  # one set for all queries
        if chosen is not None:  # a set for each; index_select's gradient adds rows at once, an index's sorts them first
            values, each = values.index_select(0, chosen.clamp(min=0).flatten()).unflatten(0, chosen.shape), "bed"
        far = torch.einsum(f"bhd,{each}->bhe", q, values)
        wanted.append(far.masked_fill(~self.visible.mask(len(entries))[:, None], -torch.inf))
        near, far = torch.cat(wanted, -1).softmax(-1)[..., 1:].split([logits.shape[-1], far.shape[-1]], dim=-1)
        output = self._of_near(near, keys) + torch.einsum(f"bhe,{each}->bhd", far, values)
        return output.to(query.dtype), far.detach().sum(1)

    @property
    def _chunk(self) -> int:
        return min(self.window, len(self.positions))

    def _chunks(self, rows: Tensor) -> Tensor:
        """[N, C, ...] of [B, ...], with rows of 0 behind the last."""
        short = -len(rows) % self._chunk
        return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, short]).unflatten(0, (-1, self._chunk))

    def _near(self, kv: Tensor) -> Tensor:
        """[N, C + W - 1, D]: the keys from W - 1 places before each chunk's first query to its last."""
        before = self.window - 1 - (self.start - self.first)  # there are none before the row's first
        short = -len(self.positions) % self._chunk
        padded = F.pad(kv, (0, 0, before, short))
        return padded.unfold(0, self._chunk + self.window - 1, self._chunk).transpose(1, 2)

    def _of_near(self, near: Tensor, keys: Tensor) -> Tensor:
        """[B, H, D] of probabilities [B, H, C + W - 1]."""
        return torch.einsum("ncht,ntd->nchd", self._chunks(near), keys).flatten(0, 1)[: len(near)]

    def _seen(self) -> Tensor:
        """[B, C + W - 1] bool: those of the window, which begins with the document and ends with the query."""
        query = torch.arange(len(self.positions), device=self.positions.device) % self._chunk
        key = torch.arange(self._chunk + self.window - 1, device=query.device) - self.window + 1
        back = query[:, None] - key
        return (back >= 0) & (back < self.window) & (back <= self.positions[:, None])
