"""The indexer's choice and its scores on a GPU, with the values of ``deepseek_v4.indexer``.

The row's scores of all entries exist for some tokens at a time, ``SCORES`` numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from model.layers.deepseek_v4 import indexer as reference
from model.layers.deepseek_v4.compressor import Visible
from model.layers.deepseek_v4.hybrid.kernels import choose as kernels
from model.layers.deepseek_v4.hybrid.kernels.core import KEYS, seen_from, shares
from model.layers.deepseek_v4.indexer import Projected

SCORES = 1 << 26
SLOTS = 16_384  # that a program holds to choose among


def sizes(query: Tensor) -> dict[str, int]:
    """Compile-time ones of queries [T, H, D]."""
    (H, D), up = query.shape[1:], triton.next_power_of_2
    return {"H": H, "D": D, "HEADS": max(16, up(H)), "WIDE": max(16, up(D)), "KEYS": KEYS}


@torch.no_grad()
def select(given: Projected, visible: Visible, topk: int) -> Tensor:
    """As ``deepseek_v4.indexer.select``, by slot, -1 for none at the end; it itself takes more than ``SLOTS``."""
    if len(given.keys) > SLOTS:
        return reference.select(given, visible, topk)
    query, keys, weights = (x.contiguous() for x in given)
    T, E = len(query), len(keys)
    chosen = torch.full((T, min(topk, E)), -1, dtype=torch.int64, device=query.device)
    tokens = max(1, SCORES // max(1, E))
    for start in range(0, T if E else 0, tokens):
        rows = slice(start, min(start + tokens, T))
        seen = visible.of(rows)
        scores = torch.empty(rows.stop - start, E, dtype=torch.float32, device=query.device)
        grid = (len(scores),)
        kernels.scored[grid](query[rows], keys, weights[rows], seen.begin, seen.seen, scores, E, **sizes(query))
        kernels.best[grid](
            scores, seen.begin, seen.seen, chosen[rows], E, chosen.shape[1], SLOTS=triton.next_power_of_2(E),
            num_warps=4 if E <= 4096 else 16,
        )  # fmt: skip
    return chosen


def loss(given: Projected, visible: Visible, mass: Tensor) -> Tensor:
    """As ``deepseek_v4.indexer.loss``, of chosen entries."""
    return reference.divergence(mass, scores(*given, visible), visible.mask(len(given.keys)))


def scores(query: Tensor, keys: Tensor, weights: Tensor, visible: Visible) -> Tensor:
    """As ``deepseek_v4.indexer.scores`` of the ``visible``'s chosen entries: [T, k] fp32, 0 for none."""
    found: Tensor = _Scores.apply(query, keys, weights, visible)
    return found


class _Scores(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, weights: Tensor, visible: Visible) -> Tensor:
        query, keys, weights = query.contiguous(), keys.contiguous(), weights.contiguous()
        chosen = visible.chosen
        assert chosen is not None
        found = torch.empty(chosen.shape, dtype=torch.float32, device=query.device)
        kernels.among[(len(query),)](query, keys, weights, chosen, found, chosen.shape[1], **sizes(query))
        ctx.save_for_backward(query, keys, weights, chosen, visible.begin, visible.seen)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, weights, chosen, begin, seen = ctx.saved_tensors
        (T, K), E, grad = chosen.shape, len(keys), grad.contiguous()
        dq, dw = torch.empty_like(query), torch.empty_like(weights)
        kernels.among_gradients[(T,)](query, keys, weights, chosen, grad, dq, dw, K, **sizes(query))
        blocks = triton.cdiv(E, KEYS)
        if not blocks:
            return dq, torch.zeros_like(keys), dw, None
        stretches = shares(blocks)
        total = torch.zeros(E, keys.shape[1], dtype=torch.float32, device=keys.device)
        tokens = max(1, SCORES // E)
        for start in range(0, T, tokens):
            rows = slice(start, min(start + tokens, T))
            count = rows.stop - start
            spread = torch.zeros(count, E + 1, dtype=torch.float32, device=keys.device)
            spread.scatter_(1, chosen[rows].where(chosen[rows] >= 0, E), grad[rows])  # the last column takes the rest
            since, until = seen_from(torch.arange(blocks, device=keys.device), E, begin[rows], seen[rows])
            parts = torch.empty(stretches, *total.shape, dtype=torch.float32, device=keys.device)
            kernels.entry_gradients[(blocks, stretches)](
                query[rows], keys, weights[rows], spread[:, :E].contiguous(), since, until, parts,
                triton.cdiv(count, stretches), count, E, **sizes(query),
            )  # fmt: skip
            total += parts.sum(0)
        return dq, total.to(keys.dtype), dw, None
