# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis"]
# ///
"""The sequence-level auxiliary loss of packed sequences takes some thirty small operators more than its kernels would.

the loss that pack 39 brings: no release takes packed sequences one by one. CPU lane: operators, and kernels by
Triton's interpreter. CUDA lane: kernels, and times.
interpreter. CUDA lane: kernels, and times.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal():
    """Autograd's graph of a router of four experts; the loss of two packed sequences is but a part of it."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils, router

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "num_moe_experts": 4}
    loss = {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 1.0}
    config = TransformerConfig(**sizes, **loss, moe_router_dtype="fp32")
    layer = router.TopKRouter(config, moe_utils.get_default_pg_collection()).cuda()
    x, bounds, layer.layer_number = torch.randn(6, 1, 8).cuda(), torch.tensor([0, 3, 6]).cuda(), 1
    nodes = [layer(x, None, bounds)[0].grad_fn]
    for node in nodes:
        nodes += [one for one, _ in node.next_functions if one and one not in nodes]
    assert not any("IndexAdd" in node.name() for node in nodes), [node.name() for node in nodes]


COEFFICIENT = 2.0**-4
HIDDEN = 8
FP32 = 1e-5  # sums of some hundred fp32 products
LONG = 1e-4  # gradients of a few tokens are differences, and so are sums of thousands of scores
ROUTER = "megatron.core.transformer.moe.router"
LOSS = "seq_load_balancing_loss"


@cache
def upstream(p: probe.Probe, name: str) -> Any:
    """Modules are checked when they are imported, not in each of many calls."""
    return p.upstream(name)


@dataclass(frozen=True)
class Options:
    """What a router is made with."""

    experts: int = 8
    topk: int = 2
    score: str = "softmax"
    kind: str = "seq_aux_loss"
    per_token: bool = False
    tensor_parallel: int = 1  # and sequence parallelism where that is more


class Router:
    """A TopKRouter; ``run`` gives the loss as it is logged, and the gradient of its weight by the loss alone."""

    def __init__(self, p: probe.Probe, options: Options) -> None:
        self.p, self.options = p, options
        config = upstream(p, "megatron.core.transformer").TransformerConfig(
            num_layers=1,
            hidden_size=HIDDEN,
            num_attention_heads=2,
            add_bias_linear=False,
            num_moe_experts=options.experts,
            moe_router_topk=options.topk,
            moe_router_score_function=options.score,
            moe_router_pre_softmax=options.topk == 1,
            moe_router_dtype="fp32",
            moe_router_load_balancing_type=options.kind,
            moe_aux_loss_coeff=COEFFICIENT if options.kind != "none" else 0.0,
            calculate_per_token_loss=options.per_token,
            tensor_model_parallel_size=options.tensor_parallel,
            sequence_parallel=options.tensor_parallel > 1,
        )
        groups = upstream(p, "megatron.core.transformer.moe.moe_utils").get_default_pg_collection()
        self.router = upstream(p, ROUTER).TopKRouter(config, groups).to(torch.cuda.current_device())
        self.router.set_layer_number(1)
        generator = torch.Generator().manual_seed(p.seed)
        with torch.no_grad():
            self.router.weight.copy_(2 * torch.randn(self.router.weight.shape, generator=generator))
        self.tracker = upstream(p, "megatron.core.transformer.moe.moe_logging").get_moe_metrics_tracker()

    def forward(self, hidden: Tensor, mask: Tensor | None, *bounds: Tensor) -> Tensor:
        """Probabilities, to which the loss is attached."""
        probabilities: Tensor = self.router(hidden, mask, *bounds)[0]
        return probabilities

    def step(self, hidden: Tensor, mask: Tensor | None = None, *bounds: Tensor) -> None:
        (self.forward(hidden, mask, *bounds) * 0).sum().backward()

    def run(self, hidden: Tensor, mask: Tensor | None, *bounds: Tensor) -> tuple[float, Tensor]:
        self.tracker.metrics.clear()
        self.router.weight.grad = None
        self.step(hidden, mask, *bounds)
        return self.logged(), self.router.weight.grad.double().cpu()

    def logged(self) -> float:
        return float(self.tracker.metrics[LOSS].values.sum())


def tokens(p: probe.Probe, count: int, seed: int = 0) -> Tensor:
    """Hidden states [count, 1, HIDDEN] that wander, so that neighbours choose alike and sequences do not."""
    generator = torch.Generator().manual_seed(p.seed + seed)
    steps = torch.randn(count, 1, HIDDEN, generator=generator)
    return (steps.cumsum(0) / 2 + steps / 2).sin().to(torch.cuda.current_device())


def cumulative(lengths: list[int] | tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
    bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)
    return bounds.to(torch.cuda.current_device())


def spans(lengths: list[int] | tuple[int, ...], mask: Tensor | None = None) -> list[list[int]]:
    """The places of each sequence's tokens that are not masked."""
    masked = set() if mask is None else set(mask.flatten().nonzero().flatten().tolist())
    ends = list(itertools.accumulate(lengths, initial=0))
    return [[i for i in range(a, b) if i not in masked] for a, b in itertools.pairwise(ends)]


def exact(router: Router, hidden: Tensor, groups: list[list[int]]) -> tuple[float, Tensor]:
    """The loss before its coefficient and the gradient of the weight: means over groups of tokens, in fp64."""
    options = router.options
    weight = router.router.weight.detach().double().cpu().requires_grad_()
    logits = hidden[:, 0].double().cpu() @ weight.T
    scores = logits.softmax(-1)
    if options.score != "softmax":
        raw = logits.sigmoid() if options.score == "sigmoid" else torch.nn.functional.softplus(logits).sqrt()
        scores = raw / raw.sum(-1, keepdim=True)
    losses = []
    for places in filter(None, groups):
        mine = scores[places]
        chosen = mine.detach().topk(options.topk, -1).indices.flatten()
        share = torch.bincount(chosen, minlength=options.experts).double() / chosen.numel()
        losses.append(options.experts * (share * mine.mean(0)).sum())
    loss = torch.stack(losses).mean() if losses else 0 * scores.sum()
    (gradient,) = torch.autograd.grad(loss, weight)
    scale = COEFFICIENT * (sum(map(len, groups)) if options.per_token else 1)  # divided by all tokens later
    return loss.item(), gradient * scale


def distance(found: Tensor, true: Tensor, least: float = 2.0**-6) -> float:
    """Relative to what should be, or to ``least`` of the coefficient: where all experts are chosen it is zero."""
    off = float((found.cpu().double() - true).norm() / true.norm().clamp(min=least * COEFFICIENT))
    return math.inf if math.isnan(off) else off


def error(router: Router, hidden: Tensor, lengths: Any, mask: Tensor | None = None, bounds: Any = None) -> float:
    """The larger relative error of the logged loss and of its gradient; infinite where a tensor given is changed."""
    bounds = cumulative(lengths) if bounds is None else bounds
    given = [t for t in (hidden, mask, bounds) if t is not None]
    before = [t.clone() for t in given]
    logged, gradient = router.run(hidden, mask, bounds)
    loss, true = exact(router, hidden, spans(lengths, mask))
    off = max(abs(logged - loss) / (loss or 1), distance(gradient, true))
    return off if all(map(torch.equal, given, before)) else math.inf


class Launched:
    """Counts kernels that Triton's interpreter runs; how it moves their arguments is not shown to what counts."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        from torch.utils._python_dispatch import _disable_current_modes
        from triton.runtime.interpreter import GridExecutor

        run = GridExecutor.__call__

        def launch(executor: Any, *args: Any, **named: Any) -> Any:
            self.count += 1
            with _disable_current_modes():
                return run(executor, *args, **named)

        with mock.patch.object(GridExecutor, "__call__", launch):
            yield


def work(p: probe.Probe, call: Callable[[], Any]) -> int:
    """Operators and kernels of a call; on a GPU kernels alone."""
    call()
    if p.lane == "cuda":
        p.launches(call)
        return p.launches(call)[0]
    launched = Launched()
    with launched.counting():
        operators = p.operators(call)
    return operators.count + launched.count


def check_work(p: probe.Probe) -> None:
    """Beyond the work of a router that takes the same tokens for one sequence, forward and backward."""
    lengths = [900, 100, 0, 24] if p.lane == "cuda" else [9, 4, 0, 20]
    hidden, counted = tokens(p, sum(lengths) + 3), "kernels" if p.lane == "cuda" else "operators"
    mask = torch.zeros(1, len(hidden), dtype=torch.bool, device=hidden.device)
    mask[0, 2:5] = True
    worst = 0.0
    for name, options, given in (
        ("softmax", Options(), None),
        ("sigmoid, by tokens", Options(score="sigmoid", per_token=True), None),
        ("padding", Options(), mask),
    ):
        router = Router(p, options)
        packed = work(p, partial(router.step, hidden, given, cumulative(lengths)))
        whole = work(p, partial(router.step, hidden, given))
        p.note(f"{name}: {counted} of a router with the loss of packed sequences", packed)
        # both take scores and choices, log the loss and attach it; that of one sequence takes some twelve operators
        p.error(
            f"{name}: {counted} beyond those for one sequence",
            packed - whole,
            4,
            reference="two kernels forward and one backward",
            bug_above=8,
        )
        worst = max(worst, error(router, hidden, lengths, given))
    p.guard("where they are counted: loss and gradient", worst, FP32, reference="mean over sequences in fp64")


def check_numbers(p: probe.Probe) -> None:
    """Sequences of several kinds; drawn ones, each with a second batch by the same router."""
    reference = "mean over sequences in fp64"
    for name, lengths, beyond, options in (
        ("empty sequences", (0, 5, 0, 0, 11, 6, 0), 0, Options()),
        ("tokens after the last sequence", (7, 9), 13, Options(experts=5, topk=3)),
        ("no token in any sequence", (0, 0), 9, Options()),
        ("many sequences", (1, 0, 2) * 400, 3, Options(experts=16, topk=1)),
        ("experts in several blocks", (30, 4), 0, Options(experts=40, topk=5)),
        ("long sequences", (3000, 5, 1200), 0, Options(experts=3, topk=2, score="sigmoid", per_token=True)),
    ):
        off = error(Router(p, options), tokens(p, sum(lengths) + beyond, 3), lengths)
        p.guard(f"{name}: loss and gradient", off, LONG, reference=reference)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    off = error(Router(p, Options()), tokens(p, 300).float(), [256, 44])
    torch.set_default_dtype(usual)
    # the loss is logged in the default dtype, and rounded by 2^-8 at most
    p.guard("default dtype bf16: loss and gradient", off, 2.0**-7, reference=reference)

    def measure(
        lengths: list[int],
        beyond: int,
        masked: list[int],
        experts: int,
        topk: int,
        score: str,
        long: bool,
        **more: bool,
    ) -> float:
        router = Router(p, Options(experts, min(topk, experts), score, per_token=more["per_token"]))
        dtype, worst, held = torch.int64 if long else torch.int32, 0.0, None
        for batch in (lengths, lengths[::-1]):
            count = sum(batch) + beyond
            mask = torch.zeros(1, count, dtype=torch.bool, device=torch.cuda.current_device())
            mask[0, [place for place in masked if place < count]] = True
            bounds = cumulative(batch, dtype)
            if more["refilled"]:  # the second batch's bounds are in the tensor of the first's
                held = bounds if held is None else held.copy_(bounds)
                bounds = held
            if more["strided"]:
                bounds = torch.stack((bounds, bounds + 1), 1)[:, 0]
            given = mask if masked else None
            worst = max(worst, error(router, tokens(p, count, len(batch)), batch, given, bounds))
        return worst

    space = {
        "lengths": st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any),
        "beyond": st.integers(0, 5),
        "masked": st.lists(st.integers(0, 60), max_size=6),
        "experts": st.integers(2, 9),
        "topk": st.integers(1, 4),
        "score": st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"]),
        **dict.fromkeys(("long", "per_token", "refilled", "strided"), st.booleans()),
    }
    p.drawn("drawn: loss and gradient", measure, LONG, space=space, count=40, reference=reference)


def called(p: probe.Probe, router: Router, scores: Tensor, chosen: Tensor, bounds: Tensor) -> tuple[float, Tensor]:
    """The loss that is logged and the scores' gradient, by the method that takes packed sequences."""
    router.tracker.metrics.clear()
    leaf = scores.detach().requires_grad_()
    probabilities = torch.zeros(len(scores), 1, device=scores.device, requires_grad=True)
    out = router.router._apply_packed_seq_aux_loss(probabilities, leaf, chosen, COEFFICIENT, bounds)
    (out * 0).sum().backward()
    return router.logged(), leaf.grad if leaf.grad is not None else torch.full_like(leaf, math.inf)


def check_inputs(p: probe.Probe) -> None:
    """Scores and choices of other kinds: what kernels are not for, or what they might read wrongly."""
    lengths, device = (6, 0, 11, 3), torch.cuda.current_device()
    generator = torch.Generator().manual_seed(p.seed)
    router, ends = Router(p, Options()), list(itertools.accumulate(lengths, initial=0))
    scores = torch.randn(22, 8, generator=generator).softmax(-1).to(device)
    chosen = torch.rand(22, 8, generator=generator).to(device) < 0.3
    for name, limit, given, choices, bounds in (
        ("as they are", FP32, scores, chosen, cumulative(lengths)),
        ("other order in memory", FP32, scores.T.contiguous().T, chosen.T.contiguous().T, cumulative(lengths)),
        ("part of larger tensors", FP32, scores.repeat(1, 2)[:, :8], chosen.repeat(1, 2)[:, :8], cumulative(lengths)),
        ("fp64 scores", FP32, scores.double(), chosen, cumulative(lengths)),
        ("bf16 scores", 2.0**-5, scores.bfloat16(), chosen, cumulative(lengths)),
        ("choices as integers", FP32, scores, chosen.int(), cumulative(lengths)),
        (
            "bounds that begin later",
            FP32,
            scores,
            chosen,
            cumulative(lengths) + torch.tensor([2, 0, 0, 0, 0]).to(device),
        ),
        ("bounds beyond the tokens", FP32, scores, chosen, torch.tensor([0, 6, 6, 17, 40]).to(device)),
    ):
        leaf, counts = given.detach().double().cpu().requires_grad_(), choices.double().cpu()
        own = [0, 6, 6, 17, 22] if "beyond" in name else ends
        losses = []
        for a, b in itertools.pairwise(own):
            if (count := counts[a:b].sum(0)).sum() > 0:
                losses.append((leaf[a:b].sum(0) * count).sum() / max(float(count.sum()) / 2, 1.0) ** 2)
        loss = torch.stack(losses).mean() * 8 * COEFFICIENT / 2
        (true,) = torch.autograd.grad(loss, leaf)
        logged, gradient = called(p, router, given, choices, bounds)
        off = max(abs(logged * COEFFICIENT - loss.item()) / loss.item(), distance(gradient, true))
        p.guard(f"{name}: loss and gradient of scores", off, limit, reference="fp64, sequence by sequence")


def check_neighbours(p: probe.Probe) -> None:
    """Calls that overlap, a backward twice, no gradients, host waits, random numbers; other losses to the bit."""
    lengths = [9, 4, 20]
    hidden, others = tokens(p, 33, 1), tokens(p, 33, 2)
    router, bounds = Router(p, Options()), cumulative(lengths)
    once = [router.run(one, None, bounds)[1] for one in (hidden, others)]
    router.router.weight.grad = None
    first, second = (router.forward(one, None, bounds) for one in (hidden, others))
    (second * 0).sum().backward()
    later = router.router.weight.grad.double().cpu()
    (first * 0).sum().backward(retain_graph=True)
    (first * 0).sum().backward()
    off = max(distance(later, once[1]), distance(router.router.weight.grad, once[1] + 2 * once[0]))
    p.guard("two forwards before a backward, and a backward twice", off, FP32, reference="one after the other")
    state, names = torch.get_rng_state(), set(vars(router.router))
    for name, mode in {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.items():
        router.tracker.metrics.clear()
        with mode():
            same = torch.equal(router.forward(hidden, None, bounds), first.detach())
        p.guard(f"{name}: other probabilities", not same, 0, reference="the same")
        p.guard(f"{name}: losses that are logged", len(router.tracker.metrics), 0, reference="none")
    grown = len(set(vars(router.router)) - names) + (not torch.equal(state, torch.get_rng_state()))
    p.guard("new attributes, random numbers taken", grown, 0, reference="none")
    p.guard("host waits", p.waits(partial(router.step, hidden, None, bounds)).total(), 0, reference="none")
    kept: list[Tensor] = []
    for kind in ("seq_aux_loss", "aux_loss", "global_aux_loss"):
        other = Router(p, Options(kind=kind))
        other.router.weight.grad = None
        other.step(hidden, None)
        kept += [other.router.weight.grad, other.forward(hidden, None).detach()]
    p.digest("one sequence, losses of the batch: gradients and probabilities", *kept)


def check_ranks(p: probe.Probe) -> None:
    """Two ranks with a half of the stream each, under sequence parallelism."""
    lengths = [8, 24, 16, 32]

    def work(rank: int) -> None:
        p.megatron_cpu(tensor_model_parallel_size=2)
        hidden = tokens(p, sum(lengths), 8)
        router = Router(p, Options(tensor_parallel=2))
        _, gradient = router.run(hidden.chunk(2)[rank], None, cumulative(lengths))
        torch.distributed.all_reduce(gradient)
        _, true = exact(router, hidden, spans(lengths))
        p.guard(f"rank {rank} of 2: gradient", distance(gradient, true), FP32, reference="fp64, all tokens")

    p.ranks(2, work)


def note_times(p: probe.Probe) -> None:
    """A router's step on 12,288 tokens, packed and as one sequence."""
    for experts, topk, lengths in ((16, 4, (4096,) * 3), (64, 6, (512,) * 24), (64, 6, (17,) * 720)):
        router = Router(p, Options(experts=experts, topk=topk))
        hidden, bounds = tokens(p, 12288), cumulative(lengths)
        name = f"{len(lengths)} sequences, {experts} experts"
        p.note(f"{name}: packed", p.milliseconds(partial(router.step, hidden, None, bounds), 50, 20), unit="ms")
        p.note(f"{name}: as one sequence", p.milliseconds(partial(router.step, hidden, None), 50, 20), unit="ms")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    if p.lane == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        p.triton_interpreter()
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling elementwise functions takes longer than they do
        p.triton_interpreter()
        upstream(p, ROUTER)
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_work(p)
    check_numbers(p)
    check_inputs(p)
    check_neighbours(p)
    if p.lane == "cuda":
        note_times(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=49, package="megatron", minimal=minimal, prepare=prepare)
