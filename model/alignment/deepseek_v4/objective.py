"""The losses that DeepSeek-V4 is trained on, from the formulas, of documents that ``formulas.document`` gave."""

from __future__ import annotations

import torch
from torch import Tensor

from model.alignment.deepseek_v4.dims import Config
from model.alignment.deepseek_v4.formulas import Said


def cross_entropy(documents: list[Said], tokens: list[list[int]], key: str, ahead: int) -> Tensor:
    """The mean over the tokens that have one ``ahead``."""
    each = [
        torch.logsumexp(said[key][s], 0) - said[key][s][own[s + ahead]]
        for said, own in zip(documents, tokens, strict=True)
        for s in range(len(own) - ahead)
    ]
    return torch.stack(each).mean()


def balance(scores: Tensor, topk: int) -> Tensor:
    """The loss of a learned router over a row's affinities [T, E]: E times the sum over experts of their share of the
    choices without a bias and their mean share of a token's affinities (arXiv 2412.19437, equations 17 to 20)."""
    T, E = scores.shape
    counts = [0] * E
    for row in scores.tolist():
        for e in sorted(range(E), key=lambda e: -row[e])[:topk]:
            counts[e] += 1
    means = (scores / scores.sum(1, keepdim=True)).mean(0)
    return E * torch.stack([counts[e] / (topk * T) * means[e] for e in range(E)]).sum()


def losses(documents: list[Said], tokens: list[list[int]], c: Config) -> dict[str, Tensor]:
    """Of a row of documents, which ``document`` gave for lists of tokens: the language model's, MTP's, the indexers',
    which is each one's mean over the tokens that see an entry, summed, and the routers' for balance, summed."""
    seeing = sum(max(len(own) - c.csa + 1, 0) for own in tokens)
    index = [one for said in documents for per in said["index"] for one in per]
    rows = [torch.cat(per) for per in zip(*(said["scores"] for said in documents), strict=True) if per[0] is not None]
    return {
        "lm": cross_entropy(documents, tokens, "logits", 1),
        "mtp": cross_entropy(documents, tokens, "mtp", 2),
        "index": torch.stack(index).sum() / max(seeing, 1) if index else torch.zeros((), dtype=torch.float64),
        "aux": torch.stack([balance(row, c.topk) for row in rows]).sum(),
    }
