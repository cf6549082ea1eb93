"""Bounds of documents in the flat token stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")
_made: Any = WeakTensorKeyDictionary()  # {bounds: (their version, {what: result})}: results go with their bounds


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


def once(cu_seqlens: Tensor, what: Hashable, make: Callable[[], T]) -> T:
    """``make()``, which depends on the numbers of ``cu_seqlens`` and on ``what`` alone, and takes no part in autograd.

    Every layer of a forward gets the same tensor of bounds: the result is made in the first and kept while that tensor
    lives, so nobody may write to it. It is made anew after a write to the bounds, but for one through ``.data``, which
    leaves no trace. Nothing is kept, nor what was kept used, while a CUDA graph is captured, which must make all that
    it reads, and in inference mode, whose tensors count no versions and are of no use to a backward pass.
    """
    if _captured(cu_seqlens) or cu_seqlens.is_inference() or torch.is_inference_mode_enabled():
        return make()
    version, results = _made.get(cu_seqlens, (None, {}))
    if version != cu_seqlens._version:
        results = {}
        _made[cu_seqlens] = cu_seqlens._version, results
    if what not in results:
        results[what] = make()
    result: T = results[what]
    return result


def positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Each token's place within its document, [tokens] int64, from ``cu_seqlens`` [D+1] int32; kept as ``once`` does.

    Needs no host synchronisation. Raises ValueError as ``check``.
    """
    check(cu_seqlens, tokens)
    return once(cu_seqlens, ("positions", tokens), lambda: _positions(cu_seqlens, tokens))


def firsts(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Whether each token is its document's first, [tokens] bool; as ``positions``."""
    place = positions(cu_seqlens, tokens)
    return once(cu_seqlens, ("firsts", tokens), lambda: place == 0)


def _positions(cu_seqlens: Tensor, tokens: int) -> Tensor:
    at = torch.arange(tokens, device=cu_seqlens.device)  # [T]
    document = torch.searchsorted(cu_seqlens[1:], at, right=True)  # [T]
    return at - cu_seqlens[document]


def _captured(x: Tensor) -> bool:
    return x.device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())
