"""The rows of one draw, in forward order: what the same cuts of both models gave, then losses and gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.alignment import trained
from model.alignment.comparison import HEARD, Judge, chosen_of
from model.alignment.deepseek_v4 import network, public
from model.families.deepseek_v4 import Size
from model.saved import public as names

# (part of a parameter's public name within its layer, module), the first that fits
MODULES = (
    ("attn_hc.", "mHC of attention"),
    ("input_layernorm.", "norm before attention"),
    ("self_attn.compressor.indexer.", "indexer"),
    ("self_attn.compressor.", "compressor"),
    ("self_attn.", "attention"),
    ("ffn_hc.", "mHC of experts"),
    ("post_attention_layernorm.", "norm before experts"),
    ("mlp.gate.", "router"),
    ("mlp.shared_experts.", "shared expert"),
    ("mlp.", "experts"),
)
TITLES = {"sliding": "sliding window", "csa": "CSA", "hca": "HCA"}


@dataclass(frozen=True)
class Both:
    """Our network, what the public model with the same weights said, ids [B, S], and what the formulas give."""

    size: Size
    ours: Any
    theirs: public.Said
    ids: Tensor
    exact: Mapping[str, Any]


def compare(both: Both, against: Judge, exact: Judge) -> None:
    """Compare both models, and ours with the formulas."""
    B, S = both.ids.shape
    tokens, bounds = both.ids.flatten(), torch.arange(B + 1).int() * S
    with torch.no_grad():
        logits, mtp = trained.states(both.ours, tokens, bounds)
    with network.watched(both.ours) as ours:
        loss = trained.loss(both.ours, tokens, bounds)
    theirs = both.theirs.seen
    with trained.alone():
        loss.backward(retain_graph=True)
    first = trained.whole(both.ours, lambda held: held.grad)
    both.ours.zero_grad()
    leaks = {i: _leak(both.ours, ours[f"{i}.attended"].index_loss) for i, kind in _kinds(both) if kind == "csa"}
    loss.backward()
    losses = trained.tracked(both.size) | {"lm": float(loss.detach())}
    for layer, kind in _kinds(both):
        _unless_tied(both, ours, exact, layer, kind)
        _layer(both, ours, theirs, layer, kind, against)
        if kind == "csa":
            _indexer(both, ours, layer, leaks[layer], exact)
    _end(both, ours, logits, losses["lm"], against)
    _mtp(both, ours, mtp, exact)
    for name, title in (("mtp", "MTP's loss"), ("index", "indexers' loss"), ("aux", "routers' loss")):
        exact.values("losses", title, {name: (torch.tensor(losses[name]), both.exact["losses"][name])})
    _gradients(both, first, against)
    _all_gradients(both, trained.whole(both.ours, lambda held: held.grad), exact)


def _kinds(both: Both) -> list[tuple[int, str]]:
    return list(enumerate(layer.kind for layer in both.size.layers[::2]))


def _flat(x: Tensor) -> Tensor:
    """[B, S, ...] or [T, 1, ...] -> [T, ...]."""
    return x.flatten(0, 1)


def _layer(both: Both, ours: Any, theirs: Any, i: int, kind: str, judge: Judge) -> None:
    """Of one published layer, 1-based in the table."""
    layer = str(i + 1)

    def at(name: str) -> tuple[Any, Any]:
        return ours[f"{i}.{name}"], theirs[f"{i}.{name}"]

    def behind(place: str, title: str) -> None:
        mine, other = ours[place][0], theirs[place][0]
        judge.values(layer, title, {"": (_flat(mine), _flat(other))})

    def mixed(place: str, title: str) -> None:
        mine, other = at(place)
        parts = zip(("post", "comb", "collapsed"), mine[1:], other[1:], strict=True)
        judge.values(layer, f"mHC of {title}", {name: (_flat(a), _flat(b)) for name, a, b in parts})

    def plain(place: str, title: str) -> None:
        mine, other = at(place)
        judge.values(layer, title, {"": (mine.reshape(-1, mine.shape[-1]), other.reshape(-1, other.shape[-1]))})

    if not i:
        behind("0.attn_hc", "embedding, copied to streams")
    mixed("attn_hc", "attention")
    plain("input_layernorm", "norm before attention")
    plain("q_a_norm", "norm of queries' latent")
    plain("kv_norm", "norm of keys' latent")
    if kind != "sliding":
        entries, biases = theirs[f"{i}.compressor"]
        entries = entries[:, 0].flatten(0, 1)
        mine = ours[f"{i}.compressor"][: len(entries)]
        judge.values(layer, f"{TITLES[kind]} compressor", {"entries": (mine, entries)})
        seen = public.masks(biases)
        mine, scores = ours[f"{i}.visible"], None
        if kind == "csa":
            scores = _scores(ours[f"{i}.scorer"], theirs[f"{i}.scorer"], both, layer, judge)
        mine = torch.cat((mine[:, : seen.shape[1]], mine[:, seen.shape[1] :].any(1, keepdim=True)), 1)
        seen = torch.cat((seen, torch.zeros(len(seen), 1, dtype=torch.bool)), 1)  # last, slots that are no document's
        judge.choices(layer, "indexer's top-k" if scores is not None else "entries seen", mine, seen, scores)
    plain("core", f"core attention, {TITLES[kind]}")
    output = ours[f"{i}.attended"].output, theirs[f"{i}.attention"]
    judge.values(layer, "attention's output", {"": (_flat(output[0]), _flat(output[1]))})
    behind(f"{i}.ffn_hc", "mHC of attention, streams behind it")
    mixed("ffn_hc", "experts")
    plain("post_attention_layernorm", "norm before experts")
    _router(both, ours[f"{i}.gate"], theirs[f"{i}.gate"], i, judge)
    plain("shared", "shared expert")
    plain("moe", "experts, routed and shared")
    judge.near(both.exact["near"][i])
    last = i + 1 == len(both.size.compress_ratios)
    behind("hc_head" if last else f"{i + 1}.attn_hc", "mHC of experts, streams behind it")


def _scores(mine: Any, other: Any, both: Both, layer: str, judge: Judge) -> Tensor:
    """Their scores [T, E + 1], -inf where a token does not see an entry; ours are compared where it does."""
    query, keys, scores = other
    B, S, E = scores.shape
    judge.values(
        layer,
        "indexer's queries, keys",
        {"queries": (mine[0], _flat(query)), "keys": (mine[1][: B * E], _flat(keys))},
    )
    sees = (torch.arange(S)[:, None] + 1) // both.size.attention.csa_ratio > torch.arange(E)
    sees = torch.block_diag(*[sees.float()] * B).bool()
    theirs = torch.block_diag(*scores)
    a, b = (x.masked_fill(~sees, 0) for x in (mine[2][:, : B * E], theirs))
    judge.values(layer, "indexer's scores", {"": (a, b)})
    return torch.cat((theirs.masked_fill(~sees, -torch.inf), torch.full((B * S, 1), -torch.inf)), 1)


def _router(both: Both, mine: Any, other: Any, i: int, judge: Judge) -> None:
    """Experts and their weights, [T, E] of each."""
    probs, chosen = mine
    logits, weights, indices = other
    found = torch.zeros_like(logits, dtype=torch.bool).scatter(1, indices, True)
    gate = both.theirs.model.model.layers[i].mlp.gate
    bias = getattr(gate, "e_score_correction_bias", None)
    scores = None if bias is None else gate.score_fn(logits) + bias
    kind = "hash" if scores is None else "learned"
    judge.choices(str(i + 1), f"{kind} router's experts", chosen, found, scores)
    due = torch.zeros_like(logits).scatter(1, indices, weights)
    judge.values(str(i + 1), f"{kind} router's weights", {"": (probs, due)})


def _unless_tied(both: Both, ours: Any, judge: Judge, i: int, kind: str) -> None:
    """The formulas are of other choices where rounding decided one of a main layer's."""
    exact = both.exact
    if kind == "csa":
        S = both.ids.shape[1]
        scores, slots = ours[f"{i}.scorer"][2], S // both.size.attention.csa_ratio
        local = [[slot + t // S * slots for slot in chosen] for t, chosen in enumerate(exact["chosen"][i])]
        judge.unless_tied(ours[f"{i}.visible"], chosen_of(local, scores.shape[1]), scores)
    scores = exact["scores"][i]
    if scores is not None:
        scores = scores + exact["biases"][i - both.size.hash_layers]
        judge.unless_tied(ours[f"{i}.gate"][1], chosen_of(exact["routed"][i], scores.shape[1]), scores)


def _indexer(both: Both, ours: Any, i: int, leak: float, judge: Judge) -> None:
    """What an indexer learns, which transformers does not have."""
    mine, due = ours[f"{i}.attended"].index_loss, torch.stack(both.exact["index"][i])
    judge.values(str(i + 1), "indexer's loss, of each token", {"": (mine, due)})
    judge.values(
        str(i + 1), "indexer's loss, gradients of all others", {"": (torch.tensor(leak), torch.tensor(0.0))}, limit=0
    )


def _leak(built: Any, found: Tensor | None) -> float:
    """The largest gradient that an indexer's loss gives to a parameter of no indexer."""
    others = [p for name, p in built.named_parameters() if ".indexer." not in name]
    if found is None or not found.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(found.sum(), others, allow_unused=True, retain_graph=True)
    return max((float(grad.abs().max()) for grad in gradients if grad is not None), default=0.0)


def _end(both: Both, ours: Any, logits: Tensor, loss: float, judge: Judge) -> None:
    theirs, out = both.theirs.seen, both.theirs.output
    judge.values("head", "mHC head", {"": (_flat(ours["hc_head"][1]), _flat(theirs["hc_head"][1]))})
    judge.values("head", "last norm", {"": (_flat(ours["norm"]), _flat(theirs["norm"]))})
    judge.values("head", "logits", {"": (logits, _flat(out.logits))})
    judge.values("head", "loss", {"": (torch.tensor(loss), out.loss)})


def _mtp(both: Both, ours: Any, logits: Tensor, judge: Judge) -> None:
    exact = both.exact
    hidden, left = ours["mtp"]
    judge.values("MTP", "streams that enter", {"": (_flat(ours["mtp.attn_hc"][0]), exact["entered"])})
    scores = exact["scores"][-1] + exact["biases"][-1]
    chosen = chosen_of(exact["routed"][-1], scores.shape[1])
    judge.choices("MTP", "learned router's experts", ours["mtp.gate"][1], chosen, scores)
    judge.values("MTP", "streams behind its layer", {"": (_flat(left), exact["left"])})
    for distances in exact["near"]:
        judge.near(distances)
    judge.values("MTP", "head and last norm", {"": (_flat(hidden), exact["hidden"])})
    judge.values("MTP", "logits", {"": (logits, exact["mtp"])})


def place(name: str) -> tuple[str, str]:
    """(layer, module) of the table for a parameter's public name."""
    found = re.match(r"model\.(?:layers\.(\d+)|mtp\.0\.block\.layers\.[01])\.(.*)", name)
    if found is None:
        return ("MTP", "projections, norms, head") if name.startswith("model.mtp.") else ("ends", name)
    module = next(title for part, title in MODULES if found[2].startswith(part))
    return (str(int(found[1]) + 1) if found[1] else "MTP"), module


def _short(name: str) -> str:
    """Without its layer."""
    return re.sub(r"^model\.(layers\.\d+|mtp\.0\.block\.layers\.[01]|mtp\.0)\.", "", name)


def _gradients(both: Both, mine: dict[str, Tensor], judge: Judge) -> None:
    """Of the language model's loss, module by module."""
    due = both.theirs.gradients
    found, grouped = names.exported(both.size, mine), dict[tuple[str, str], dict[str, Any]]()
    least = HEARD * max(float(grad.abs().max()) for grad in due.values() if grad is not None)
    for name, grad in due.items():
        if ".indexer." not in name:  # the choice has no gradient
            grouped.setdefault(place(name), {})[_short(name)] = (found.get(name), grad)
    for (layer, module), pairs in reversed(grouped.items()):
        judge.gradients(layer, module, pairs, least)


def _all_gradients(both: Both, mine: dict[str, Tensor], judge: Judge) -> None:
    """Of all losses: module by module of what transformers lacks, all others of a layer in one."""
    due = names.exported(both.size, {key: grad for key, grad in both.exact["gradients"].items() if grad is not None})
    found, grouped = names.exported(both.size, mine), dict[tuple[str, str], dict[str, Any]]()
    least = HEARD * max(float(grad.abs().max()) for grad in due.values())
    for name in sorted(due.keys() | found.keys()):
        layer, module = place(name)
        own = module == "indexer" or layer == "MTP"
        key = (layer, module) if own else (layer, "all but an indexer's")
        grouped.setdefault(key, {})[_short(name)] = (found.get(name), due.get(name))
    for (layer, module), pairs in reversed(grouped.items()):
        judge.gradients(layer, module, pairs, least, "all gradients")
