"""A size's network as ``model.train`` trains it, with given weights: its losses and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.experimental_attention_variant.dsa import (
    DSAIndexerLossAutoScaler,
    DSAIndexerLossLoggingHelper,
)
from megatron.core.transformer.moe import moe_logging
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler, MTPLossLoggingHelper
from torch import Tensor
from torch.nn.functional import linear

from model.families.family import Family
from model.kinds.path import Choice, called
from model.kinds.run import Run
from model.layers.common.documents import positions
from model.layers.common.packed import packed
from model.loop.saving import sharded
from model.patched import dialect
from model.step.network import Network


def clear() -> None:
    """Megatron's trackers, which have a place for each layer of the model that they saw first, and the scales of losses
    that steps left."""
    for scaler in (DSAIndexerLossAutoScaler, MoEAuxLossAutoScaler):
        scaler.main_loss_backward_scale = None  # made by the first backward pass, or by an engine in another shape
    MTPLossAutoScaler.set_loss_scale(torch.ones((), device="cpu"))
    DSAIndexerLossLoggingHelper.tracker.clear()
    MTPLossLoggingHelper.tracker.clear()
    moe_logging.destroy_moe_metrics_tracker()


def _scaled(index: float, others: float) -> None:
    """What backward passes multiply the gradients of the losses beside the language model's by."""
    DSAIndexerLossAutoScaler.main_loss_backward_scale = torch.tensor(index)
    MoEAuxLossAutoScaler.main_loss_backward_scale = torch.tensor(others)
    MTPLossAutoScaler.set_loss_scale(torch.tensor(others))


@contextmanager
def alone(index: float = 0.0) -> Iterator[None]:
    """Backward passes within it are of the language model's loss, and of ``index`` times the indexers', alone."""
    _scaled(index, 0.0)
    yield
    _scaled(1.0, 1.0)


def network(size: Family, run: Run, chosen: dict[str, Choice], seed: int = 0) -> Network:
    """A new one, as training starts it."""
    clear()
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    built: Network = called(size.network)(size, run, chosen)
    return built


def whole(built: Network, of: Callable[[Tensor], Tensor | None] = lambda held: held) -> dict[str, Tensor]:
    """{a checkpoint's key: what ``of`` gives of the parameter or buffer}, a layer's experts as one; without those of
    which it gives None."""
    found: dict[str, Tensor] = {}
    for part in sharded.weights(built).values():
        value = of(part.data)
        if value is not None:
            tensor = found.setdefault(part.key, torch.zeros(part.global_shape, dtype=value.dtype))
            tensor[part.global_slice()] = value.detach()
    return found


@torch.no_grad()
def fill(built: Network, given: Mapping[str, Tensor]) -> None:
    """Give it the weights of a checkpoint's keys, all that it has."""
    for part in sharded.weights(built).values():
        part.data.copy_(given[part.key][part.global_slice()])


def batch(tokens: Tensor, cu: Tensor, fields: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """What the network is given with labels, of tokens [T], bounds [D+1] and side columns [T]: a document's last token
    has no label."""
    labels, ends = tokens.roll(-1), cu[1:].long() - 1
    counts = torch.ones_like(tokens, dtype=torch.bool).index_fill(0, ends[ends >= 0], False)
    return {
        "tokens": tokens[None],
        "positions": positions(cu, len(tokens))[None],
        "packed_seq_params": packed(cu, int(cu.diff().max())),
        "labels": labels[None],
        "loss_mask": counts[None].float(),
        "fields": fields,
    }


def states(
    built: Network, tokens: Tensor, cu: Tensor, fields: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [T, V], and MTP's of its depths one after the other, [depths T, V]."""
    seen: list[Tensor] = []
    hook = built.mtp.register_forward_hook(lambda module, given, result: seen.append(result))
    given = batch(tokens, cu, fields)
    try:
        logits = built(**{name: given[name] for name in ("tokens", "positions", "packed_seq_params", "fields")})[0]
    finally:
        hook.remove()
    return logits, linear(seen[0][len(tokens) :, 0], built.output_layer.weight)


def loss(built: Network, tokens: Tensor, cu: Tensor, fields: Mapping[str, Tensor] | None = None) -> Tensor:
    """The language model's, from which ``backward`` begins; the others' are on Megatron's trackers."""
    clear()
    given = batch(tokens, cu, fields)
    found: Tensor = (built(**given)[0] * given["loss_mask"][0]).sum() / given["loss_mask"].sum()
    return found


def tracked(size: Family) -> dict[str, float]:
    """MTP's, the indexers' and the routers' losses of the last forward pass, without their coefficients; MTP's is the
    mean of its depths'."""
    index = DSAIndexerLossLoggingHelper.tracker.get("values", torch.zeros(()))  # none where no layer gave one
    metrics = moe_logging.get_moe_metrics_tracker().metrics.values()
    return {
        "mtp": float(MTPLossLoggingHelper.tracker[dialect.MTP_LOSSES].mean()),
        "index": float(index.sum()) / size.coefficients["indexer_loss_coeff"],
        "aux": sum(float(entry.values.sum()) for entry in metrics),
    }
