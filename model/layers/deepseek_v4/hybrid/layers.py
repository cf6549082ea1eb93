"""Attention and mixture of experts, each within its hyper-connection, as layers of the hybrid stack."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.experimental_attention_variant.dsa import (
    DSAIndexerLossAutoScaler,
    DSAIndexerLossLoggingHelper,
)
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import GraphableMegatronModule
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from model.kinds.deepseek_v4 import attention as kinds
from model.layers.common import mixer
from model.layers.common.norm import WideRMSNorm
from model.layers.deepseek_v4.attention import Attention, Index, Shape
from model.layers.deepseek_v4.compressor import windows
from model.layers.deepseek_v4.experts import clamped_swiglu
from model.layers.deepseek_v4.hybrid.router import HashRouter, LearnedRouter
from model.layers.deepseek_v4.hybrid.stack import Carried
from model.layers.deepseek_v4.hyper import HyperConnection
from model.layers.deepseek_v4.rotary import Rope, Yarn
from model.layers.experts.grouped import GroupedExperts, LocalExperts


class StreamLayer(GraphableMegatronModule):
    """A sublayer that reads one mix of the streams, and whose output is added to all of them."""

    def __init__(self, config: Any, layer_number: int = 1) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number

    def _connection(self) -> HyperConnection:
        size, m = self.config.model_size, self.config.model_size.hyper
        made = HyperConnection(size.hidden, m.streams, m.sinkhorn_iterations, m.eps, size.rms_norm_eps)
        made.to(mixer.device(self.config))
        return made

    def _norm(self) -> WideRMSNorm:
        size = self.config.model_size
        made = WideRMSNorm(size.hidden, size.rms_norm_eps)
        made.to(mixer.device(self.config))
        return made

    def _mixed(self, wire: Tensor, carried: Carried, connection: HyperConnection) -> Tensor:
        """Streams [T, 1, n d] -> the same behind the sublayer."""
        streams = wire.unflatten(-1, (connection.streams, -1))
        return connection.around(streams, lambda x: self._sublayer(x, carried)).flatten(-2)

    def _sublayer(self, x: Tensor, carried: Carried) -> Tensor:
        """[T, 1, d] -> [T, 1, d]."""
        raise NotImplementedError


def shape(size: Any, kind: kinds.Attention) -> Shape:
    """What ``Attention`` is built by, of a size of DeepSeek-V4 and one of its kinds."""
    a, y = size.attention, size.attention.yarn
    yarn = Yarn(y.factor, y.original_positions, y.beta_fast, y.beta_slow)
    return Shape(
        size.hidden,
        size.heads,
        a.head_dim,
        a.q_lora_rank,
        a.o_groups,
        a.o_lora_rank,
        a.window,
        kind.ratio if isinstance(kind, kinds.Compressed) else 0,
        Index(kind.indexer.heads, kind.indexer.head_dim, kind.indexer.topk) if isinstance(kind, kinds.Csa) else None,
        Rope(a.qk_rope_head_dim, a.rope_theta),
        Rope(a.qk_rope_head_dim, a.compress_rope_theta, yarn),
        size.rms_norm_eps,
    )


class AttentionLayer(StreamLayer):
    """Sliding, compressed sparse or heavily compressed attention (``model.layers.deepseek_v4.attention``)."""

    def __init__(self, config: Any, kind: kinds.Attention, layer_number: int = 1, **_: Any) -> None:
        super().__init__(config, layer_number)
        self.self_attention_hyper_connection, self.input_layernorm = self._connection(), self._norm()
        self.self_attention = Attention(shape(config.model_size, kind)).to(mixer.device(config))

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, *, packed_seq_params: Carried, **_: Any
    ) -> Tensor:
        """Streams [T, 1, n d] -> the same."""
        return self._mixed(hidden_states, packed_seq_params, self.self_attention_hyper_connection)

    def _sublayer(self, x: Tensor, carried: Carried) -> Tensor:
        bounds, coefficient = carried.cu_seqlens_q, self.config.dsa_indexer_loss_coeff
        learns = self.training and torch.is_grad_enabled() and coefficient > 0
        attended = self.self_attention(self.input_layernorm(x), bounds, index_loss=learns)
        if attended.index_loss is None:
            return attended.output
        seen = windows(bounds, len(x), self.self_attention.shape.ratio).seen
        loss = coefficient * attended.index_loss.sum() / (seen > 0).sum().clamp(min=1)  # of the tokens that may choose
        DSAIndexerLossLoggingHelper.save_loss_to_tracker(
            loss,
            self.layer_number,
            self.config.num_layers,
            avg_group=parallel_state.get_data_parallel_group(with_context_parallel=True),
        )
        output: Tensor = DSAIndexerLossAutoScaler.apply(attended.output, loss)
        return output


def whole(factory: ShardedTensorFactory) -> ShardedTensor:
    """The tensor that a factory cuts into halves of its first axis, uncut."""
    first = factory.build()[0]
    axis = first.prepend_axis_num
    cuts = [*first.axis_fragmentations]
    cuts[axis] = 1
    data = factory.data
    return dataclasses.replace(first, data=data, local_shape=tuple(data.shape), axis_fragmentations=tuple(cuts))


class ClampedExperts(GroupedExperts):
    """Experts by two products over all of them, with ``weighted_swiglu`` between."""

    def activated(self, inner: Tensor, weights: Tensor) -> Tensor:
        """[T, F] of gates and values [T, 2 F]."""
        limit = self.config.activation_func_clamp_value
        if inner.is_cuda:
            from model.layers.deepseek_v4.hybrid.kernels.swiglu import weighted_swiglu  # imports Triton

            return weighted_swiglu(inner, weights, limit)
        return (clamped_swiglu(inner, limit) * weights[:, None]).to(inner.dtype)


class ExpertsLayer(StreamLayer):
    """Megatron's mixture of experts by routers of ``hybrid.router``; ``hashed``: by the token's id; ``grouped``:
    by ``ClampedExperts``."""

    def __init__(
        self,
        config: Any,
        hashed: bool,
        grouped: bool = False,
        layer_number: int = 1,
        pg_collection: Any = None,
        name: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(config, layer_number)
        self.mlp_hyper_connection, self.pre_mlp_layernorm = self._connection(), self._norm()
        spec = get_moe_module_spec(use_te=False, num_experts=config.num_moe_experts, moe_grouped_gemm=False)
        parts = dataclasses.replace(
            spec.keywords["submodules"],
            router=functools.partial(HashRouter, layer=layer_number) if hashed else LearnedRouter,
        )
        if grouped:
            linear = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
            parts = dataclasses.replace(parts, experts=functools.partial(ClampedExperts, submodules=linear))
        made = LocalExperts if grouped else MoELayer
        self.mlp = made(
            config, parts, layer_number, pg_collection=pg_collection, name=None if name is None else f"{name}.mlp"
        )
        self.mlp.set_layer_number(layer_number)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, *, packed_seq_params: Carried, **_: Any
    ) -> Tensor:
        """Streams [T, 1, n d] -> the same."""
        return self._mixed(hidden_states, packed_seq_params, self.mlp_hyper_connection)

    def sharded_state_dict(self, *given: Any, **named: Any) -> dict[str, Any]:
        """As Megatron's, but gate and values of experts as the one tensor that they are: it cuts them in two for tensor
        parallelism, which this model is trained without."""
        found: dict[str, Any] = super().sharded_state_dict(*given, **named)
        return {key: whole(held) if isinstance(held, ShardedTensorFactory) else held for key, held in found.items()}

    def _sublayer(self, x: Tensor, carried: Carried) -> Tensor:
        self.mlp.router.tokens = carried.tokens
        output, _ = self.mlp(self.pre_mlp_layernorm(x))
        summed: Tensor = output
        return summed
