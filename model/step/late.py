"""Clip the gradients without a wait: the factor stays on the device, and the norm is read with the losses.

Megatron-Core does so where Transformer Engine has ``multi_tensor_scale_tensor``, which 2.13.0 lacks
(megatron/core/optimizer/clip_grads.py @ core_v0.19.0); torch's own product of many tensors takes its place here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from model.kinds import catalogue
from model.patched import seams


def scale(_chunk: int, _overflow: Tensor, lists: list[list[Tensor]], factor: Tensor) -> None:
    """Multiply the tensors of ``lists[0]`` in place by ``factor`` [1]; has Transformer Engine's signature."""
    torch._foreach_mul_(lists[0], factor.reshape(()))


def stand_in() -> None:
    """Give Megatron ``scale`` for this whole process: its optimizers return the norm as a tensor [1]."""
    from megatron.core.optimizer import clip_grads

    seams.verify(catalogue.LATE_CLIP)
    clip_grads.multi_tensor_scale_tensor_impl = scale
