"""Layers with CUDA graphs (``graphs.py``): when they replay them, and with which arguments."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayer
from torch import Tensor

from model.layers.captured import graphs
from model.layers.common.packed import packed

STAGES = ["route", "expert_compute", "postprocess"]  # of an MoE layer called as a whole


class Graphed:
    """A base to name before a GraphableMegatronModule: its graph takes hidden states and ``offsets`` alone."""

    config: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (graphs.active() and hasattr(self, "cudagraph_manager")):
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        hidden: Tensor = kwargs["hidden_states"]
        bounds = kwargs["packed_seq_params"].cu_seqlens_q
        offsets = graphs.offsets(bounds, self.config.model_row, len(hidden))
        return super().__call__(hidden_states=hidden, offsets=offsets)  # type: ignore[misc]

    def _should_call_local_cudagraph(self, *args: Any, **kwargs: Any) -> bool:
        return "offsets" in kwargs

    def forward(self, *args: Any, offsets: Tensor | None = None, **kwargs: Any) -> Any:
        """The layer's own forward; its graph is captured with ``offsets`` in place of ``packed_seq_params``."""
        if offsets is not None:
            row = self.config.model_row
            cu_seqlens = graphs.bounds(offsets, row, len(kwargs["hidden_states"]))
            kwargs |= {"attention_mask": None, "packed_seq_params": packed(cu_seqlens, row + 1)}
        return super().forward(*args, **kwargs)  # type: ignore[misc]


class AttentionLayer(Graphed, TransformerLayer):
    """Dense MLA: captured whole."""


class SparseLayer(TransformerLayer):
    """DSA: never captured, because its indices go from layer to layer outside the arguments."""

    def create_mcore_cudagraph_manager(self, config: Any) -> None:
        """Make no manager, so that there is no graph."""


class ExpertsLayer(MoETransformerLayer):
    """MoE: the router and the steps after the experts are captured, the experts between them are not."""

    use_partial_cudagraphs: bool

    def _forward_mlp(self, *args: Any, **kwargs: Any) -> Any:
        if graphs.active() or not self.use_partial_cudagraphs:
            return super()._forward_mlp(*args, **kwargs)
        self.use_partial_cudagraphs, self.mlp.fwd_execution_map = False, STAGES
        try:
            return super()._forward_mlp(*args, **kwargs)
        finally:
            self.use_partial_cudagraphs = True
