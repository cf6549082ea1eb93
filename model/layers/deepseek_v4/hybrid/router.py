"""DeepSeek-V4's routers in Megatron's mixture of experts, which asks a router for weights and a map of experts."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from model.layers.common import fp32
from model.layers.deepseek_v4.router import affinity, hash_table, normalised


class _Router(TopKRouter):
    """Megatron's router, whose products are in fp32, with DeepSeek-V4's scores and choice of experts.

    ``tokens`` [s, b] are the ids that the next forward pass is of.
    """

    tokens: Tensor | None = None

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """logits [s, b, E] -> weights [s b, E], 0 for an expert that is not chosen, and whether each is, bool."""
        rows, columns = logits.shape[:2]
        scores = affinity(logits.flatten(0, 1))
        chosen = self._chosen(scores)
        weights = normalised(scores, chosen, self.config.moe_router_topk_scaling_factor)
        probs = torch.zeros_like(scores).scatter(1, chosen, weights)
        found = torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
        probs = self._balanced(probs, scores, rows, columns)
        self._apply_expert_bias(found)
        return probs, found

    def _chosen(self, scores: Tensor) -> Tensor:
        """scores [s b, E] -> the experts of each token [s b, k] int64."""
        raise NotImplementedError

    def _balanced(self, probs: Tensor, scores: Tensor, rows: int, columns: int) -> Tensor:
        return probs


class LearnedRouter(_Router):
    """The best scores plus ``expert_bias``, which takes part in the choice alone, with a loss for each sequence's
    balance over the scores without it (arXiv 2412.19437, equations 17 to 20)."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        fp32.keep(self.expert_bias)

    def _chosen(self, scores: Tensor) -> Tensor:
        return (scores + self.expert_bias).topk(self.topk, dim=-1).indices

    def _balanced(self, probs: Tensor, scores: Tensor, rows: int, columns: int) -> Tensor:
        """probs, from whose gradient on the loss is part of the backward pass."""
        if not (self.training and torch.is_grad_enabled() and self.is_aux_loss_enabled()):
            return probs
        best = scores.topk(self.topk, dim=-1).indices
        found = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
        attached: Tensor = self._apply_seq_aux_loss(probs, scores / scores.sum(-1, keepdim=True), found, rows, columns)
        return attached


class HashRouter(_Router):
    """The experts of a table by token ids, ``tid2eid`` [vocab, k] int32, which a checkpoint keeps. It has no loss for
    balance, which no gradient could change, and no bias: Megatron counts tokens only beside one, so that a frozen one
    of zeros is there, which a checkpoint does not keep."""

    def __init__(self, *given: Any, layer: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self.register_buffer("expert_bias", self.expert_bias, persistent=False)
        self.frozen_expert_bias = True
        size = self.config.model_size
        table = hash_table(size.vocab, size.experts.count, size.experts.topk, layer)
        self.register_buffer("tid2eid", table.to(self.weight.device))

    def _chosen(self, scores: Tensor) -> Tensor:
        """Raises ValueError unless there is a token for each row of scores."""
        if self.tokens is None or self.tokens.numel() != len(scores):
            given = None if self.tokens is None else list(self.tokens.shape)
            raise ValueError(f"a hash router needs the ids of {len(scores)} tokens, not {given}")
        return self.tid2eid[self.tokens.flatten()].long()
