"""Parameters and buffers that stay fp32 in a model of bf16."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

T = TypeVar("T", bound=Tensor)


def keep(tensor: T) -> T:
    """``tensor``, marked: a cast of the model leaves it fp32. Pack 16's Float16Module reads the one name, Megatron-LM's
    own after 0.19 the other (``mark_keep_in_fp32``, transformer/module.py @ d48bd6be0a85)."""
    tensor._keep_fp32 = tensor.keep_in_fp32 = True  # type: ignore[attr-defined]
    return tensor


def kept(tensor: Tensor) -> bool:
    """Whether ``keep`` marked it."""
    return hasattr(tensor, "_keep_fp32")
