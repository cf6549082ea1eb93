"""DeepSeek-V4 once more, from the formulas: one document, one token, one head at a time, in fp64.

It shares no line with ``model/layers/deepseek_v4``, and takes no constant of the published model from it. Weights are a
dict by a checkpoint's keys; functions of a part take the beginning ``p`` of its keys. Of a token the hidden state is
[d], the streams are [n, d].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from model.alignment.deepseek_v4.dims import Config

Weights = Mapping[str, Any]  # tensors, or lists of their rows
Said = dict[str, Any]
KEPT = ("chosen", "index", "routed", "near", "scores")  # of each layer
BASES = {False: 10_000.0, True: 160_000.0}  # of layers without compression, and with it
FACTOR = 16  # of YaRN
MTP = "mtp.layers.0."
# of which a token meets some rows alone: each gets its own gradient
SPLIT = ("word_embeddings.weight", ".experts.linear_fc1.weight", ".experts.linear_fc2.weight")


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """x over its root mean square, times a weight."""
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return y if weight is None else weight * y


def frequencies(c: Config, compressed: bool) -> list[float]:
    """Radians a position of each pair of channels."""
    base = BASES[compressed]
    found = [base ** (-2 * i / c.rope_width) for i in range(c.rope_width // 2)]
    if not compressed:
        return found

    def at(beta: float) -> float:
        return c.rope_width * math.log(c.original / (2 * math.pi * beta)) / (2 * math.log(base))

    low, high = max(math.floor(at(32)), 0), float(min(math.ceil(at(1)), c.rope_width - 1))
    high = high + 0.001 if low == high else high
    ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(len(found))]
    return [f / FACTOR * r + f * (1 - r) for f, r in zip(found, ramps, strict=True)]


def rope(x: Tensor, position: int, c: Config, compressed: bool, sign: int = 1) -> Tensor:
    """x [..., D] with the pairs of its last channels turned."""
    angles = [position * f for f in frequencies(c, compressed)]
    cos, sin = x.new_tensor([math.cos(a) for a in angles]), x.new_tensor([sign * math.sin(a) for a in angles])
    first = x.shape[-1] - c.rope_width
    e, o = x[..., first::2], x[..., first + 1 :: 2]
    turned = torch.stack([e * cos - o * sin, o * cos + e * sin], -1).flatten(-2)
    return torch.cat([x[..., :first], turned], -1)


def mix(X: Tensor, w: Weights, p: str, c: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Of tokens' streams [..., n, d]: pre, post [..., n] and comb [..., n, n]."""
    n, z = c.streams, X.flatten(-2)
    m = z @ w[p + "mapping_proj.weight"].T / torch.sqrt((z * z).mean(-1, keepdim=True) + c.eps)
    scale, base = w[p + "scale"], w[p + "bias"]
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + c.hc_eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    rows = m[..., 2 * n :] * scale[2] + base[2 * n :]
    C = torch.softmax(rows.unflatten(-1, (n, n)), -1) + c.hc_eps
    C = C / (C.sum(-2, keepdim=True) + c.hc_eps)
    for _ in range(c.iterations - 1):
        C = C / (C.sum(-1, keepdim=True) + c.hc_eps)
        C = C / (C.sum(-2, keepdim=True) + c.hc_eps)
    return pre, post, C


def weighed(X: Tensor, pre: Tensor) -> Tensor:
    """The streams' sum by weights."""
    return (pre[..., None] * X).sum(-2)


def expanded(y: Tensor, X: Tensor, post: Tensor, C: Tensor) -> Tensor:
    """The streams behind a sublayer's output: stream j has C[i, j] of stream i."""
    return post[..., None] * y[..., None, :] + torch.einsum("...ij,...id->...jd", C, X)


def compress(xs: list[Tensor], w: Weights, p: str, c: Config, ratio: int, overlap: bool) -> list[Tensor]:
    """Entries of a document's hidden states."""
    if not xs:
        return []
    rows = torch.stack(xs)
    K, Z = rows @ w[p + "linear_wkv.weight"].T, rows @ w[p + "linear_wgate.weight"].T
    Z = torch.stack([z + w[p + "ape"][s % ratio] for s, z in enumerate(Z)])
    width, found = len(w[p + "norm.weight"]), []
    for v in range(len(xs) // ratio):
        own = range(v * ratio, (v + 1) * ratio)
        slots = [(K[s][-width:], Z[s][-width:]) for s in own]
        if overlap and v:
            slots += [(K[s - ratio][:width], Z[s - ratio][:width]) for s in own]
        shares = torch.softmax(torch.stack([z for _, z in slots]), 0)
        entry = (torch.stack([k for k, _ in slots]) * shares).sum(0)
        found.append(rope(rms(entry, c.eps, w[p + "norm.weight"]), v * ratio, c, True))
    return found


def index_scores(x: Tensor, low: Tensor, s: int, keys: list[Tensor], w: Weights, p: str, c: Config) -> list[Tensor]:
    """Of the entries that the query at s may see."""
    q = (w[p + "linear_wq_b.weight"] @ low).reshape(c.index_heads, c.index_width)
    q = rope(q, s, c, True)
    a = (w[p + "linear_weights_proj.weight"] @ x) / math.sqrt(c.index_heads) / math.sqrt(c.index_width)
    return [a @ torch.relu(q @ keys[v]) for v in range((s + 1) // c.csa)]


def attend(
    xs: list[Tensor],
    w: Weights,
    p: str,
    c: Config,
    kind: str,
    index: bool = False,
    dense: bool = False,
    given: list[Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor], list[list[int]], list[Tensor]]:
    """Outputs, compressed entries, each query's chosen entries and each one's indexer loss."""
    if not xs:
        return [], [], [], []
    ratio, D = {"sliding": 0, "csa": c.csa, "hca": c.hca}[kind], c.head_dim
    rows = torch.stack(xs)
    low = [*rms(rows @ w[p + "linear_q_down_proj.weight"].T, c.eps, w[p + "q_layernorm.weight"])]
    kv = [*rms(rows @ w[p + "linear_kv_proj.weight"].T, c.eps, w[p + "kv_layernorm.weight"])]
    kv = [rope(k, s, c, ratio > 0) for s, k in enumerate(kv)]
    entries = [] if not ratio else given or compress(xs, w, p + "core_attention.compressor.", c, ratio, kind == "csa")
    i = p + "core_attention.indexer."
    keys = compress([x.detach() for x in xs], w, i + "compressor.", c, ratio, True) if kind == "csa" else []
    queries = torch.stack(low) @ w[p + "linear_q_up_proj.weight"].T
    per = c.heads // c.o_groups
    downs = [*w[p + "linear_o_group_proj.weight"].reshape(c.o_groups, c.o_lora_rank, per * D)]
    outputs, chosen, losses = [], [], []
    for s, x in enumerate(xs):
        seen = list(range((s + 1) // ratio)) if ratio else []
        scores = index_scores(x.detach(), low[s].detach(), s, keys, w, i, c) if kind == "csa" else []
        if kind == "csa" and not dense:
            seen = sorted(seen, key=lambda v: -float(scores[v].detach()))[: c.index_topk]
        near = range(max(0, s - c.window + 1), s + 1)
        q = rope(rms(queries[s].reshape(c.heads, D), c.eps), s, c, ratio > 0)
        held = torch.stack([kv[t] for t in near] + [entries[v] for v in seen])
        heads, mass = [], torch.zeros(len(seen), dtype=x.dtype)
        for h in range(c.heads):
            e = torch.exp(held @ q[h] / math.sqrt(D))
            shares = e / (e.sum() + torch.exp(w[p + "core_attention.attn_sink"][h]))
            heads.append(shares @ held)
            mass = mass + shares[len(near) :].detach()
        heads = [*rope(torch.stack(heads), s, c, ratio > 0, -1)]
        down = [downs[g] @ torch.cat(heads[g * per : (g + 1) * per]) for g in range(c.o_groups)]
        outputs.append(torch.cat(down))
        chosen.append(seen)
        if kind == "csa" and index:
            losses.append(divergence(mass.tolist(), [scores[v] for v in seen]))
    return [*(torch.stack(outputs) @ w[p + "linear_proj.weight"].T)], entries, chosen, losses


def divergence(mass: list[float], scores: list[Tensor]) -> Tensor:
    """KL of the teacher, ``mass`` over its sum, from the scores' softmax."""
    if not scores:
        return torch.zeros((), dtype=torch.float64)
    total, log_z = sum(mass), torch.logsumexp(torch.stack(scores), 0)
    parts = [m / total * (math.log(m / total) - (y - log_z)) for m, y in zip(mass, scores, strict=True)]
    return torch.stack(parts).sum()


def feed(x: Tensor, gate_up: Tensor, down: Tensor, c: Config, weight: Tensor | float = 1.0) -> tuple[Tensor, float]:
    """One expert's output, and how near to its clamp a channel is."""
    inner = gate_up @ x
    gate, up = inner.chunk(2)
    away = torch.cat((gate, up.abs())).detach() - c.limit
    gate = torch.minimum(gate, torch.full_like(gate, c.limit))
    output = down @ (weight * (gate / (1 + torch.exp(-gate)) * up.clamp(-c.limit, c.limit)))
    return output, float(away.abs().min())


def affinities(x: Tensor, weight: Tensor) -> Tensor:
    """Of all experts, [E]."""
    return torch.sqrt(torch.log1p(torch.exp(weight @ x)))


def moe(x: Tensor, token: int, w: Weights, p: str, c: Config, table: Tensor | None) -> tuple[Tensor, list[int], float]:
    """One token's output, its experts, and how near to the clamp a channel of them is."""
    s = affinities(x, w[p + "router.weight"])
    if table is not None:
        chosen = table[token].tolist()
    else:
        biased = (s + w[p + "router.expert_bias"]).detach()
        chosen = sorted(range(c.experts), key=lambda e: -float(biased[e]))[: c.topk]
    total = s[chosen].sum()
    y, near = feed(x, w[p + "shared_experts.linear_fc1.weight"], w[p + "shared_experts.linear_fc2.weight"], c)
    for e in chosen:
        first, second = (w[f"{p}experts.experts.linear_fc{n}.weight"][e] for n in (1, 2))
        one, nearest = feed(x, first, second, c, s[e] / total * c.scaling)
        y, near = y + one, min(near, nearest)
    return y, chosen, near


def layer(
    Xs: list[Tensor], tokens: list[int], w: Weights, places: tuple[str, str], c: Config, kind: str, index: bool = False
) -> tuple[list[Tensor], Said]:
    """Attention and experts, whose keys begin with each of ``places``. Streams behind both; chosen entries, indexer
    losses, experts, how near they are to their clamp, and the affinities [S, E] of a learned router."""
    first, second = places
    a, m = first + "self_attention_hyper_connection.", second + "mlp_hyper_connection."
    mixed = [*zip(*mix(torch.stack(Xs), w, a, c), strict=True)]
    norm = w[first + "input_layernorm.weight"]
    xs = [rms(weighed(X, found[0]), c.eps, norm) for X, found in zip(Xs, mixed, strict=True)]
    ys, _, chosen, losses = attend(xs, w, first + "self_attention.", c, kind, index)
    Xs = [expanded(y, X, post, C) for y, X, (_, post, C) in zip(ys, Xs, mixed, strict=True)]
    table, left, routed, scores, near = w.get(second + "mlp.router.tid2eid"), [], [], [], []
    for X, token, pre, post, C in zip(Xs, tokens, *mix(torch.stack(Xs), w, m, c), strict=True):
        x = rms(weighed(X, pre), c.eps, w[second + "pre_mlp_layernorm.weight"])
        y, experts, nearest = moe(x, token, w, second + "mlp.", c, table)
        left.append(expanded(y, X, post, C))
        routed.append(experts)
        near.append(nearest)
        scores.append(affinities(x, w[second + "mlp.router.weight"]))
    return left, {
        "chosen": chosen,
        "index": losses,
        "routed": routed,
        "near": near,
        "scores": torch.stack(scores) if table is None else None,
    }


def collapsed(X: Tensor, w: Weights, p: str, c: Config) -> Tensor:
    """One hidden state of the streams."""
    z = X.reshape(-1)
    m = (w[p + "mapping_proj.weight"] @ z) / torch.sqrt((z * z).mean() + c.eps)
    return weighed(X, torch.sigmoid(m * w[p + "scale"] + w[p + "bias"]) + c.hc_eps)


def document(tokens: list[int], w: Weights, c: Config, mtp: bool = True, index: bool = False) -> Said:
    """One document -> logits and mtp [S, V]; of each layer, MTP's last, those of ``KEPT``; of MTP the
    streams that enter and leave its layer, [S, n, d], and the hidden states [S, d]."""
    w = {key: [*tensor] if key.endswith(SPLIT) else tensor for key, tensor in w.items()}
    words = w["embedding.word_embeddings.weight"]
    Xs = [torch.stack([words[t]] * c.streams) for t in tokens]
    layers: list[Said] = []
    for i, kind in enumerate(c.kinds):
        places = f"decoder.layers.{2 * i}.", f"decoder.layers.{2 * i + 1}."
        Xs, found = layer(Xs, tokens, w, places, c, kind, index)
        layers.append(found)
    V, norm = w["output_layer.weight"], w["decoder.final_norm.weight"]
    hidden = torch.stack([rms(collapsed(X, w, "decoder.hc_head.", c), c.eps, norm) for X in Xs])
    said: Said = {"logits": hidden @ V.T}
    if mtp:
        entered = []
        for s, X in enumerate(Xs):
            after = words[tokens[s + 1]] if s + 1 < len(tokens) else 0 * X[0]
            e = w[MTP + "e_proj.weight"] @ rms(after, c.eps, w[MTP + "enorm.weight"])
            h = [w[MTP + "h_proj.weight"] @ rms(stream, c.eps, w[MTP + "hnorm.weight"]) for stream in X]
            entered.append(torch.stack([e + one for one in h]))
        places = f"{MTP}mtp_model_layer.layers.0.", f"{MTP}mtp_model_layer.layers.1."
        left, found = layer(entered, tokens, w, places, c, "sliding")
        layers.append(found)
        final = w[MTP + "final_layernorm.weight"]
        hidden = torch.stack([rms(collapsed(X, w, MTP + "hc_head.", c), c.eps, final) for X in left])
        said |= {"entered": torch.stack(entered), "left": torch.stack(left), "hidden": hidden, "mtp": hidden @ V.T}
    return said | {key: [found[key] for found in layers] for key in KEPT}
