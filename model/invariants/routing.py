"""Of the routers: what they count, how their biases follow it, and the loss that balances them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.invariants.invariant import Invariant, Step
from model.invariants.view import View

CLOSE = 1e-3  # of an update rate: a bias is a sum of as many fp32 numbers as there were steps


class Counts(Invariant):
    """Each router's counts over all experts and data-parallel ranks sum up to the step's tokens, each ``topk`` times
    (pack 38)."""

    name = "counts"
    remedy = "train with --patches all: pack 38 keeps the counts fp32, where bf16 rounds them beyond 256"

    def unable(self, view: View) -> str:
        return "" if view.routers else "this stage has no experts"

    def after(self, view: View, step: Step | None) -> dict[str, tuple[float, int]]:
        """{router: (counted, expected)} of this stage."""
        assert step is not None
        tokens = sum(len(batch.tokens) for batch in step.batches) * view.data_ranks
        counted = view.engine.routed.double().sum(1).tolist()
        wanted = [tokens * router.topk for router in view.routers.values()]
        return dict(zip(view.routers, zip(counted, wanted, strict=True), strict=True))

    def broken(self, ranks: Sequence[dict[str, tuple[float, int]]]) -> str:
        for rank, routers in enumerate(ranks):
            for name, (counted, wanted) in routers.items():
                if counted != wanted:
                    return f"{name} on rank {rank} counts {counted:.0f} of the {wanted} tokens that it sends to experts"
        return ""


class Biases(Invariant):
    """Each router's selection bias is finite, and goes by its rate towards experts that got less than the mean."""

    name = "biases"
    remedy = "train with --patches all: packs 16 and 38 keep biases and counts fp32"

    def unable(self, view: View) -> str:
        return "" if view.routers else "this stage has no experts"

    def before(self, view: View) -> None:
        self._biases = {name: router.expert_bias.clone() for name, router in view.routers.items()}

    def after(self, view: View, step: Step | None) -> dict[str, tuple[int, int]]:
        """{router: (an expert whose bias is not what it has to be, how many)} of this stage, where there is one."""
        rate, found = view.engine.config.moe_router_bias_update_rate, {}
        for (name, router), counts in zip(view.routers.items(), view.engine.routed, strict=True):
            step_of = 0.0 if getattr(router, "frozen_expert_bias", False) else rate
            wrong = self._wrong(router.expert_bias, self._biases[name], counts, step_of)
            if experts := wrong.nonzero().flatten().tolist():
                found[name] = experts[0], len(experts)
        return found

    def _wrong(self, bias: Tensor, before: Tensor, counts: Tensor, rate: float) -> Tensor:
        """bias, before, counts [experts] -> bool [experts]."""
        wanted = before + rate * torch.sign(counts.mean() - counts)
        return ~((bias - wanted).abs() <= CLOSE * rate + torch.finfo(torch.float32).eps * before.abs())

    def broken(self, ranks: Sequence[dict[str, tuple[int, int]]]) -> str:
        for rank, routers in enumerate(ranks):
            for name, (expert, count) in routers.items():
                return f"{name}, expert {expert} and {count - 1} more on rank {rank}: the bias moved otherwise"
        return ""
