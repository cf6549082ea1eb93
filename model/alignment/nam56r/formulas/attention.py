"""MLA (arXiv 2405.04434) with keys and values of each head, dense, or over the keys that an indexer chooses (DSA)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model.alignment.nam56r.formulas.parts import EPS, Said, Weights, best, followed, rope
from model.families.nam56r import Size


def causal(S: int) -> Tensor:
    """[S, S] bool: the keys that each query of a document sees."""
    return torch.tensor([[t <= s for t in range(S)] for s in range(S)])


def mla(xs: Tensor, w: Weights, p: str, c: Size, chosen: Tensor | None = None) -> tuple[Said, Tensor]:
    """[S, h] -> ``low``, ``latent`` with the rotary key, ``core``, what the output projection takes, and ``mixed``
    [S, h]; and probabilities [n, S, S] over all keys. ``chosen`` [S, S] bool: the keys of each query."""
    a, n, S = c.attention, c.heads, len(xs)
    low, down = xs @ w[p + "linear_q_down_proj.weight"].T, xs @ w[p + "linear_kv_down_proj.weight"].T
    queries = (low @ w[p + "linear_q_up_proj.weight"].T).reshape(S, n, a.qk_nope_dim + a.qk_rope_dim)
    both = (down[:, : a.kv_lora_rank] @ w[p + "linear_kv_up_proj.weight"].T).reshape(S, n, a.qk_nope_dim + a.v_dim)
    keys, values = both[..., : a.qk_nope_dim], both[..., a.qk_nope_dim :]
    q = rope(queries[..., a.qk_nope_dim :], neighbours=True)
    k = rope(down[:, None, a.kv_lora_rank :], neighbours=True)[:, 0]
    scores = torch.einsum("snd,tnd->nst", queries[..., : a.qk_nope_dim], keys) + torch.einsum("snd,td->nst", q, k)
    scores = (scores / math.sqrt(a.qk_nope_dim + a.qk_rope_dim)).masked_fill(~causal(S), -math.inf)
    every = torch.softmax(scores, -1)
    shares = every if chosen is None else torch.softmax(scores.masked_fill(~chosen, -math.inf), -1)
    core = torch.einsum("nst,tnd->snd", shares, values).flatten(1)
    return {"low": low, "latent": down, "core": core, "mixed": core @ w[p + "linear_proj.weight"].T}, every


def indexed(xs: Tensor, w: Weights, p: str, c: Size) -> Said:
    """``scores`` [S, S], -inf where a query does not see a key, of queries ``q`` [S, j, d], keys ``k`` [S, d] and the
    heads' weights ``a`` [S, j]. What these are computed of gets no gradient."""
    i, xs, wide = p + "core_attention.indexer.", xs.detach(), c.attention.qk_rope_dim
    low = xs @ w[p + "linear_q_down_proj.weight"].detach().T
    q = (low @ w[i + "linear_wq_b.weight"].T).reshape(len(xs), c.indexer.heads, c.indexer.head_dim)
    k = xs @ w[i + "linear_wk.weight"].T
    k = (k - k.mean(1, keepdim=True)) / torch.sqrt(k.var(1, keepdim=True, correction=0) + EPS)
    k = (k * w[i + "k_norm.weight"] + w[i + "k_norm.bias"])[:, None]
    q, k = (torch.cat((rope(x[..., :wide], neighbours=False), x[..., wide:]), -1) for x in (q, k))
    a = xs @ w[i + "linear_weights_proj.weight"].T / math.sqrt(c.indexer.heads) / math.sqrt(c.indexer.head_dim)
    products = torch.relu(torch.einsum("sjd,td->jst", q, k[:, 0]))
    scores = torch.einsum("sj,jst->st", a, products).masked_fill(~causal(len(xs)), -math.inf)
    return {"q": q, "k": k[:, 0], "a": a, "scores": scores}


def divergence(teacher: Tensor, scores: Tensor) -> Tensor:
    """KL of the teacher, the heads' mean of probabilities [n, S, S], from the scores' softmax, of each token [S]."""
    mean, logs = teacher.detach().mean(0), torch.log_softmax(scores, -1)
    seen = mean > 0
    return torch.where(seen, mean * (mean.clamp(min=1e-300).log() - logs.masked_fill(~seen, 0)), 0).sum(1)


def dsa(xs: Tensor, w: Weights, p: str, c: Size, other: Tensor | None) -> Said:
    """``mla`` over keys that are ``chosen`` by the scores of ``indexed``; ``taken`` are those with what is followed of
    ``other`` ones; ``index`` [S]: what the indexer loses."""
    index = indexed(xs, w, p, c)
    scores = index["scores"]
    chosen = best(scores, c.indexer.topk)
    taken = followed(chosen, other, scores)
    said, every = mla(xs, w, p, c, taken)
    return said | index | {"chosen": chosen, "taken": taken, "index": divergence(every, scores)}
