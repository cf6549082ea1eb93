"""Mamba-3 on rows of equal length instead of a packed stream: documents inside a row are parted by their decay.

The dense kernels take every row side by side and, with pack 17's switch, are compiled for one shape, which the packed
ones are not. A document's first token gets a decay of exp(-40): what came before reaches it with weight 4e-18, below
any rounding of what it is added to. The trapezoidal rule's share of the token before carries the same decay, and of the
rotary angles, which count from the row's start here, only differences matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from model.layers.common import documents
from model.layers.mamba3.upstream import KERNEL
from model.patched import seams

RESET = -40.0


def resetting(kernel: Callable[..., Any], first: Tensor) -> Callable[..., Any]:
    """``kernel`` with the state forgotten at every token of ``first`` [rows, S], bool; called with names only."""

    def run(*, ADT: Tensor, cu_seqlens: Tensor | None, **rest: Any) -> Any:
        """ADT [rows, heads, S] fp32: log of the decay; the first tokens' own gets no gradient: it acts on nothing."""
        return kernel(ADT=torch.where(first[:, None, :], RESET, ADT), cu_seqlens=None, **rest)

    return run


def run_rows(mamba: nn.Module, hidden: Tensor, cu_seqlens: Tensor, length: int) -> Tensor:
    """[T, h] of ``hidden`` [T, h], T a multiple of ``length`` and each row's start a document's start as well."""
    rows = hidden.shape[0] // length
    first = (documents.positions(cu_seqlens, hidden.shape[0]) == 0).view(rows, length)
    forward = type(mamba).forward
    bound = seams.MAMBA3_ROWS(forward, {KERNEL: resetting(forward.__globals__[KERNEL], first)})
    out: Tensor = bound(mamba, hidden.view(rows, length, -1))
    return out.reshape(hidden.shape)
