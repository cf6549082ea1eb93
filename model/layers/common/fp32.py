"""What is fp32 in a model of bf16: parameters and buffers that stay so, and values that are computed so."""

from __future__ import annotations

from typing import TypeVar

import torch
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


def wide(x: Tensor) -> Tensor:
    """x in fp32, or in fp64 if it is so."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
