"""Megatron's layers with a say in when their CUDA graphs are used (``model.graphs``)."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayer

from model import graphs

STAGES = ["route", "expert_compute", "postprocess"]  # of an MoE layer called as a whole


class AttentionLayer(TransformerLayer):
    """Dense MLA: captured whole."""

    def _should_call_local_cudagraph(self, *args: Any, **kwargs: Any) -> bool:
        return graphs.active() and bool(super()._should_call_local_cudagraph(*args, **kwargs))


class SparseLayer(TransformerLayer):
    """DSA: never captured, since its indices go from layer to layer outside the arguments."""

    def create_mcore_cudagraph_manager(self, config: Any) -> None:
        """No manager, no graph."""


class ExpertsLayer(MoETransformerLayer):
    """MoE: router and what follows the experts are captured, the experts between them are not."""

    def _forward_mlp(self, *args: Any, **kwargs: Any) -> Any:
        if graphs.active() or not self.use_partial_cudagraphs:
            return super()._forward_mlp(*args, **kwargs)
        self.use_partial_cudagraphs, self.mlp.fwd_execution_map = False, STAGES
        try:
            return super()._forward_mlp(*args, **kwargs)
        finally:
            self.use_partial_cudagraphs = True
