"""Core attention over a window of keys and compressed entries, with a sink, by blocks of queries.

Keys are the values too. Memory is linear in the row's tokens: no block's logits outlive it, backward makes them anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from model.layers.common import fp32
from model.layers.deepseek_v4.compressor import Visible

QUERIES = 64  # a block's: 512 chosen entries of 512 channels for each take 64 MiB in fp32


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
    for start in range(0, len(query), QUERIES):
        rows, first = slice(start, start + QUERIES), max(0, start - window + 1)
        block = _Block(start, first, window, positions[rows], None if visible is None else visible.of(rows))
        given = query[rows], kv[first : start + QUERIES], sink, entries
        if torch.is_grad_enabled():
            output, mass = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            output, mass = block(*given)
        outputs.append(output)
        masses.append(mass)
    return torch.cat(outputs), None if entries is None else torch.cat(masses)


@dataclass(frozen=True)
class _Block:
    """B queries, from place ``start`` of the row on, over the keys from place ``first`` on."""

    start: int
    first: int
    window: int
    positions: Tensor
    visible: Visible | None

    def __call__(self, query: Tensor, kv: Tensor, sink: Tensor, entries: Tensor | None) -> tuple[Tensor, Tensor | None]:
        q, keys = fp32.wide(query) * query.shape[-1] ** -0.5, fp32.wide(kv)
        logits = [
            sink.to(q.dtype).expand(len(q), -1)[..., None],
            torch.einsum("bhd,td->bht", q, keys).masked_fill(~self._near(len(kv))[:, None], -torch.inf),
        ]
        if entries is None or self.visible is None:
            return torch.einsum("bht,td->bhd", torch.cat(logits, -1).softmax(-1)[..., 1:], keys).to(query.dtype), None
        chosen, values, each = self.visible.chosen, fp32.wide(entries), "ed"  # one set for all queries
        if chosen is not None:
            values, each = values[chosen.clamp(min=0)], "bed"  # a set for each
        far = torch.einsum(f"bhd,{each}->bhe", q, values)
        logits.append(far.masked_fill(~self.visible.mask(len(entries))[:, None], -torch.inf))
        near, far = torch.cat(logits, -1).softmax(-1)[..., 1:].split([len(kv), far.shape[-1]], dim=-1)
        output = torch.einsum("bht,td->bhd", near, keys) + torch.einsum(f"bhe,{each}->bhd", far, values)
        return output.to(query.dtype), far.detach().sum(1)

    def _near(self, keys: int) -> Tensor:
        """[B, keys] bool: those of the window, which begins with the document and ends with the query."""
        at = torch.arange(self.start, self.start + len(self.positions), device=self.positions.device)
        back = at[:, None] - torch.arange(self.first, self.first + keys, device=at.device)
        return (back >= 0) & (back < self.window) & (back <= self.positions[:, None])
