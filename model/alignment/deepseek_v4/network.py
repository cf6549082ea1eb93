"""DeepSeek-V4 as ``model.train`` trains it, with given weights: losses, gradients, and what its modules give."""

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

from model.families.deepseek_v4 import Size
from model.kinds.path import Choice
from model.kinds.run import Run
from model.layers.common.documents import positions
from model.layers.common.packed import packed
from model.layers.deepseek_v4 import indexer
from model.loop.saving import sharded
from model.patched import dialect
from model.step.deepseek_v4 import DeepseekV4

Seen = dict[str, Any]


def clear() -> None:
    """Megatron's trackers, which have a place for each layer of the model that they saw first, and the scales of losses
    that steps left."""
    for scaler in (DSAIndexerLossAutoScaler, MoEAuxLossAutoScaler):
        scaler.main_loss_backward_scale = None  # made by the first backward pass, or by an engine in another shape
    MTPLossAutoScaler.set_loss_scale(torch.ones((), device="cpu"))
    DSAIndexerLossLoggingHelper.tracker.clear()
    MTPLossLoggingHelper.tracker.clear()
    moe_logging.destroy_moe_metrics_tracker()


@contextmanager
def alone() -> Iterator[None]:
    """Backward passes within it are of the language model's loss alone."""
    DSAIndexerLossAutoScaler.main_loss_backward_scale = torch.zeros(())
    MoEAuxLossAutoScaler.main_loss_backward_scale = torch.zeros(())
    MTPLossAutoScaler.set_loss_scale(torch.zeros(()))
    yield
    DSAIndexerLossAutoScaler.main_loss_backward_scale = torch.ones(())
    MoEAuxLossAutoScaler.main_loss_backward_scale = torch.ones(())
    MTPLossAutoScaler.set_loss_scale(torch.ones(()))


def network(size: Size, run: Run, chosen: dict[str, Choice], seed: int = 0) -> DeepseekV4:
    """A new one, as training starts it."""
    clear()
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, force_reset_rng=True)
    return DeepseekV4(size, run, chosen)


def whole(built: DeepseekV4, of: Callable[[Tensor], Tensor | None] = lambda held: held) -> dict[str, Tensor]:
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
def fill(built: DeepseekV4, given: Mapping[str, Tensor]) -> None:
    """Give it the weights of a checkpoint's keys, all that it has."""
    for part in sharded.weights(built).values():
        part.data.copy_(given[part.key][part.global_slice()])


def batch(tokens: Tensor, cu: Tensor) -> dict[str, Any]:
    """What the network is given with labels, of tokens [T] and bounds [D+1]: a document's last token has none."""
    labels, ends = tokens.roll(-1), cu[1:].long() - 1
    counts = torch.ones_like(tokens, dtype=torch.bool).index_fill(0, ends[ends >= 0], False)
    return {
        "tokens": tokens[None],
        "positions": positions(cu, len(tokens))[None],
        "packed_seq_params": packed(cu, int(cu.diff().max())),
        "labels": labels[None],
        "loss_mask": counts[None].float(),
    }


def states(built: DeepseekV4, tokens: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and MTP's logits [T, V]."""
    seen: list[Tensor] = []
    hook = built.mtp.register_forward_hook(lambda module, given, result: seen.append(result))
    given = batch(tokens, cu)
    try:
        logits = built(**{name: given[name] for name in ("tokens", "positions", "packed_seq_params")})[0]
    finally:
        hook.remove()
    return logits, built.output_layer.logits(seen[0][len(tokens) :, 0])


def loss(built: DeepseekV4, tokens: Tensor, cu: Tensor) -> Tensor:
    """The language model's, from which ``backward`` begins; the others' are on Megatron's trackers."""
    clear()
    given = batch(tokens, cu)
    found: Tensor = (built(**given)[0] * given["loss_mask"][0]).sum() / given["loss_mask"].sum()
    return found


def tracked(size: Size) -> dict[str, float]:
    """MTP's, the indexers' and the routers' losses of the last forward pass, without their coefficients but the
    routers'."""
    index = DSAIndexerLossLoggingHelper.tracker.get("values", torch.zeros(()))  # none where no layer gave one
    metrics = moe_logging.get_moe_metrics_tracker().metrics.values()
    return {
        "mtp": float(MTPLossLoggingHelper.tracker[dialect.MTP_LOSSES].sum()),
        "index": float(index.sum()) / size.indexer.loss_coeff,
        "aux": sum(float(entry.values.sum()) for entry in metrics),
    }


@contextmanager
def watched(built: DeepseekV4) -> Iterator[Seen]:
    """{"layer.part": what the modules of published layer ``layer`` get and give in the next pass}, by the names of
    ``public.watched`` where there is the same cut; "mtp" beside them."""
    seen: Seen = {}
    hooks: list[Any] = []

    def after(module: Any, name: str, part: Any = lambda given, output: output) -> None:
        def hook(_: Any, given: Any, output: Any) -> None:
            if name not in seen:  # a backward pass computes some again
                seen[name] = part(given, output)

        hooks.append(module.register_forward_hook(hook))

    def pair(attention: Any, experts: Any, name: str) -> None:
        for place, module in (
            ("attn_hc", attention.self_attention_hyper_connection),
            ("ffn_hc", experts.mlp_hyper_connection),
        ):
            after(module, f"{name}.{place}", lambda given, out: (given[0], out[1].post, out[1].comb, out[0]))
        after(attention.input_layernorm, f"{name}.input_layernorm")
        after(experts.pre_mlp_layernorm, f"{name}.post_attention_layernorm")
        inner, core = attention.self_attention, attention.self_attention.core_attention
        after(inner.q_layernorm, f"{name}.q_a_norm")
        after(inner.kv_layernorm, f"{name}.kv_norm")
        after(inner.linear_proj, f"{name}.core", lambda given, _: given[0])
        after(inner, f"{name}.attended")
        if core.compressor is not None:
            after(core.compressor, f"{name}.compressor")
            hooks.append(_Visible(core, f"{name}.visible", seen))
        if core.indexer is not None:
            after(core.indexer, f"{name}.scorer", lambda _, out: (out.query, out.keys, indexer.scores(*out)))
        after(experts.mlp.router, f"{name}.gate")
        after(experts.mlp.shared_experts, f"{name}.shared")
        after(experts.mlp, f"{name}.moe", lambda _, output: output[0])

    layers = built.decoder.layers
    for i in range(len(layers) // 2):
        pair(layers[2 * i], layers[2 * i + 1], str(i))
    after(built.decoder.hc_head, "hc_head", lambda given, output: (given[0], output))
    after(built.decoder.final_norm, "norm")
    depth = built.mtp.layers[0]
    pair(depth.mtp_model_layer.layers[0], depth.mtp_model_layer.layers[1], "mtp")
    after(depth, "mtp", lambda _, output: output)
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


class _Visible:
    """Keeps which entries each token sees, [T, E] bool, of the next call of a module's ``visible``."""

    def __init__(self, core: Any, name: str, seen: Seen) -> None:
        self.core, inner = core, core.visible

        def visible(x: Tensor, *given: Any) -> Any:
            found, projected = inner(x, *given)
            slots = len(x) // core.shape.ratio
            mask = found.mask(slots)
            if found.chosen is not None:
                at = torch.where(mask, found.chosen, slots)
                mask = torch.zeros(len(x), slots + 1, dtype=torch.bool).scatter(1, at, True)[:, :slots]
            seen.setdefault(name, mask)
            return found, projected

        core.visible = visible

    def remove(self) -> None:
        del self.core.visible
