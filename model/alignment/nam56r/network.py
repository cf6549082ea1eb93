"""What NAM56R's network gives of a row, by the names that the formulas have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.alignment import trained
from model.alignment.nam56r.packed import Packed
from model.alignment.watched import Seen, Watch, watching
from model.families.nam56r import Size
from model.families.pattern import Layer
from model.step.network import Nam56r


@dataclass(frozen=True)
class Ours:
    """``seen``: {"layer.what": [T, …]}; ``losses``; ``gradients`` by a checkpoint's keys; ``leak``: the largest
    gradient that the indexers' loss gives to a parameter of no indexer."""

    seen: Seen
    losses: dict[str, float]
    gradients: dict[str, Tensor]
    leak: float

    @property
    def taken(self) -> Seen:
        """What indexers and routers chose, [T, N] bool."""
        return {name: value for name, value in self.seen.items() if name.endswith(".taken")}


def passed(size: Size, built: Nam56r, row: Packed) -> Ours:
    """Both passes."""
    given = row.tokens, row.cu, row.fields
    with torch.no_grad():
        logits, mtp = trained.states(built, *given)
    with watched(size, built) as seen:
        loss = trained.loss(built, *given)
    seen |= {"logits": logits} | {f"MTP-{d}.logits": part for d, part in enumerate(mtp.split(len(logits)), 1)}
    others = [p for name, p in built.named_parameters() if ".indexer." not in name]
    with trained.alone(index=1.0):
        leaked = torch.autograd.grad(0 * loss, others, allow_unused=True, retain_graph=True)
    leak = max(float(grad.abs().max()) for grad in leaked if grad is not None)
    losses = trained.tracked(size) | {"lm": float(loss.detach())}
    loss.backward()
    return Ours(seen, losses, trained.whole(built, lambda held: held.grad), leak)


@contextmanager
def watched(size: Size, built: Nam56r) -> Iterator[Seen]:
    """{"layer.what": what modules of it get and give in the next pass, [T, …]}."""
    layers = list(built.decoder.layers)
    with watching() as watch:
        watch.after(built.embedding, "words", lambda _, out: out[:, 0])
        watch.after(built.ngram.table, "rows", lambda given, _: given[0])
        watch.after(built.ngram, "ngram")
        watch.after(built.structure, "structure")
        for layer, module in zip(size.layers, layers, strict=True):
            _layer(watch, layer, module)
        for earlier, later in zip(
            ["entered", *(f"{layer.number}.left" for layer in size.layers)], layers, strict=False
        ):
            watch.after(_norm(later), earlier, lambda _, out: out[1].flatten(0, -2))
        watch.after(built.decoder.final_norm, f"{size.layers[-1].number}.left", lambda given, _: given[0][:, 0])
        watch.after(built.decoder.final_norm, "hidden", lambda _, out: out[:, 0])
        for depth, module in enumerate(built.mtp.layers, 1):
            _mtp(watch, f"MTP-{depth}", module)
        yield watch.seen


def _norm(layer: Any) -> Any:
    """At its entrance, which gives what goes around the layer as well."""
    for name in ("norm", "pre_mlp_layernorm"):
        if isinstance(found := getattr(layer, name, None), torch.nn.RMSNorm):
            return found
    return layer.input_layernorm


def _layer(watch: Watch, of: Layer, layer: Any) -> None:
    name = str(of.number)

    def after(module: Any, what: str, part: Any = lambda _, out: out) -> None:
        watch.after(module, f"{name}.{what}", part)

    after(_norm(layer), "norm", lambda _, out: out[0].flatten(0, -2))
    if of.kind == "mamba3":
        inner = layer.mixer.mamba
        after(inner.B_norm, "B", lambda _, out: out[0].flatten(1))
        after(inner.C_norm, "C", lambda _, out: out[0].flatten(1))
        after(inner.out_proj, "scan", lambda given, _: given[0][0])
        after(layer.mixer, "mixed")
    elif of.kind == "m2rnn":
        after(layer.mixer.norm, "gated", lambda given, _: given[0])
        after(layer.mixer, "mixed")
    elif of.kind == "moe":
        after(layer.mlp.router, "weights", lambda _, out: out[0])
        after(layer.mlp.router, "taken", lambda _, out: out[1])
        after(layer.mlp.shared_experts, "shared", lambda _, out: out[:, 0])
        after(layer.mlp, "mixed", lambda _, out: out[0][:, 0])
    else:
        _attention(after, layer.self_attention)
        if of.indices_from is not None:
            _chosen(watch, name, layer.self_attention.core_attention)
        if of.indices_from == of.number:
            _indexer(watch, name, layer.self_attention.core_attention.indexer)


def _attention(after: Any, attention: Any) -> None:
    after(attention.linear_q_down_proj, "low", lambda _, out: out[0][:, 0])
    after(attention.linear_kv_down_proj, "latent", lambda _, out: out[0][:, 0])
    after(attention.linear_proj, "core", lambda given, _: given[0].flatten(0, -2))
    after(attention, "mixed", lambda _, out: out[0][:, 0])


def _chosen(watch: Watch, name: str, core: Any) -> None:
    """The keys that it takes, which Megatron keeps beside the documents: its own or an earlier layer's."""

    def hook(_: Any, __: Any, named: dict[str, Any], ___: Any) -> None:
        held = core._get_index_share_topk_holder(named["packed_seq_params"])[core.source_layer][0]  # [T, k], -1: none
        mask = torch.zeros(len(held), len(held) + 1, dtype=torch.bool)
        what = "taken" if core.source_layer == core.layer_number else "shared"
        watch.seen[f"{name}.{what}"] = mask.scatter(1, held.where(held >= 0, len(held)), True)[:, :-1]

    watch.ends.callback(core.register_forward_hook(hook, with_kwargs=True).remove)


def _indexer(watch: Watch, name: str, indexer: Any) -> None:
    """What its scores are made of: queries [T, heads, d], keys [T, d] and the heads' weights [T, heads]."""
    inner = indexer.forward_before_topk

    def kept(*given: Any, **named: Any) -> Any:
        found = inner(*given, **named)
        watch.seen |= {f"{name}.{what}": part[:, 0] for what, part in zip(("q", "k", "a"), found, strict=True)}
        return found

    indexer.forward_before_topk = kept
    watch.ends.callback(delattr, indexer, "forward_before_topk")


def _mtp(watch: Watch, name: str, depth: Any) -> None:
    def after(module: Any, what: str, part: Any = lambda _, out: out[:, 0]) -> None:
        watch.after(module, f"{name}.{what}", part)

    attention, dense = depth.mtp_model_layer.layers
    after(attention.input_layernorm, "joined", lambda _, out: out[1][:, 0])
    after(attention.input_layernorm, "norm", lambda _, out: out[0][:, 0])
    after(attention.self_attention.linear_proj, "core", lambda given, _: given[0].flatten(0, -2))
    after(dense.pre_mlp_layernorm, "attended", lambda _, out: out[1][:, 0])
    after(dense.mlp, "mlp", lambda _, out: out[0][:, 0])
    after(depth.final_layernorm, "left", lambda given, _: given[0][:, 0])
    after(depth.final_layernorm, "hidden")
