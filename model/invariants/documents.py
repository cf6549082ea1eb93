"""Packed documents are independent: one's losses are what they are without the others before and behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from model.data.rows.loader import Batch
from model.invariants.invariant import Invariant, Step
from model.invariants.view import View

# Of a document's mean loss in nats.
LIMITS = {False: 1e-4, True: 1e-2}  # {whether weights are bf16: limit}


class Documents(Invariant):
    """A row of the step's first micro-batch, cut behind its middle into two documents: the second one's loss, and
    MTP's, are the same where it begins the row and the first one is behind it, the last token first.

    Its first tokens count, as many as an indexer takes keys: of more with equal scores it may take others elsewhere.
    """

    name, computes = "documents", True
    remedy = "find the layer with python -m model.align SIZE, whose draws have documents of unequal lengths"

    def after(self, view: View, step: Step | None) -> tuple[list[float], float]:
        """(how far its losses are apart: the main one's, then each MTP depth's; the limit). No losses on stages but the
        last."""
        assert step is not None
        engine, size = view.engine, cast(Any, view.engine.size)
        rows = engine.recipe.micro_batch
        both = packed(step.batches[0], step.number % rows, rows, size.indexer.topk)
        losses = [engine.losses_of(one) for one in both]
        return [abs(a - b) for a, b in zip(*losses, strict=True)], LIMITS[engine.run.bf16]

    def broken(self, ranks: Sequence[tuple[list[float], float]]) -> str:
        for rank, (apart, limit) in enumerate(ranks):
            for depth, off in enumerate(apart):
                if not off <= limit:
                    loss = f"MTP-{depth}'s loss" if depth else "loss"
                    return f"a document's {loss} on rank {rank} is {off:.3g} off without what is before it in the row"
        return ""


def packed(batch: Batch, row: int, rows: int, most: int) -> tuple[Batch, Batch]:
    """``batch`` of ``rows`` rows with row number ``row`` as two documents, then with the second one first, and the
    first one behind it reversed. Only the first ``most`` tokens of the second one count."""
    total = len(batch.tokens)
    size = total // rows
    start, stop = row * size, (row + 1) * size
    cut = start + size // 2 + 1  # at no block's bound
    second, first = torch.arange(cut, stop), torch.arange(start, cut)
    found = []
    for order, length in ((torch.cat([first, second]), len(first)), (torch.cat([second, first.flip(0)]), len(second))):
        at = torch.arange(total)
        at[start:stop] = order
        positions, mask = batch.positions.clone(), torch.zeros_like(batch.loss_mask)
        positions[start:stop] = torch.cat([torch.arange(length), torch.arange(size - length)])
        mask[torch.isin(at, second[:most])] = 1
        bounds = batch.cu_seqlens
        bounds = torch.cat([bounds[bounds <= start], bounds.new_tensor([start + length]), bounds[bounds >= stop]])
        found.append(
            replace(
                batch,
                tokens=batch.tokens[at],
                labels=batch.labels[at],
                loss_mask=mask,
                positions=positions,
                cu_seqlens=bounds,
                max_seqlen=max(batch.max_seqlen, len(first)),
                structure=None if batch.structure is None else batch.structure[at],
            )
        )
    return found[0], found[1]
