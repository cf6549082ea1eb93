"""Experts whose products read on the device where each expert's tokens end: the host never waits for the counts.

Without expert parallelism every rank computes its own tokens, and top-k of n experts always gives tokens times k rows.
So the shapes are known, and torch's ``grouped_mm`` takes the ends from the device.

Rows and stacks of weights hold the last expert first: Megatron's buffers of weights and gradients hold parameters
backwards, so a stack in this order is a view of the buffer.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.moe_utils import get_default_pg_collection, permute, unpermute
from megatron.core.transformer.moe.token_dispatcher import MoETokenDispatcher
from torch import Tensor, nn
from torch.nn.functional import gelu


def stacked(parts: list[Tensor]) -> Tensor | None:
    """[n, …] of n tensors of one shape, a view of their memory; None if they do not lie at even distances in it."""
    first = parts[0]
    places = [part.data_ptr() for part in parts]
    step = places[1] - places[0] if len(parts) > 1 else first.numel() * first.element_size()
    storages = {part.untyped_storage().data_ptr() for part in parts}
    even = all(after - before == step for before, after in itertools.pairwise(places))
    if len(storages) > 1 or not even or step < first.numel() * first.element_size():
        return None
    return first.detach().as_strided((len(parts), *first.shape), (step // first.element_size(), *first.stride()))


def _stack(parts: list[Tensor]) -> Tensor:
    view = stacked(parts)
    return torch.stack(parts) if view is None else view


_placeholders: dict[tuple[torch.Size, torch.dtype, torch.device], Tensor] = {}


def _placeholder(weight: Tensor) -> Tensor:
    """A gradient for autograd that Megatron wants and never reads; Transformer Engine makes one too."""
    key = (weight.shape, weight.dtype, weight.device)
    if key not in _placeholders:
        _placeholders[key] = torch.empty_like(weight, requires_grad=False)
    return _placeholders[key].detach()


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """Each expert's rows times its weight."""

    @staticmethod
    def forward(ctx: Any, accumulates: bool, x: Tensor, ends: Tensor, *weights: Tensor) -> Tensor:
        ctx.accumulates = accumulates
        ctx.save_for_backward(x, ends, *weights)
        out: Tensor = torch.nn.functional.grouped_mm(x, _stack(list(weights)).transpose(1, 2), offs=ends)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, ends, *weights = ctx.saved_tensors
        grad = grad.contiguous()
        inputs = torch.nn.functional.grouped_mm(grad, _stack(weights), offs=ends) if ctx.needs_input_grad[1] else None
        return (None, inputs, None, *_weight_gradients(x, grad, ends, weights, ctx.accumulates))


def _weight_gradients(
    x: Tensor, grad: Tensor, ends: Tensor, weights: list[Tensor], accumulates: bool
) -> tuple[Tensor, ...]:
    """gradᵀ x of each expert. With ``accumulates``, one kernel adds them to Megatron's fp32 gradients instead."""
    product = torch.nn.functional.grouped_mm(grad.t(), x, offs=ends)  # [E, out, in]
    sums = stacked([weight.main_grad for weight in weights]) if accumulates else None
    if sums is not None and product.is_cuda:
        from model.layers.experts.weight_sums import add_used

        add_used(product, ends, sums)
        return _added(weights)
    used = torch.diff(ends, prepend=ends.new_zeros(1)) > 0
    product = torch.where(used[:, None, None], product, 0.0)  # the kernel promises no value for an expert without rows
    if not accumulates:
        return tuple(product)
    if sums is None:
        for weight, part in zip(weights, product, strict=True):
            weight.main_grad.add_(part)
    else:
        sums.add_(product)
    return _added(weights)


def _added(weights: list[Tensor]) -> tuple[Tensor, ...]:
    """What autograd gets for weights whose gradients are in Megatron's."""
    for weight in weights:
        weight.grad_added_to_main_grad = True
    return tuple(map(_placeholder, weights))


def product(x: Tensor, ends: Tensor, weights: list[Tensor], accumulates: bool = False) -> Tensor:
    """x [T, in], rows by expert; ends [E] int32 on x's device, where each expert's rows end; weights [out, in] each ->
    [T, out]. On CUDA bf16, with ``in`` and ``out`` multiples of 8.

    ``accumulates``: add the weights' gradients to Megatron's ``main_grad`` if all weights have one.
    """
    adds = accumulates and all(hasattr(weight, "main_grad") for weight in weights)
    out: Tensor = _Product.apply(adds, x.contiguous(), ends, *weights)
    return out


def _weighted(x: Tensor, weights: Tensor) -> Tensor:
    """gelu(x) times each row's weight, [T, F] and fp32 [T] -> [T, F]."""
    if x.is_cuda:
        from model.layers.experts.weighted_gelu import weighted_gelu

        return weighted_gelu(x, weights)
    return (gelu(x) * weights[:, None]).to(x.dtype)


class GroupedExperts(SequentialMLP):
    """Megatron's experts, one module each, without biases, computed by two products over all of them.

    In a checkpoint they have the names, shapes and shards of every other path.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        tracker = get_cuda_rng_tracker()
        before = None if not tracker.is_initialized() else tracker.get_states()
        super().__init__(*args, **kwargs)
        self.accumulates = bool(self.config.gradient_accumulation_fusion)
        if before is not None and not self.config.use_cpu_initialization:
            tracker.set_states(before)
            self._draw()

    def _draw(self) -> None:
        """Draw the first weights again, in the order of Transformer Engine's grouped layers."""
        methods = {"linear_fc1": self.config.init_method, "linear_fc2": self.config.output_layer_init_method}
        for name, method in methods.items():
            for expert in self.local_experts:
                with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()), torch.no_grad():
                    method(getattr(expert, name).weight)

    def weights(self, name: str) -> list[nn.Parameter]:
        """The weights of projection ``name`` by expert, the last expert first."""
        return [getattr(expert, name).weight for expert in reversed(self.local_experts)]

    def forward(self, hidden: Tensor, counts: Tensor, weights: Tensor) -> tuple[Tensor, None]:
        """hidden [T, h] by expert, the last one's rows first; counts [E] of rows, in this order, on the device;
        weights [T] fp32 -> ([T, h], no bias)."""
        ends = counts.cumsum(0, dtype=torch.int32)
        inner = product(hidden, ends, self.weights("linear_fc1"), self.accumulates)
        return product(self.activated(inner, weights), ends, self.weights("linear_fc2"), self.accumulates), None

    def activated(self, inner: Tensor, weights: Tensor) -> Tensor:
        """What is between the products of inner [T, F], times each row's weight [T] fp32."""
        return _weighted(inner, weights)


class LocalDispatcher(MoETokenDispatcher):
    """Sorts rows by expert, the last expert first, and back. All experts are this rank's; the host reads nothing."""

    def dispatch_preprocess(self, hidden: Tensor, routing_map: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [s, b, h], routing_map bool and weights [T, E] -> rows [T k, h] and their weights [T k]."""
        self.shape = hidden.shape
        flat = hidden.view(-1, self.shape[-1])
        self.routing = routing_map.flip(1)
        self.counts = self.routing.sum(0)
        rows, weights_by_row, self.places, *_ = permute(
            flat,
            self.routing,
            probs=weights.flip(1),
            num_out_tokens=len(flat) * self.config.moe_router_topk,
            fused=self.config.moe_permute_fusion,
        )
        return rows, weights_by_row

    def token_dispatch(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Unchanged: nothing travels."""
        return rows, weights

    def dispatch_postprocess(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows, their counts [E] by expert, their weights."""
        return rows, self.counts, weights

    def combine_preprocess(self, rows: Tensor) -> Tensor:
        """Unchanged: nothing travels."""
        return rows

    def token_combine(self, rows: Tensor) -> Tensor:
        """Unchanged: nothing travels."""
        return rows

    def combine_postprocess(self, rows: Tensor) -> Tensor:
        """Rows [T k, h], added up by token -> [s, b, h]."""
        tokens = unpermute(
            rows,
            self.places,
            restore_shape=torch.Size((len(self.routing), self.shape[-1])),
            routing_map=self.routing,
            fused=self.config.moe_permute_fusion,
        )
        self.routing = self.counts = self.places = None
        return tokens.view(self.shape)


class LocalExperts(MoELayer):
    """Megatron's MoE layer with ``LocalDispatcher``; without expert parallelism only."""

    def __init__(self, *args: Any, pg_collection: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, pg_collection=pg_collection, **kwargs)
        self.token_dispatcher = LocalDispatcher(self.config, pg_collection or get_default_pg_collection())
