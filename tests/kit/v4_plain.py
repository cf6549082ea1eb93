"""DeepSeek-V4 once more, from the formulas: one document, one token, one head at a time, in fp64.

It shares no line with ``model/layers/deepseek_v4``. Weights are a dict by ``v4_model.Whole``'s names.
"""

import math

import torch


def rms(x, eps, weight=None):
    y = x / torch.sqrt((x * x).mean() + eps)
    return y if weight is None else weight * y


def frequencies(c, compressed):
    base = 160_000.0 if compressed else 10_000.0
    found = [base ** (-2 * i / c.rope_width) for i in range(c.rope_width // 2)]
    if not compressed:
        return found

    def at(beta):
        return c.rope_width * math.log(c.original / (2 * math.pi * beta)) / (2 * math.log(base))

    low, high = max(math.floor(at(32)), 0), min(math.ceil(at(1)), c.rope_width - 1)
    high = high + 0.001 if low == high else high
    ramps = [min(max((i - low) / (high - low), 0), 1) for i in range(len(found))]
    return [f / 16 * r + f * (1 - r) for f, r in zip(found, ramps, strict=True)]


def rope(x, position, c, compressed, sign=1):
    first, parts = len(x) - c.rope_width, []
    for i, f in enumerate(frequencies(c, compressed)):
        e, o = x[first + 2 * i], x[first + 2 * i + 1]
        cos, sin = math.cos(position * f), sign * math.sin(position * f)
        parts += [e * cos - o * sin, o * cos + e * sin]
    return torch.cat([x[:first], torch.stack(parts)])


def mix(X, w, p, c):
    """Of one token's streams X [n, d]: pre, post [n] and comb [n, n]."""
    n, z = c.streams, X.reshape(-1)
    m = (w[p + "mapping_proj.weight"] @ z) / torch.sqrt((z * z).mean() + c.eps)
    scale, base = w[p + "scale"], w[p + "bias"]
    pre = torch.sigmoid(m[:n] * scale[0] + base[:n]) + c.hc_eps
    post = 2 * torch.sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n])
    rows = m[2 * n :] * scale[2] + base[2 * n :]
    C = torch.stack([torch.softmax(rows[i * n : (i + 1) * n], 0) for i in range(n)]) + c.hc_eps

    def columns(C):
        return torch.stack([C[:, j] / (C[:, j].sum() + c.hc_eps) for j in range(n)], 1)

    C = columns(C)
    for _ in range(c.iterations - 1):
        C = torch.stack([C[i] / (C[i].sum() + c.hc_eps) for i in range(n)])
        C = columns(C)
    return pre, post, C


def weighed(X, pre):
    return sum(pre[i] * X[i] for i in range(len(X)))


def expanded(y, X, post, C):
    n = len(X)
    return torch.stack([post[j] * y + sum(C[i, j] * X[i] for i in range(n)) for j in range(n)])


def compress(xs, w, p, c, ratio, overlap):
    """Entries of a document's hidden states xs (a list)."""
    K, Z = [w[p + "linear_wkv.weight"] @ x for x in xs], [w[p + "linear_wgate.weight"] @ x for x in xs]
    Z = [z + w[p + "ape"][s % ratio] for s, z in enumerate(Z)]
    width, found = len(w[p + "norm.weight"]), []
    for v in range(len(xs) // ratio):
        own = range(v * ratio, (v + 1) * ratio)
        slots = [(K[s][-width:], Z[s][-width:]) for s in own]
        if overlap and v:
            slots += [(K[s - ratio][:width], Z[s - ratio][:width]) for s in own]
        total = sum(torch.exp(z) for _, z in slots)
        entry = sum(k * torch.exp(z) for k, z in slots) / total
        found.append(rope(rms(entry, c.eps, w[p + "norm.weight"]), v * ratio, c, True))
    return found


def index_scores(x, low, s, keys, w, p, c):
    """Of the entries that the query at s may see."""
    q = (w[p + "linear_wq_b.weight"] @ low).reshape(c.index_heads, c.index_width)
    q = [rope(row, s, c, True) for row in q]
    a = (w[p + "linear_weights_proj.weight"] @ x) / math.sqrt(c.index_heads) / math.sqrt(c.index_width)
    each = [sum(a[h] * torch.relu(q[h] @ keys[v]) for h in range(c.index_heads)) for v in range((s + 1) // c.csa)]
    return each


def attend(xs, w, p, c, kind, index=False, dense=False, given=None):
    """Outputs, compressed entries, each query's chosen entries and each one's indexer loss."""
    ratio, D = {"sliding": 0, "csa": c.csa, "hca": c.hca}[kind], c.head_dim
    low = [rms(w[p + "linear_q_down_proj.weight"] @ x, c.eps, w[p + "q_layernorm.weight"]) for x in xs]
    kv = [rms(w[p + "linear_kv_proj.weight"] @ x, c.eps, w[p + "kv_layernorm.weight"]) for x in xs]
    kv = [rope(k, s, c, ratio > 0) for s, k in enumerate(kv)]
    entries = [] if not ratio else given or compress(xs, w, p + "core_attention.compressor.", c, ratio, kind == "csa")
    i = p + "core_attention.indexer."
    keys = compress([x.detach() for x in xs], w, i + "compressor.", c, ratio, True) if kind == "csa" else []
    outputs, chosen, losses = [], [], []
    for s, x in enumerate(xs):
        seen = list(range((s + 1) // ratio)) if ratio else []
        scores = index_scores(x.detach(), low[s].detach(), s, keys, w, i, c) if kind == "csa" else []
        if kind == "csa" and not dense:
            seen = sorted(seen, key=lambda v: -float(scores[v].detach()))[: c.index_topk]
        near = range(max(0, s - c.window + 1), s + 1)
        q = (w[p + "linear_q_up_proj.weight"] @ low[s]).reshape(c.heads, D)
        heads, mass = [], [0.0] * len(seen)
        for h in range(c.heads):
            head = rope(rms(q[h], c.eps), s, c, ratio > 0)
            held = [kv[t] for t in near] + [entries[v] for v in seen]
            e = [torch.exp(head @ k / math.sqrt(D)) for k in held]
            total = sum(e) + torch.exp(w[p + "core_attention.attn_sink"][h])
            mixed = sum(weight / total * k for weight, k in zip(e, held, strict=True))
            heads.append(rope(mixed, s, c, ratio > 0, -1))
            mass = [m + float((weight / total).detach()) for m, weight in zip(mass, e[len(near) :], strict=True)]
        per = c.heads // c.o_groups
        Wa = w[p + "linear_o_group_proj.weight"].reshape(c.o_groups, c.o_lora_rank, per * D)
        down = [Wa[g] @ torch.cat(heads[g * per : (g + 1) * per]) for g in range(c.o_groups)]
        outputs.append(w[p + "linear_proj.weight"] @ torch.cat(down))
        chosen.append(seen)
        if kind == "csa" and index:
            losses.append(divergence(mass, [scores[v] for v in seen]))
    return outputs, entries, chosen, losses


def divergence(mass, scores):
    """KL of the teacher, ``mass`` over its sum, from the scores' softmax."""
    if not scores:
        return torch.zeros((), dtype=torch.float64)
    total, log_z = sum(mass), torch.logsumexp(torch.stack(scores), 0)
    return sum(m / total * (math.log(m / total) - (y - log_z)) for m, y in zip(mass, scores, strict=True))


def feed(x, gate_up, down, c, weight=1.0):
    gate, up = (gate_up @ x).chunk(2)
    h = [torch.minimum(g, torch.tensor(c.limit, dtype=g.dtype)) for g in gate]
    h = [g / (1 + torch.exp(-g)) * u.clamp(-c.limit, c.limit) for g, u in zip(h, up, strict=True)]
    return down @ (weight * torch.stack(h))


def moe(x, token, w, p, c, table):
    """One token's output and its experts."""
    s = [torch.sqrt(torch.log1p(torch.exp(g @ x))) for g in w[p + "router.weight"]]
    if table is not None:
        chosen = table[token].tolist()
    else:
        bias = w[p + "router.expert_bias"]
        chosen = sorted(range(c.experts), key=lambda e: -float((s[e] + bias[e]).detach()))[: c.topk]
    total = sum(s[e] for e in chosen)
    y = feed(x, w[p + "shared_experts.linear_fc1.weight"], w[p + "shared_experts.linear_fc2.weight"], c)
    for e in chosen:
        first, second = w[p + "experts.linear_fc1"][e], w[p + "experts.linear_fc2"][e]
        y = y + feed(x, first, second, c, s[e] / total * c.scaling)
    return y, chosen


def layer(Xs, tokens, w, p, c, kind, **asked):
    mixed = [mix(X, w, p + "attn_hc.", c) for X in Xs]
    xs = [rms(weighed(X, m[0]), c.eps, w[p + "attn_norm.weight"]) for X, m in zip(Xs, mixed, strict=True)]
    ys, _, chosen, losses = attend(xs, w, p + "attention.", c, kind, **asked)
    Xs = [expanded(y, X, m[1], m[2]) for y, X, m in zip(ys, Xs, mixed, strict=True)]
    left, routed = [], []
    for X, token in zip(Xs, tokens, strict=True):
        m = mix(X, w, p + "ffn_hc.", c)
        x = rms(weighed(X, m[0]), c.eps, w[p + "ffn_norm.weight"])
        y, experts = moe(x, token, w, p + "moe.", c, w.get(p + "moe.router.tid2eid"))
        left.append(expanded(y, X, m[1], m[2]))
        routed.append(experts)
    return left, chosen, losses, routed


def collapsed(X, w, p, c):
    z = X.reshape(-1)
    m = (w[p + "mapping_proj.weight"] @ z) / torch.sqrt((z * z).mean() + c.eps)
    return weighed(X, torch.sigmoid(m * w[p + "scale"] + w[p + "bias"]) + c.hc_eps)


def document(tokens, w, c, mtp=True, **asked):
    """One document's tokens (a list) -> a dict: logits and mtp [S, V], and for each layer chosen, routed, losses."""
    Xs = [torch.stack([w["embedding.weight"][t]] * c.streams) for t in tokens]
    said = {"chosen": [], "routed": [], "index": []}
    for i, kind in enumerate(c.kinds):
        Xs, chosen, losses, routed = layer(Xs, tokens, w, f"layers.{i}.", c, kind, **asked)
        said["chosen"].append(chosen)
        said["routed"].append(routed)
        said["index"].append(losses)
    V = w["output.weight"]
    said["logits"] = torch.stack([V @ rms(collapsed(X, w, "head.", c), c.eps, w["norm.weight"]) for X in Xs])
    if mtp:
        entered = []
        for s, X in enumerate(Xs):
            after = w["embedding.weight"][tokens[s + 1]] if s + 1 < len(tokens) else 0 * X[0]
            e = w["mtp.e_proj.weight"] @ rms(after, c.eps, w["mtp.enorm.weight"])
            h = [w["mtp.h_proj.weight"] @ rms(stream, c.eps, w["mtp.hnorm.weight"]) for stream in X]
            entered.append(torch.stack([e + one for one in h]))
        left, _, _, routed = layer(entered, tokens, w, "mtp_layer.", c, "sliding")
        said["routed"].append(routed)
        hidden = [rms(collapsed(X, w, "mtp.hc_head.", c), c.eps, w["mtp.final_layernorm.weight"]) for X in left]
        said["mtp"] = torch.stack([V @ h for h in hidden])
    return said


def losses(documents, tokens, cu):
    """As ``v4_model.losses``, of each document's ``document``."""
    bounds = list(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True))
    found = {}
    for name, ahead, key in (("lm", 1, "logits"), ("mtp", 2, "mtp")):
        each = []
        for said, (start, end) in zip(documents, bounds, strict=True):
            for s in range(end - start - ahead):
                logits = said[key][s]
                each.append(torch.logsumexp(logits, 0) - logits[tokens[start + s + ahead]])
        found[name] = sum(each) / len(each)
    per = zip(*(said["index"] for said in documents), strict=True)
    found["index"] = sum(sum(sum(part) for part in parts) / len(tokens) for parts in per if any(parts))
    return found
