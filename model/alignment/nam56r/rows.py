"""The rows of one draw, in forward order: what network and formulas gave, then losses and gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.alignment.comparison import HEARD, Judge
from model.alignment.nam56r.exact import COEFFICIENTS
from model.alignment.nam56r.network import Ours
from model.alignment.nam56r.packed import Packed
from model.families.nam56r import Size
from model.families.pattern import Layer

# Of each kind of layer the rows of values: (title, what the formulas say)
ATTENTION = (("latents", ("low", "latent")), ("core attention", ("core",)), ("attention's output", ("mixed",)))
VALUES = {
    "mamba3": (
        ("norms of B and C", ("B", "C")),
        ("Mamba-3, scan and gate", ("scan",)),
        ("Mamba-3's output", ("mixed",)),
    ),
    "m2rnn": (("M²RNN, recurrence and gate", ("gated",)), ("M²RNN's output", ("mixed",))),
    "mla": ATTENTION,
    "dsa": ATTENTION,
    "moe": (
        ("router's weights", ("weights",)),
        ("shared expert", ("shared",)),
        ("experts, routed and shared", ("mixed",)),
    ),
}
INDEXER = {"queries": "q", "keys": "k", "weights": "a"}
MTP = (
    ("projection of hidden states and embeddings", "joined"),
    ("norm before attention", "norm"),
    ("core attention", "core"),
    ("attention, residual behind it", "attended"),
    ("MLP", "mlp"),
    ("MLP, residual behind it", "left"),
    ("last norm", "hidden"),
    ("logits", "logits"),
)
# (beginning of a parameter's key within its layer, module), in forward order
MODULES = (
    (r"(eh_proj|enorm|hnorm)\.", "projection and its norms"),
    (r"(norm|input_layernorm|pre_mlp_layernorm)\.", "norm"),
    (r"self_attention\.core_attention\.indexer\.", "indexer"),
    (r"self_attention\.", "attention"),
    (r"mlp\.router\.", "router"),
    (r"mlp\.shared_experts\.", "shared expert"),
    (r"mlp\.experts\.", "experts"),
    (r"mixer\.mamba\.", "Mamba-3"),
    (r"mixer\.", "M²RNN"),
    (r"mlp\.", "MLP"),
    (r"final_layernorm\.", "last norm"),
)


def compare(size: Size, row: Packed, ours: Ours, exact: Mapping[str, Any], judge: Judge) -> None:
    """Compare the network with the formulas."""

    def pair(name: str) -> tuple[Tensor, Tensor]:
        return ours.seen[name], exact[name]

    judge.values("entrance", "word embedding", {"": pair("words")})
    rows = [_rows(found, exact["rows"].max() + 1) for found in pair("rows")]
    judge.choices("entrance", "rows of the n-gram tables", rows[0], rows[1], None)
    for title, name in (("n-gram hash embedding", "ngram"), ("structure embedding", "structure"), ("sum", "entered")):
        judge.values("entrance", title, {"": pair(name)})
    for layer in size.layers:
        _layer(layer, ours, exact, judge)
    judge.values("head", "last norm", {"": pair("hidden")})
    judge.values("head", "logits", {"": pair("logits")})
    for depth in range(1, size.mtp_depths + 1):
        _mtp(f"MTP-{depth}", row.ahead(depth), ours, exact, judge)
    _losses(size, ours, exact["losses"], judge)
    _gradients(ours.gradients, exact["gradients"], judge)


def _rows(found: Tensor, count: Tensor) -> Tensor:
    """[T, count] bool of the tables' rows [T, tables] that each token looks up; the last one for those beyond."""
    mask = torch.zeros(len(found), int(count) + 1, dtype=torch.bool)
    return mask.scatter(1, found.clamp(0, int(count)), True)


def _layer(layer: Layer, ours: Ours, exact: Mapping[str, Any], judge: Judge) -> None:
    name = str(layer.number)

    def values(title: str, whats: tuple[str, ...]) -> None:
        judge.values(name, title, {what: (ours.seen[f"{name}.{what}"], exact[f"{name}.{what}"]) for what in whats})

    values(f"norm before {layer.of.label}", ("norm",))
    if layer.indices_from == layer.number:
        _indexer(name, ours, exact, judge)
    elif layer.indices_from is not None:
        source = f"{layer.indices_from}.taken"
        judge.choices(name, f"keys of layer {layer.indices_from}", ours.seen[f"{name}.shared"], exact[source], None)
    elif layer.kind == "moe":
        routed, biased = exact[f"{name}.routed"], exact[f"{name}.biased"]
        judge.choices(name, "router's experts", ours.seen[f"{name}.taken"], routed, biased, followed=True)
    for title, whats in VALUES[layer.kind]:
        values(title, whats)
        if "scan" in whats:
            judge.near(exact[f"{name}.near"])
    values("residual", ("left",))


def _indexer(name: str, ours: Ours, exact: Mapping[str, Any], judge: Judge) -> None:
    parts = {what: (ours.seen[f"{name}.{part}"], exact[f"{name}.{part}"]) for what, part in INDEXER.items()}
    judge.values(name, "indexer's queries, keys, weights", parts)
    chosen = ours.seen[f"{name}.taken"], exact[f"{name}.chosen"]
    judge.choices(name, "indexer's top-k", *chosen, exact[f"{name}.scores"], followed=True)


def _mtp(name: str, ahead: Tensor, ours: Ours, exact: Mapping[str, Any], judge: Judge) -> None:
    """Of one depth, at the tokens that have one so far ahead."""
    for title, what in MTP:
        judge.values(name, title, {"": (ours.seen[f"{name}.{what}"][ahead], exact[f"{name}.{what}"])})


def _losses(size: Size, ours: Ours, exact: Mapping[str, Tensor], judge: Judge) -> None:
    weighed = sum(size.coefficients[name] * ours.losses[key] for key, name in COEFFICIENTS.items())
    losses = ours.losses | {"total": ours.losses["lm"] + weighed}
    for title, name in (
        ("loss", "lm"),
        ("MTP's loss", "mtp"),
        ("indexers' loss", "index"),
        ("routers' loss", "aux"),
        ("total", "total"),
    ):
        judge.values("losses", title, {"": (torch.tensor(losses[name]), exact[name])})
    leak = torch.tensor(ours.leak), torch.tensor(0.0)
    judge.values("losses", "indexers' loss, gradients of all others", {"": leak}, limit=0)


def place(key: str) -> tuple[tuple[int, int, int], str, str]:
    """Of a parameter's key its place in a forward pass, and layer and module of the table."""
    found = re.match(r"(decoder|mtp)\.layers\.(\d+)\.(?:mtp_model_layer\.layers\.\d\.)?(.*)", key)
    if found is None:
        behind = key.startswith(("decoder.", "output_layer."))
        return (2 if behind else 0, 0, 0), "head" if behind else "entrance", key
    number, of_mtp = int(found[2]), found[1] == "mtp"
    at, module = next((at, title) for at, (part, title) in enumerate(MODULES) if re.match(part, found[3]))
    return (3 if of_mtp else 1, number, at), f"MTP-{number + 1}" if of_mtp else str(number + 1), module


def _gradients(ours: Mapping[str, Tensor], due: Mapping[str, Tensor | None], judge: Judge) -> None:
    """Of the losses as they are trained, module by module, as a backward pass comes to them."""
    grouped = dict[tuple[str, str], dict[str, Any]]()
    least = HEARD * max(float(grad.abs().max()) for grad in due.values() if grad is not None)
    for key in sorted(due, key=lambda key: (place(key)[0], key), reverse=True):
        _, layer, module = place(key)
        grouped.setdefault((layer, module), {})[re.sub(r"^.*layers\.\d+\.", "", key)] = (ours.get(key), due[key])
    for (layer, module), pairs in grouped.items():
        judge.gradients(layer, module, pairs, least)
