"""The DSA indexer's loss of whole rows: pack 12's kernels, and three of ours for all that lies between them.

Takes the place of ``indexer_loss_with_grads``, which pack 12 adds to
megatron/core/transformer/experimental_attention_variant/dsa_indexer_loss.py @ 5be9626709af2722333bf54797c954c09edeada3:
some eighty small operators a row, seventeen of which pass over all scores. Pack 12's kernels take rows as their batch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from megatron.core.transformer.experimental_attention_variant import dsa_indexer_loss
from torch import Tensor

from model.kinds import dsa as kind
from model.patched import seams

ELEMENTS = 1 << 26  # scores of the rows that are taken together, 256 MiB: four rows of 4,096 tokens


@triton.jit  # type: ignore[untyped-decorator]
def _span(
    starts: tl.tensor, ends: tl.tensor, query: tl.tensor, first: int, KEYS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The first token of a query's row, counted in the stream, and the query's [start, end) in that row."""
    origin = first + query // KEYS * KEYS
    return origin, tl.load(starts + query) - origin, tl.load(ends + query) - origin


@triton.jit  # type: ignore[untyped-decorator]
def indexer_mask(
    scores: tl.tensor,
    valid: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    bounds: tl.tensor,
    first: int,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    SPARSE: tl.constexpr,
) -> None:
    """-inf in scores [Q, KEYS] outside a query's bounds; valid [Q, KEYS] is 1 inside, or 0 all over where SPARSE.

    bounds [R, tiles, 2] int32 are the first key and the one after the last of each TILE queries. One query a program.
    """
    query, key = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    origin, start, end = _span(starts, ends, query, first, KEYS)
    inside, place = (key >= start) & (key < end), query * KEYS + key
    tl.store(scores + place, float("-inf"), mask=(key < KEYS) & ~inside)
    chosen = inside & (key < 0) if SPARSE else inside
    tl.store(valid + place, chosen.to(tl.uint8), mask=key < KEYS)
    at = query % KEYS
    if at % TILE == 0:
        other = tl.arange(0, TILE)
        beside = query + tl.minimum(other, KEYS - 1 - at)  # not past the row's last
        low, high = tl.min(tl.load(starts + beside) - origin), tl.max(tl.load(ends + beside) - origin)
        to = bounds + (query // KEYS * tl.cdiv(KEYS, TILE) + at // TILE) * 2
        tl.store(to, tl.minimum(tl.maximum(low, 0), KEYS).to(tl.int32))
        tl.store(to + 1, tl.minimum(tl.maximum(high, 0), KEYS).to(tl.int32))


@triton.jit  # type: ignore[untyped-decorator]
def indexer_choice(
    values: tl.tensor,
    keys: tl.tensor,
    indices: tl.tensor,
    valid: tl.tensor,
    first: int,
    TOPK: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPARSE: tl.constexpr,
) -> None:
    """indices [Q, TOPK]: a row's keys [Q, TOPK] counted in the stream, -1 where the value is -inf.

    Where SPARSE, valid [Q, KEYS] becomes 1 at the keys that stay. One query a program.
    """
    query, slot = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    there, place = slot < TOPK, query * TOPK + slot
    key = tl.load(keys + place, mask=there, other=0)
    kept = there & (tl.load(values + place, mask=there, other=float("-inf")) != float("-inf"))
    tl.store(indices + place, tl.where(kept, key + (first + query // KEYS * KEYS), -1), mask=there)
    if SPARSE:
        tl.store(valid + query * KEYS + key, tl.full((WIDTH,), 1, tl.uint8), mask=kept)


@triton.jit  # type: ignore[untyped-decorator]
def indexer_divergence(
    scores: tl.tensor,
    target: tl.tensor,
    valid: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    losses: tl.tensor,
    first: int,
    weight: float,
    EPS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    SPARSE: tl.constexpr,
    GRADS: tl.constexpr,
) -> None:
    """losses [Q]: weight times the divergence of softmax(scores [Q, KEYS]) from target [Q, KEYS] over its sum.

    Where GRADS, the loss's gradient takes the scores' place, 0 where no key is valid. One query a program.
    """
    query, key = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    _, start, end = _span(starts, ends, query, first, KEYS)
    inside, place = (key >= start) & (key < end) & (key < KEYS), query * KEYS + key
    if SPARSE:
        inside = inside & (tl.load(valid + place, mask=inside, other=0) != 0)
    score = tl.load(scores + place, mask=inside, other=float("-inf"))
    share = tl.load(target + place, mask=inside, other=0.0)
    share = share / tl.maximum(tl.sum(share), EPS)
    below = score - tl.max(score)  # without a key NaN, which no store takes
    power = tl.exp(below)
    total = tl.sum(power)
    terms = share * (tl.log(tl.maximum(share, EPS)) - (below - tl.log(total)))
    tl.store(losses + query, tl.sum(tl.where(inside, terms, 0.0)) * weight)
    if GRADS:
        tl.store(scores + place, tl.where(inside, (power / total - share) * weight, 0.0), mask=key < KEYS)


def block(keys: int) -> dict[str, int]:
    """The constants of a kernel that holds ``keys`` numbers a program: 16 a thread, in 1 to 16 warps."""
    width = triton.next_power_of_2(keys)
    return {"WIDTH": width, "num_warps": min(16, max(1, width // 512))}


def by_rows(tensor: Tensor, row: int) -> Tensor:
    """[T, 1, …] as Megatron has a batch of whole rows, [row, T / row, …]: a view."""
    return tensor[:, 0].unflatten(0, (-1, row)).transpose(0, 1)


def _taken(
    q: Tensor,
    weights: Tensor,
    k: Tensor,
    query: Tensor,
    key: Tensor,
    starts: Tensor,
    ends: Tensor,
    indices: Tensor,
    losses: Tensor,
    grads: list[Tensor],
    first: int,
    row: int,
    scale: float,
    topk: int,
    weight: float,
    sparse: bool,
    relu: bool,
) -> None:
    """Fills what ``first``, the number of tokens before these, leaves of indices [t, topk], losses [t] and grads."""
    from megatron.core.transformer.experimental_attention_variant.ops import triton_indexer as kernels

    index = by_rows(q, row), by_rows(weights, row), by_rows(k, row)
    tokens, rows = len(q), len(q) // row
    own = {"KEYS": row, "SPARSE": sparse}
    scores = kernels.index_scores(*index, relu)  # [rows, row, row]
    valid = torch.empty(scores.shape, dtype=torch.bool, device=q.device)
    marks = valid.view(torch.uint8)
    bounds = q.new_empty((rows, triton.cdiv(row, kernels.TILE_M), 2), dtype=torch.int32)
    indexer_mask[tokens,](scores, marks, starts, ends, bounds, first, TILE=kernels.TILE_M, **own, **block(row))
    values, keys = scores.topk(topk, dim=-1)
    indexer_choice[tokens,](values, keys, indices, marks, first, TOPK=topk, **own, **block(topk))
    seams.verify(kind.INDEXER_KERNELS)
    known = {"_key_bounds": lambda _: bounds}  # pack 12 finds them by eleven operators, twice
    summed = seams.rebound(kernels.attention_target, known)
    target = summed(by_rows(query, row), by_rows(key, row), scale, valid)
    indexer_divergence[tokens,](
        scores,
        target,
        marks,
        starts,
        ends,
        losses,
        first,
        weight,
        EPS=dsa_indexer_loss.INDEXER_LOSS_EPS,
        GRADS=bool(grads),
        **own,
        **block(row),
    )
    del target, valid, marks, values, keys
    if grads:
        of_k = scores.new_zeros((rows, kernels.GRAD_K_SPLITS, row, k.size(-1)))
        back = seams.rebound(kernels.index_scores_backward, known)
        of_q, of_weights = back(scores, *index, of_k, relu)
        for grad, made in zip(grads, (of_q, of_weights, of_k.sum(dim=1).transpose(0, 1)), strict=True):
            by_rows(grad, row).copy_(made)


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        weights: Tensor,
        k: Tensor,
        query: Tensor,
        key: Tensor,
        starts: Tensor,
        ends: Tensor,
        scale: float,
        topk: int,
        coeff: float,
        sparse: bool,
        relu: bool,
        row: int,
        learning: bool,
    ) -> tuple[Tensor, Tensor]:
        tokens, topk = len(q), min(topk, row)
        indices = torch.empty((1, tokens, topk), dtype=torch.int64, device=q.device)
        losses = torch.empty(tokens, dtype=torch.float32, device=q.device)
        shapes = (q, weights, k) if learning and any(ctx.needs_input_grad[:3]) else ()
        grads = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in shapes]
        step = max(1, ELEMENTS // row**2) * row
        for first in range(0, tokens, step):
            of, past = slice(first, first + step), [grad[first : first + step] for grad in grads]
            _taken(
                q[of],
                weights[of],
                k[of],
                query[of],
                key[of],
                starts[of],
                ends[of],
                indices[0, of],
                losses[of],
                past,
                first,
                row,
                scale,
                topk,
                coeff / tokens,
                sparse,
                relu,
            )
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)  # of the indices: as many zeros
        return indices, losses.sum()

    @staticmethod
    def backward(ctx: Any, _: None, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(one * grad for one in ctx.saved_tensors), *(None,) * 11


class KernelLoss:
    """Stands in for upstream's ``FusedDSAIndexerLoss`` (megatron-core 0.19.0, dsa.py:886) on whole rows."""

    def __init__(self, row: int) -> None:
        self.row = row

    def apply(
        self,
        q: Tensor,
        weights: Tensor,
        k: Tensor,
        query: Tensor,
        key: Tensor,
        scale: float,
        topk: int,
        coeff: float,
        mask: Tensor | None,
        sparse: bool,
        groups: Any,
        starts: Tensor | None,
        ends: Tensor | None,
        positions: Tensor | None,
        valid_rows: Tensor | None,
        per_token: bool,
        use_relu: bool,
    ) -> tuple[Tensor, Tensor]:
        """Indices of the chosen keys [1, T, topk] int64, -1 where there is none, and the loss, a fp32 scalar.

        q [T, 1, index heads, d], weights [T, 1, index heads], k [T, 1, d]; query, key [T, 1, heads, D]; starts, ends
        [T] int64, the first key that a query may choose and the key after its last. Gradients go to q, weights and k,
        in their dtypes. Raises ValueError for another kind of loss, for tensor parallelism, for T not a multiple of the
        row, for a row longer than 8,192 tokens, and for what pack 12's kernels do not take.
        """
        from megatron.core.transformer.experimental_attention_variant.ops.triton_indexer import is_supported

        if mask is not None or starts is None or ends is None or valid_rows is not None or per_token:
            raise ValueError("indexer=triton takes packed documents and a loss that is a mean over tokens")
        if positions is not None or groups.tp.size() > 1:
            raise ValueError("indexer=triton takes keys in their order, and all heads on one rank")
        if len(q) % self.row or self.row > kind.LONGEST:
            raise ValueError(f"a stream of {len(q)} tokens is not rows of {self.row}, at most {kind.LONGEST}")
        taken = (q, k, dsa_indexer_loss.MAX_INDEX_DIM), (query, key, dsa_indexer_loss.MAX_ATTENTION_DIM)
        if not all(is_supported(*one) for one in taken) or not starts.is_contiguous() or not ends.is_contiguous():
            raise ValueError("indexer=triton takes bf16 or fp32, whose channels lie side by side")
        indices, loss = _Loss.apply(
            q,
            weights,
            k,
            query,
            key,
            starts,
            ends,
            scale,
            topk,
            coeff,
            sparse,
            use_relu,
            self.row,
            torch.is_grad_enabled(),  # inputs may ask for gradients where none are kept
        )
        return indices, loss

    def packed(self, *given: Any) -> tuple[Tensor, Tensor]:
        """Pack 52's ``packed_indexer_loss``, but for its last argument: rows bound the keys more tightly than the
        longest document."""
        before, sparse, groups, starts, ends, after = given[:8], *given[8:12], given[12:-1]
        whole = (*before, None, sparse, groups, starts, ends, None, *after)  # without a mask, and keys as they lie
        return self.apply(*whole)
