"""CUDA graphs of the layers that launch the same kernels on every micro-batch: Megatron-Core's own, one a layer.

At the end of the first step Mamba-3, M²RNN, dense MLA and, without expert parallelism, routers and the steps after the
experts are captured (megatron/core/transformer/cuda_graphs.py @ core_v0.19.0, ``cuda_graph_impl="local"``). With expert
parallelism a captured router would gather the experts' counts over the ranks, and NCCL does not free a communicator
while a graph holds its collectives: the run would hang at its end. Experts are not captured, since their tokens are
counted on the host, and the sparse layers are not, since they hand indices on by an attribute of ``packed_seq_params``,
which a captured layer does not see. A micro-batch with more documents than ``documents`` allows, and held-out loss, run
without graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

MODULES = ["attn", "mamba"]
ROUTERS = ["moe_router", "moe_preprocess"]
WATCHED = 1  # steps of a run that call the layers' own code
DOCUMENTS_A_ROW = 8
_paused = 0


def documents(rows: int) -> int:
    """Documents to pad ``cu_seqlens`` to, because a graph takes one shape."""
    return DOCUMENTS_A_ROW * rows


def active() -> bool:
    """Whether layers with graphs replay them now."""
    return _paused == 0


@contextlib.contextmanager
def paused(when: bool = True) -> Iterator[None]:
    """Run the layers called inside without graphs."""
    global _paused
    _paused += when
    try:
        yield
    finally:
        _paused -= when


def settings(asked: bool, expert_parallel: int = 1) -> dict[str, Any]:
    """Megatron's options for graphs, empty unless ``asked``."""
    modules = MODULES + ROUTERS * (expert_parallel == 1)
    return {"cuda_graph_impl": "local", "cuda_graph_modules": modules} if asked else {}


def seed(seed: int) -> None:
    """Seed generators whose state a graph can keep, after Megatron's own seeding. Raises RuntimeError without CUDA."""
    from megatron.core.tensor_parallel import random

    random.model_parallel_cuda_manual_seed(seed, use_cudagraphable_rng=True, force_reset_rng=True)


def offsets(cu_seqlens: Tensor, row: int, tokens: int) -> Tensor:
    """A captured layer's input in place of ``cu_seqlens`` [D+1] int32: the difference from rows of ``row`` tokens each.

    Megatron captures with zeros for every input, and zeros are no ``cu_seqlens``: kernels would index past their ends.
    """
    return cu_seqlens - _whole_rows(cu_seqlens, row, tokens)


def bounds(offsets: Tensor, row: int, tokens: int) -> Tensor:
    """The ``cu_seqlens`` [D+1] int32 that gave ``offsets``."""
    return offsets + _whole_rows(offsets, row, tokens)


def _whole_rows(like: Tensor, row: int, tokens: int) -> Tensor:
    """[D+1] int32: 0, row, 2 row, … tokens, then tokens again; D of at least tokens / row."""
    import torch

    return torch.arange(0, len(like) * row, row, dtype=torch.int32, device=like.device).clamp(max=tokens)
