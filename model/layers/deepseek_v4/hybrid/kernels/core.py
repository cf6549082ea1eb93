"""Core attention of DeepSeek-V4 on a GPU, forward and backward, with the values of ``deepseek_v4.core``.

Kept for backward: the inputs, the output, and the logarithms of the softmaxes' sums. A key's gradient is computed by
blocks of keys, from every token that may see one of them, chosen or not. Where a token has 512 of at most 1,024
entries, as in rows of 4,096 tokens, a quarter of the products is masked; in longer documents more.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from model.layers.deepseek_v4.compressor import Visible
from model.layers.deepseek_v4.hybrid.kernels import attend, rows
from model.layers.deepseek_v4.rotary import Table

KEYS = 64  # of a product
PROGRAMS = 264  # for which blocks of keys are shared out, two for each multiprocessor of an H200
NONE, NEAR, RANGE, CHOSEN = (number.value for number in (attend.NONE, attend.NEAR, attend.RANGE, attend.CHOSEN))


def core_attention(
    query: Tensor,
    kv: Tensor,
    sink: Tensor,
    positions: Tensor,
    window: int,
    entries: Tensor | None = None,
    visible: Visible | None = None,
    table: Table | None = None,
    mass: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As ``deepseek_v4.core.core_attention``, for bf16, fp16 or fp32, D a power of two from 16 on; of chosen entries
    those of a token come first. The output is turned back by ``table``, as ``rotary.rotate`` does.

    ``mass``: whether the second result is wanted, which there is for chosen entries alone.
    """
    output, found = _Core.apply(query, kv, sink, positions, window, entries, visible, table, mass)
    return output, found if mass else None


def heads_of(heads: int) -> int:
    """Rows of a product: heads of a program."""
    return min(64, max(16, int(triton.next_power_of_2(heads))))


class _Core(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        kv: Tensor,
        sink: Tensor,
        positions: Tensor,
        window: int,
        entries: Tensor | None,
        visible: Visible | None,
        table: Table | None,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        query, kv = query.contiguous(), kv.contiguous()
        (T, H, D), heads = query.shape, heads_of(query.shape[1])
        programs = triton.cdiv(H, heads)
        begin, seen, chosen, kind = _seen(visible, entries, positions)
        held = kv if entries is None else torch.cat((kv, entries))
        width = chosen.shape[1] if kind == CHOSEN else 1
        output, lse = torch.empty_like(query), query.new_empty(T, H, dtype=torch.float32)
        mass = query.new_zeros(programs if wanted else 0, T, width, dtype=torch.float32)
        attend.attend[(T, programs)](
            query, held, sink, positions, begin, seen, chosen, output, lse, mass,
            attend.LOG2E.value / math.sqrt(D), window, T, width,
            H=H, D=D, HEADS=heads, KEYS=KEYS, WANTED=kind, MASS=wanted, num_warps=8, num_stages=2,
        )  # fmt: skip
        if table is not None:
            rows.turn(output, table, inverse=True)
        ctx.save_for_backward(query, sink, positions, held, begin, seen, chosen, output, lse, *(table or ()))
        ctx.window, ctx.kind, ctx.entries = window, kind, entries is not None
        total = mass.sum(0)
        ctx.mark_non_differentiable(total)
        return output, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, sink, positions, held, begin, seen, chosen, output, lse, *table = ctx.saved_tensors
        (T, H, D), heads = query.shape, heads_of(query.shape[1])
        delta, of_sink, dq = torch.empty_like(lse), torch.empty_like(lse), torch.empty_like(query)
        grad = grad.contiguous()
        above = torch.empty_like(grad) if table else grad
        rows.deltas[(T, triton.cdiv(H, 8))](
            output, grad, lse, sink, *(table or (lse, lse)), above, delta, of_sink, N=D, H=H, HEADS=8,
            **rows.widths(D, (table[0], table[1]) if table else None),
        )  # fmt: skip
        scales = attend.LOG2E.value / math.sqrt(D), 1 / math.sqrt(D)
        width = chosen.shape[1] if ctx.kind == CHOSEN else 1
        attend.query_gradients[(T, triton.cdiv(H, heads))](
            query, held, positions, begin, seen, chosen, above, lse, delta, dq, *scales, ctx.window, T, width,
            H=H, D=D, HEADS=heads, KEYS=KEYS, WANTED=ctx.kind, num_warps=8, num_stages=1,
        )  # fmt: skip
        given = query, positions, begin, seen, chosen, above, lse, delta
        near = _key_gradients(held[:T], *given, scales, ctx.window, NEAR)
        far = _key_gradients(held[T:], *given, scales, ctx.window, ctx.kind) if ctx.entries else None
        return dq, near, of_sink.sum(0).to(sink.dtype), None, None, far, None, None, None


def _seen(visible: Visible | None, entries: Tensor | None, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """begin, seen, chosen, and which of the kernels' kinds of keys the entries are."""
    if visible is None or entries is None:
        return positions, positions, positions, NONE
    if visible.chosen is None:
        return visible.begin, visible.seen, positions, RANGE
    return visible.begin, visible.seen, visible.chosen.int().contiguous(), CHOSEN


def shares(blocks: int) -> int:
    """How many stretches of tokens each of so many blocks of keys is computed by."""
    return max(1, min(32, PROGRAMS // blocks))


def seen_from(block: Tensor, N: int, begin: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Of blocks of KEYS entries, of N, the first token that may see one, and the one behind the last."""
    first, behind = block * KEYS, (block * KEYS + KEYS).clamp(max=N)
    # both grow along the row: a document's windows lie behind those of the one before it
    return torch.searchsorted(begin + seen, first, right=True), torch.searchsorted(begin.contiguous(), behind)


def _key_gradients(
    keys: Tensor,
    query: Tensor,
    positions: Tensor,
    begin: Tensor,
    seen: Tensor,
    chosen: Tensor,
    above: Tensor,
    lse: Tensor,
    delta: Tensor,
    scales: tuple[float, float],
    window: int,
    kind: int,
) -> Tensor:
    (T, H, D), N = query.shape, len(keys)
    blocks = triton.cdiv(N, KEYS)
    if not blocks:
        return torch.zeros_like(keys)
    block, words = torch.arange(blocks, device=keys.device), positions
    if kind == NEAR:
        since, until = block * KEYS, (block * KEYS + KEYS + window - 1).clamp(max=T)
    else:
        since, until = seen_from(block, N, begin, seen)
    if kind == CHOSEN:
        words = torch.zeros(T, triton.cdiv(N, 32), dtype=torch.int32, device=keys.device)
        attend.mark[(T,)](chosen, words, chosen.shape[1], words.shape[1], BLOCK=256)
    stretches = shares(blocks)
    parts = torch.empty(stretches, N, D, dtype=torch.float32, device=keys.device)
    attend.key_gradients[(blocks, stretches)](
        query, keys, positions, begin, seen, words, above, lse, delta, since, until, parts, *scales,
        window, triton.cdiv(T, stretches), N, words.shape[-1],
        H=H, D=D, HEADS=min(32, heads_of(H)), KEYS=KEYS, WANTED=kind, num_warps=8, num_stages=2,
    )  # fmt: skip
    return parts.sum(0).to(keys.dtype)
