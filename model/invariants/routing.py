"""Of the routers: what they count, how their biases follow it, and the loss that balances them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor, nn

from model.invariants.invariant import Invariant, Step
from model.invariants.view import View
from model.layers.captured import graphs
from model.layers.common.packed import packed
from model.step import losses

TOKENS, CUT = 64, 33  # that a router is tried with, and where the second of their two documents begins
BALANCED = 1e-4  # of the routers' loss: sums of fp32 in another order
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


class Balance(Invariant):
    """The loss that balances a router's experts is that of each document by itself, their mean (pack 39).

    The stage's first layer with a router of Megatron's takes random numbers, as a row of two documents and as each.
    """

    name, computes = "balance", True
    remedy = "train with --patches all: pack 39 takes a packed row's documents one by one"

    def unable(self, view: View) -> str:
        if not view.routers:
            return "this stage has no experts"
        return "" if self._layer(view) is not None else "its own routers take a micro-batch for one sequence"

    def _layer(self, view: View) -> nn.Module | None:
        for layer in view.engine.inner.decoder.layers:
            router = getattr(getattr(layer, "mlp", None), "router", None)
            if router is not None and type(router) is TopKRouter:
                return layer
        return None

    def after(self, view: View, step: Step | None) -> tuple[float, float] | None:
        """(loss of the row, mean of its documents'); None on a stage without such a layer."""
        layer, config = self._layer(view), view.engine.config
        if layer is None:
            return None
        numbers = torch.randn(TOKENS, 1, config.hidden_size, generator=torch.Generator().manual_seed(0))
        hidden = numbers.to(torch.cuda.current_device(), config.params_dtype)
        row, *each = (
            self._loss(layer, hidden[begin:end], [bound - begin for bound in (begin, *cuts, end)])
            for begin, *cuts, end in ((0, CUT, TOKENS), (0, CUT), (CUT, TOKENS))
        )
        return row, sum(each) / len(each)

    def _loss(self, layer: nn.Module, hidden: Tensor, bounds: list[int]) -> float:
        """hidden [T, 1, h] -> the loss that its router adds; counts of tokens stay."""
        counts = layer.mlp.router.local_tokens_per_expert
        before = counts.clone()
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32, device=hidden.device)
        with graphs.paused(), torch.enable_grad():  # without gradients a router has no loss
            layer(hidden, attention_mask=None, packed_seq_params=packed(cu_seqlens, TOKENS + 1))
        counts.copy_(before)
        found = float(losses.balance())
        losses.clear()
        return found

    def broken(self, ranks: Sequence[tuple[float, float] | None]) -> str:
        for rank, found in enumerate(ranks):
            if found is not None and not abs(found[0] - found[1]) <= BALANCED * abs(found[1]):
                return f"a router's loss of a row on rank {rank} is {found[0]:.6g}, its documents' mean {found[1]:.6g}"
        return ""
