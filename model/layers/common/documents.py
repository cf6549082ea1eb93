"""Bounds of documents in the flat token stream."""

from __future__ import annotations

import torch
from torch import Tensor


def check(cu_seqlens: Tensor, tokens: int) -> None:
    """Raise ValueError unless ``cu_seqlens`` [D+1] rises from 0 to ``tokens`` (equal neighbours: an empty document).

    On a GPU only shape and dtype are checked: reading values would stall the stream.
    """
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens must be int32 [documents + 1], not {cu_seqlens.dtype} {list(cu_seqlens.shape)}")
    if cu_seqlens.device.type != "cpu":
        return
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != tokens or bool((cu_seqlens.diff() < 0).any()):
        raise ValueError(f"cu_seqlens must rise from 0 to the {tokens} tokens of the stream, not {cu_seqlens.tolist()}")


def positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Each token's place within its document, [tokens] int64, from ``cu_seqlens`` [D+1] int32.

    Needs no host synchronisation. Raises ValueError as ``check``.
    """
    check(cu_seqlens, tokens)
    at = torch.arange(tokens, device=cu_seqlens.device)  # [T]
    document = torch.searchsorted(cu_seqlens[1:], at, right=True)  # [T]
    return at - cu_seqlens[document]
