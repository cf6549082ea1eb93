"""All layers of a document, MTP, and the losses that are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.alignment.nam56r.formulas import attention, ends
from model.alignment.nam56r.formulas.experts import experts, mlp
from model.alignment.nam56r.formulas.m2rnn import m2rnn
from model.alignment.nam56r.formulas.mamba3 import mamba3
from model.alignment.nam56r.formulas.parts import Said, Weights, cross_entropy, rms
from model.families.nam56r import Size
from model.families.pattern import Layer


@dataclass(frozen=True)
class Document:
    """``tokens`` [S] and side columns [S]; ``other``: {"layer.taken": choices [S, N] bool, to be followed where
    rounding may have made them}."""

    tokens: list[int]
    fields: Mapping[str, list[int]]
    other: Mapping[str, Tensor]


def document(own: Document, w: Weights, c: Size, floor: float) -> Said:
    """{"layer.what": …} of one document, layers from 1 on, MTP's depths "MTP-1" and on, of tokens that have one that
    far behind them; of the entrance and the head without a layer."""
    found = ends.entrance(own.tokens, own.fields, w, c)
    xs = found["entered"]
    for layer in c.layers:
        said = _layer(layer, xs, w, c, floor, own.other.get(f"{layer.number}.taken"), found)
        xs = said["left"]
        found |= {f"{layer.number}.{what}": value for what, value in said.items()}
    head = w["output_layer.weight"].T
    hidden = rms(xs, w["decoder.final_norm.weight"])
    found |= {"hidden": hidden, "logits": hidden @ head}
    for depth in range(1, min(c.mtp_depths, len(own.tokens) - 1) + 1):
        said = _mtp(hidden[: len(own.tokens) - depth], own.tokens[depth:], w, f"mtp.layers.{depth - 1}.", c)
        hidden = said["hidden"]
        found |= {f"MTP-{depth}.{what}": value for what, value in said.items()}
        found[f"MTP-{depth}.logits"] = hidden @ head
    return found


def _layer(layer: Layer, xs: Tensor, w: Weights, c: Size, floor: float, other: Tensor | None, found: Said) -> Said:
    """``norm``, what the layer's kind says, and ``left`` [S, h]; ``found``: what earlier layers said."""
    p = f"decoder.layers.{layer.number - 1}."
    norm, inside = layer.of.inside
    normed, p = rms(xs, w[f"{p}{norm}.weight"]), f"{p}{inside}."
    if layer.kind == "mamba3":
        said = mamba3(normed, w, f"{p}mamba.", c, floor)
    elif layer.kind == "m2rnn":
        said = m2rnn(normed, w, p, c)
    elif layer.kind == "moe":
        said = experts(normed, w, p, c, other)
    elif layer.indices_from == layer.number:
        said = attention.dsa(normed, w, p, c, other)
    else:
        said, _ = attention.mla(normed, w, p, c, found.get(f"{layer.indices_from}.taken"))
    return {"norm": normed, **said, "left": xs + said["mixed"]}


def _mtp(hidden: Tensor, ahead: list[int], w: Weights, p: str, c: Size) -> Said:
    """One depth, of hidden states [S, h] and the tokens ahead: ``joined``, ``attended`` and ``left`` [S, h], and
    ``hidden`` behind the depth's norm."""
    embedded = rms(w["embedding.word_embeddings.weight"][ahead], w[p + "enorm.weight"])
    joined = torch.cat((embedded, rms(hidden, w[p + "hnorm.weight"])), 1) @ w[p + "eh_proj.weight"].T
    first, second = f"{p}mtp_model_layer.layers.0.", f"{p}mtp_model_layer.layers.1."
    normed = rms(joined, w[first + "input_layernorm.weight"])
    said, _ = attention.mla(normed, w, first + "self_attention.", c)
    attended = joined + said["mixed"]
    inner = rms(attended, w[second + "pre_mlp_layernorm.weight"])
    mixed = mlp(inner, w[second + "mlp.linear_fc1.weight"], w[second + "mlp.linear_fc2.weight"])
    left = attended + mixed
    return {
        "joined": joined,
        "norm": normed,
        "core": said["core"],
        "attended": attended,
        "mlp": mixed,
        "left": left,
        "hidden": rms(left, w[p + "final_layernorm.weight"]),
    }


def losses(documents: Sequence[Said], tokens: Sequence[list[int]], c: Size) -> dict[str, Tensor]:
    """Of a row of documents: the language model's, MTP's, the mean of its depths', the indexers', which is each one's
    mean over all tokens, summed, and the routers', each one's mean over documents, summed."""
    zero = torch.zeros((), dtype=torch.float64)

    def ahead(key: str, by: int) -> Tensor:
        """The mean over the tokens that have one ``by`` ahead."""
        pairs = [(said[key], own) for said, own in zip(documents, tokens, strict=True) if len(own) > by]
        each = [cross_entropy(logits[: len(own) - by], own[by:]) for logits, own in pairs]
        return torch.cat(each).mean() if each else zero

    def layers(what: str) -> list[Tensor]:
        """[T] or [documents] of each layer that has it."""
        names = [f"{layer.number}.{what}" for layer in c.layers]
        parts = [[said[name].reshape(-1) for said in documents] for name in names if name in documents[0]]
        return [torch.cat(part).mean() for part in parts]

    mtp = [ahead(f"MTP-{depth}.logits", depth + 1) for depth in range(1, c.mtp_depths + 1)]
    return {
        "lm": ahead("logits", 1),
        "mtp": torch.stack(mtp).mean() if mtp else zero,
        "index": sum(layers("index"), zero),
        "aux": sum(layers("balance"), zero),
    }
