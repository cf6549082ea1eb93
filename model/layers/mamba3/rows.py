"""Mamba-3 on rows of equal length instead of a packed stream: decay separates the documents inside a row.

The dense kernels take all rows side by side and, unlike the packed ones, compile for one shape under pack 17's switch.
A document's first token gets a decay of exp(-40): earlier tokens reach it with weight 4e-18, below the rounding of any
sum they join. The trapezoidal rule's share of the token before carries the same decay. Rotary angles count from the
row's start, and only their differences matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.kinds.recurrent import mamba3 as kind
from model.layers.common import documents
from model.layers.mamba3.upstream import KERNEL
from model.patched import seams

RESET = -40.0


def resetting(kernel: Callable[..., Any], first: Tensor) -> Callable[..., Any]:
    """``kernel`` that forgets its state at every token of ``first`` [rows, S] bool; it takes keyword arguments only."""

    def run(*, ADT: Tensor, cu_seqlens: Tensor | None, **rest: Any) -> Any:
        """ADT [rows, heads, S] fp32: log of the decay. First tokens' own values act on nothing and get no gradient."""
        return kernel(ADT=torch.where(first[:, None, :], RESET, ADT), cu_seqlens=None, **rest)

    return run


def unchanged(kernel: Callable[..., Any]) -> Callable[..., Any]:
    return kernel


def run_rows(
    mamba: nn.Module, hidden: Tensor, cu_seqlens: Tensor, length: int, change: Callable[..., Any] = unchanged
) -> Tensor:
    """[T, h] of ``hidden`` [T, h]; T is a multiple of ``length`` and a document starts at each row's start.

    What computes the scan is ``change`` of the kernel that the module has.
    """
    rows = hidden.shape[0] // length
    first = documents.firsts(cu_seqlens, hidden.shape[0]).view(rows, length)
    forward = type(mamba).forward
    seams.verify(kind.ROWS)
    bound = seams.rebound(forward, {KERNEL: resetting(change(forward.__globals__[KERNEL]), first)})
    out: Tensor = bound(mamba, hidden.view(rows, length, -1))
    return out.reshape(hidden.shape)
