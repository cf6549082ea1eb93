"""The routers' balance loss of packed documents as two Triton kernels forward and one back.

Takes the place of ``TopKRouter._apply_packed_seq_aux_loss``, which pack 39 adds to
megatron/core/transformer/moe/router.py @ 5be9626709af2722333bf54797c954c09edeada3: some thirty small operators in each
layer of experts, and as many back, which the host launches more slowly than a GPU runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kinds import moe as kind
from model.patched import seams

Apply = Callable[[Tensor, Tensor, Tensor, float, Tensor], Tensor]
METHOD = "_apply_packed_seq_aux_loss"
TOKENS, EXPERTS = 512, 8  # of a step of a document's sums: with few documents, parts of rows make the programs many
NUMBERS = 4096  # that a program of the others holds at a time


@triton.jit  # type: ignore[untyped-decorator]
def balance_sums(
    scores: tl.tensor,
    chosen: tl.tensor,
    bounds: tl.tensor,
    sums: tl.tensor,
    tokens: int,
    documents: int,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """sums [2, D, E]: scores and chosen [T, E] over the tokens of one document, WIDTH of COUNT experts a program.

    Triton specializes no ``int``: another number of documents is no reason to compile again in the middle of a run.
    """
    document = tl.program_id(0).to(tl.int64)
    row, expert = tl.arange(0, ROWS)[:, None], tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    first, end = tl.load(bounds + document), tl.minimum(tl.load(bounds + document + 1), tokens)
    score, count = tl.zeros((ROWS, WIDTH), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(first, end, ROWS):
        at = start + row
        inside = (at < end) & (expert < COUNT)
        place = at.to(tl.int64) * COUNT + expert
        score += tl.load(scores + place, mask=inside, other=0.0)
        count += tl.load(chosen + place, mask=inside, other=0).to(tl.float32)
    to = sums + document * COUNT + expert
    tl.store(to, tl.sum(score, 0)[None, :], mask=expert < COUNT)
    tl.store(to + documents * COUNT, tl.sum(count, 0)[None, :], mask=expert < COUNT)


@triton.jit  # type: ignore[untyped-decorator]
def balance_loss(
    sums: tl.tensor,
    loss: tl.tensor,
    counted: tl.tensor,
    scale: float,
    documents: int,
    TOPK: tl.constexpr,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """loss [] and tokens counted [] of sums [2, D, E], whose first half becomes the scores' gradients. One program.

    A document's gradient is the same for each of its tokens.
    """
    row, expert = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    counts = sums + documents * COUNT
    losses, there, choices = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for first in range(0, documents, ROWS):
        inside = (first + row < documents) & (expert < COUNT)
        place = (first + row).to(tl.int64) * COUNT + expert
        count = tl.load(counts + place, mask=inside, other=0.0)
        length = tl.sum(count, 1) / TOPK
        square = tl.maximum(length, 1.0) * tl.maximum(length, 1.0)
        losses += tl.sum(tl.load(sums + place, mask=inside, other=0.0) * count, 1) / square
        there += (length > 0).to(tl.float32)
        choices += tl.sum(count, 1)
    share = scale / tl.maximum(tl.sum(there), 1.0)
    tl.store(loss, tl.sum(losses) * share)
    tl.store(counted, tl.sum(choices) / TOPK)
    for first in range(0, documents, ROWS):
        inside = (first + row < documents) & (expert < COUNT)
        place = (first + row).to(tl.int64) * COUNT + expert
        count = tl.load(counts + place, mask=inside, other=0.0)
        length = tl.maximum(tl.sum(count, 1) / TOPK, 1.0)
        tl.store(sums + place, count * (share / (length * length))[:, None], mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def balance_gradient(
    grad: tl.tensor,
    each: tl.tensor,
    bounds: tl.tensor,
    out: tl.tensor,
    tokens: int,
    documents: int,
    halvings: int,
    COUNT: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """out [T, E]: grad [] times its document's row of each [D, E], 0 after the last document. ROWS tokens a program."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # How many documents end at the token or before: as many as stand before its own, empty ones too.
    low, high = tl.zeros((ROWS,), tl.int32), tl.zeros((ROWS,), tl.int32) + documents
    for _ in range(halvings):
        middle = (low + high) // 2
        ended = (low < high) & (tl.load(bounds + middle + 1, mask=low < high, other=0) <= at)
        high = tl.where(ended, high, middle)
        low = tl.where(ended, middle + 1, low)
    expert, document, row = tl.arange(0, WIDTH)[None, :], low[:, None], at[:, None]
    inside = (row < tokens) & (expert < COUNT)
    weight = tl.load(each + document.to(tl.int64) * COUNT + expert, mask=inside & (document < documents), other=0.0)
    tl.store(out + row.to(tl.int64) * COUNT + expert, tl.load(grad) * weight, mask=inside)


def _block(experts: int) -> dict[str, int]:
    width = triton.next_power_of_2(experts)
    return {"COUNT": experts, "ROWS": max(1, NUMBERS // width), "WIDTH": width}


class _Balance(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, chosen: Tensor, bounds: Tensor, topk: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        (tokens, experts), documents = scores.shape, len(bounds) - 1
        sums = scores.new_empty(2, documents, experts)
        loss, counted = scores.new_empty(()), scores.new_empty(())
        balance_sums[documents, triton.cdiv(experts, EXPERTS)](
            scores.contiguous(),
            chosen.contiguous().view(torch.uint8),
            bounds,
            sums,
            tokens,
            documents,
            COUNT=experts,
            ROWS=TOKENS,
            WIDTH=EXPERTS,
        )
        balance_loss[1,](sums, loss, counted, scale, documents, TOPK=topk, **_block(experts))
        ctx.mark_non_differentiable(counted)
        ctx.save_for_backward(sums, bounds)
        ctx.tokens = tokens
        return loss, counted

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None, None]:
        sums, bounds = ctx.saved_tensors
        _, documents, experts = sums.shape
        out, block = sums.new_empty(ctx.tokens, experts), _block(experts)
        balance_gradient[triton.cdiv(ctx.tokens, block["ROWS"]),](
            grad, sums, bounds, out, ctx.tokens, documents, documents.bit_length(), **block
        )
        return out, None, None, None, None


def balance(scores: Tensor, chosen: Tensor, bounds: Tensor, topk: int, scale: float) -> tuple[Tensor, Tensor]:
    """The mean of the documents' losses times ``scale``, and the tokens that count, fp32 [] each.

    scores [T, E] fp32; chosen [T, E] bool, at most ``topk`` of a row; bounds [D+1] int32 or int64. A document's loss is
    the sum over experts of its scores times its choices, over the square of its length. Empty documents are left out,
    and tokens after the last one. No gradient goes to chosen. Raises ValueError for other shapes or dtypes.
    """
    if scores.dim() != 2 or scores.dtype != torch.float32 or chosen.shape != scores.shape or chosen.dtype != torch.bool:
        raise ValueError(
            f"scores {scores.dtype} {list(scores.shape)} and choices {chosen.dtype} {list(chosen.shape)} are not fp32 "
            "and bool [T, E]"
        )
    loss, counted = _Balance.apply(scores, chosen, bounds, topk, scale)
    return loss, counted


def balancing(router: Any) -> Callable[[Apply], Apply]:
    """What makes of pack 39's method of a Megatron router one that takes the loss by the kernels.

    Losses that ranks share parts of, and scores that are not fp32 or not where Triton's kernels run, are upstream's.
    """

    def make(upstream: Apply) -> Apply:
        def apply(
            probs: Tensor,
            scores_for_aux_loss: Tensor,
            routing_map: Tensor,
            seq_aux_loss_coeff: float,
            cu_seqlens: Tensor,
        ) -> Tensor:
            scores, coefficient = scores_for_aux_loss, seq_aux_loss_coeff
            alone = router.tp_cp_group.size() == 1 == router.cp_group.size() and not router.config.sequence_parallel
            here = scores.is_cuda or triton.knobs.runtime.interpret
            if not (alone and here and scores.dtype == torch.float32 and routing_map.dtype == torch.bool):
                return upstream(probs, scores, routing_map, coefficient, cu_seqlens)
            scale = router.config.num_moe_experts * coefficient / router.topk
            loss, counted = balance(scores, routing_map, cu_seqlens, router.topk, scale)
            attached: Tensor = router.attach_and_log_load_balancing_loss(
                probs, coefficient, loss, "seq_load_balancing_loss", router.tp_cp_group, valid_token_count=counted
            )
            return attached

        return apply

    return make


def enable(router: Any) -> None:
    """Have a Megatron router take the loss of packed documents so. ValueError for one without pack 39's method."""
    if not hasattr(router, METHOD):
        raise ValueError("balance=triton is for routers with pack 39")
    seams.verify(kind.ROUTER_BALANCE)
    setattr(router, METHOD, balancing(router)(getattr(router, METHOD)))
