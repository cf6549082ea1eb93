# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "einops", "hypothesis"]
# ///
"""DSA's indexer top-k and KL loss materialise [seq, batch, heads, seq] fp32 scores, several copies of them at a time.

Only the sums over heads [batch, seq, seq] are needed, and their rows are independent of each other. What is called here
is what DSAttention calls: ``fused_qk_topk_naive`` and ``FusedDSAIndexerLoss``. The cpu lane counts live bytes on meta.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reproducers import probe


def minimal():
    """The largest tensor that the indexer's KL loss makes is one of fp32 scores for every head; needs no GPU."""
    from types import SimpleNamespace

    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import FusedDSAIndexerLoss

    s, b, heads, d = 512, 1, 32, 32
    q, query, key = (torch.randn(s, b, heads, d, requires_grad=True) for _ in range(3))
    w, k = torch.randn(s, b, heads, requires_grad=True), torch.randn(s, b, d, requires_grad=True)
    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    with torch.profiler.profile(profile_memory=True) as profile:
        _, loss = FusedDSAIndexerLoss.apply(q, w, k, query, key, 0.2, 64, 1.0, None, False, groups)
        loss.backward()
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    print(f"largest tensor: {largest} bytes; scores [b, s, s], summed over heads: {4 * b * s * s}")
    assert largest < 4 * b * heads * s * s


GIB = 2.0**30
GRAD = 3.0  # gradient of the loss, as if scaled: not a power of two
FP32 = 1e-4  # of gradients, a tenth for the loss: fp32 sums of up to 4096 terms of either sign, products of 3 x tf32
BF16 = 4e-3  # gradients are rounded to bf16 before they are scaled and after: 2 x 2^-9 at most
FP16 = 1e-3  # rounded once, and what is under fp16's normal range is lost: 2^-11 and as much again
LIMITS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16}
VARIANT = "megatron.core.transformer.experimental_attention_variant."
DSA = VARIANT + "dsa"


@dataclass(frozen=True)
class Case:
    """One call of the indexer; ``mqa`` shares one key head."""

    sq: int = 80
    sk: int = 80
    b: int = 2
    heads: int = 3
    d: int = 16
    np: int = 3
    hn: int = 24
    topk: int = 8
    bounds: str = "packed"  # or another of BOUNDS
    sparse: bool = False
    relu: bool = True
    rows: int = 0  # query rows left out of the loss: none, the same in the batch, others in each sequence
    per_token: bool = False
    mqa: bool = True
    dtype: torch.dtype = torch.float32
    layout: str = ""  # or another of LAYOUTS
    frozen: int = 3  # that of q, w, k which needs no gradient; 3 is none
    coeff: float = 0.1  # of the loss
    grad: float = GRAD
    common: float = 0.0  # what all keys of the indexer share


# two documents; DSAttention's bounds; any [first, last) of keys in any order, or as they lie; none at all; an additive
# mask of 0 and -inf, in each sequence another or the same; and one with finite values
BOUNDS = ("packed", "causal", "windows", "spans", "none", "mask", "shared mask", "finite mask")
# contiguous; a query and key without a batch where that is 1; another order in memory, "reversed" without a stride of
# 1; parts of larger tensors that are NaN everywhere else
LAYOUTS = ("", "packed", "batch first", "reversed", "amid NaN")
NAM56R = Case(sq=4096, sk=4096, b=8, heads=32, d=64, np=32, hn=128, topk=256, bounds="causal", dtype=torch.bfloat16)
SMALL = {
    "packed": Case(),
    "packed, sparse, rows left out, per token": Case(sk=130, sparse=True, rows=2, per_token=True),
    "causal, rows left out, no ReLU": Case(bounds="causal", rows=1, relu=False, mqa=False),
    "default bounds, sparse": Case(bounds="none", sparse=True, topk=30),
    "additive mask": Case(bounds="mask", mqa=False),
    "additive mask, sparse, rows left out": Case(bounds="mask", sparse=True, rows=2),
    "finite additive mask": Case(bounds="finite mask", rows=2),
}
# b * sk is over 2**17: the rows of queries do not fit one block of 64 MiB of fp32 scores
MANY = Case(sq=66, sk=72, b=1824, heads=1, d=8, np=2, hn=8, sparse=True, rows=2)
LONG = {
    "several blocks": MANY,
    "several blocks, additive mask": replace(MANY, bounds="mask", sparse=False),
}
WIDE = {"packed, 192 wide": Case(sk=144, hn=192, heads=5)}
TRITON = WIDE | {
    "causal, sparse, rows left out": Case(bounds="causal", sk=144, sparse=True, rows=2, mqa=False),
    "packed, no ReLU": Case(relu=False, per_token=True),
    "amid NaN, 24 and 40 wide": Case(sk=130, d=24, hn=40, layout="amid NaN"),
    # the last key that the last row may see is the first of its tile, whether that has 64 or 128 keys
    "causal, one key in the last tile": Case(bounds="causal", sq=129, sk=129, b=1),
    "sparse, other keys in each sequence": Case(
        bounds="windows", sq=1, sk=900, b=4, heads=1, np=1, topk=2, sparse=True
    ),
    "additive mask, sparse, other keys in each sequence": Case(
        bounds="mask", sq=1, sk=900, b=4, heads=1, np=1, topk=2, sparse=True
    ),
    # rows of keys longer than a program holds, which begin and end anywhere
    "long rows": Case(bounds="spans", sq=3, sk=2500, b=2, heads=1, d=8, np=1, hn=8, rows=2),
}
# Gradients of scores sum to zero in a row, so what all keys have in common cancels in the gradient of q, unless they
# are rounded to bf16 before: then the error is some 2^-9 of what cancels, 16 times what is left.
HALF = {
    "bf16, keys with much in common": Case(relu=False, sq=20, common=16.0, dtype=torch.bfloat16),
    # before the loss is scaled its gradients are under fp16's least number, 6e-8
    "fp16, scaled loss": Case(per_token=True, dtype=torch.float16, coeff=1e-7, grad=2.0**20),
}
SPACE = {
    name: st.sampled_from(values)
    for name, values in {
        "b": (1, 2, 3),
        "heads": (1, 2, 5),
        "d": (1, 8, 24),
        "np": (1, 2, 5),
        "hn": (1, 24, 40),
        "topk": (1, 3, 8, 40),
        "bounds": BOUNDS,
        "sparse": (False, True),
        "relu": (True, False),
        "rows": (0, 1, 2),
        "per_token": (False, True),
        "mqa": (True, False),
        "dtype": tuple(LIMITS),
        "layout": LAYOUTS,
        "frozen": (0, 1, 2, 3),
    }.items()
}


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages made under this mode and not yet freed, and their peak; holds for meta tensors too."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in inputs}

    def _free(self, key: int, size: int) -> None:
        self.live, self.known = self.live - size, self.known - {key}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (key := (storage := tensor.untyped_storage())._cdata) not in self.known:
                self.known.add(key)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._free, key, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out


class Call:
    """A case's tensors and the two upstream calls. q [sq,b,h,d], w [sq,b,h], k [sk,b,d], query, key [s,b,np,hn]."""

    def __init__(self, p: probe.Probe, case: Case, device: str, whole: bool = False) -> None:
        self.dsa, self.case, self.device, self.whole = p.upstream(DSA), case, device, whole
        self.random = torch.Generator(device="cpu" if device == "meta" else device).manual_seed(p.seed)
        self.groups: Any = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))  # all that is asked of them
        sq, sk, b, h = case.sq, case.sk, case.b, case.heads
        self.q, self.w, self.k = self.make(sq, b, h, case.d), self.make(sq, b, h) / h, self.make(sk, b, case.d)
        self.k += case.common
        self.query = self.make(sq, b, case.np, case.hn)
        self.key = self.make(sk, b, 1 if case.mqa else case.np, case.hn).expand(-1, -1, case.np, -1)
        row, column = torch.arange(sq, device=device)[:, None], torch.arange(sk, device=device)
        first = torch.where(row < sq // 3, 0, sq // 3) * (case.bounds == "packed")  # two documents
        self.valid = (column >= first) & (column <= row)  # [sq, sk], or [b, sq, sk]
        self.bounds: tuple[Tensor | None, ...] = (None, first[:, 0], (row[:, 0] + 1).clamp(max=sk), None)
        self.bias = torch.zeros((), device=device)
        if case.bounds == "none":
            self.bounds = (None, None, None, None)
        elif case.bounds in ("windows", "spans"):
            first, last = (torch.rand(2, sq, 1, generator=self.random, device=device).sort(0).values * (sk + 1)).int()
            place = torch.randperm(sk, generator=self.random, device=device)
            if case.bounds == "spans":
                place = column
            self.valid = (place >= first) & (place < last)
            self.bounds = (None, first[:, 0], last[:, 0], place if case.bounds == "windows" else None)
        elif case.bounds.endswith("mask"):
            shape = (b, sq, sk) if case.bounds == "mask" else (sq, sk)
            self.valid = torch.rand(shape, generator=self.random, device=device) < 0.6
            self.valid[..., 5:6, :] = False  # a row without any key
            if case.bounds == "finite mask":
                self.bias = self.make(*shape).float()
            mask = self.bias.expand(shape).masked_fill(~self.valid, -math.inf)
            self.bounds = (mask, None, None, None)
        self.kept: Tensor | None = None
        if case.rows:
            self.kept = torch.rand((b, sq)[2 - case.rows :], generator=self.random, device=device) < 0.7

    def make(self, *shape: int) -> Tensor:
        """Normal, or small whole numbers: then fp32 sums are exact in any order, and scores have ties."""
        if self.device == "meta":
            return torch.empty(*shape, dtype=self.case.dtype, device="meta")
        axes = list(range(len(shape)))
        order = {"batch first": [1, 0, *axes[2:]], "reversed": axes[::-1]}.get(self.case.layout, axes)
        size = [shape[axis] for axis in order]
        options: Any = {"generator": self.random, "device": self.device}
        made = torch.randint(-2, 3, size, **options) if self.whole else torch.randn(size, **options)
        made = made.to(self.case.dtype)
        if self.case.layout == "amid NaN":
            made = pad(made, (0, 8) * len(size), value=math.nan)[tuple(map(slice, size))]
        return made.permute(order)  # each order is its own inverse

    def topk(self) -> tuple[Tensor, Tensor]:
        """Scores [b, sq, sk] and indices [b, sq, topk], as DSAttention asks for them without the loss."""
        call = self.dsa.fused_qk_topk_naive
        return call(self.q, self.k, self.w, self.case.topk, *self.bounds, use_relu=self.case.relu)  # type: ignore

    def loss(self, wanted: bool = True) -> tuple[Tensor, Tensor]:
        """Indices and loss, as DSAttention asks for them in training; ``wanted``: with gradients."""
        case, (mask, *bounds) = self.case, self.bounds
        for place, tensor in enumerate((self.q, self.w, self.k)):
            tensor.requires_grad_(wanted and place != case.frozen).grad = None
        query, key = self.query, self.key
        if case.layout == "packed" and case.b == 1:
            query, key = query.squeeze(1), key.squeeze(1)
        return self.dsa.FusedDSAIndexerLoss.apply(  # type: ignore[no-any-return]
            self.q,
            self.w,
            self.k,
            query,
            key,
            case.hn**-0.5,
            case.topk,
            case.coeff,
            mask,
            case.sparse,
            self.groups,
            *bounds,
            self.kept,
            case.per_token,
            case.relu,
        )

    def run(self) -> tuple[Tensor, list[Tensor]]:
        """Forward and backward: indices, and the loss with the gradients of q, w and k."""
        indices, loss = self.loss()
        (self.case.grad * loss).backward()  # type: ignore[no-untyped-call]
        return indices, [loss, *(t.grad for t in (self.q, self.w, self.k) if t.grad is not None)]


def exact_scores(call: Call) -> tuple[list[Tensor], Tensor]:
    """(those of q, w, k that need a gradient) in fp64, and the scores [b, sq, sk] that autograd derives from them."""
    q, w, k = every = [t.detach().double() for t in (call.q, call.w, call.k)]
    leaves = [t.requires_grad_() for place, t in enumerate(every) if place != call.case.frozen]
    dots = torch.einsum("tbhd,sbd->bths", q, k)
    return leaves, ((dots.relu() if call.case.relu else dots) * w.transpose(0, 1).unsqueeze(-1)).sum(2) + call.bias


def reference(call: Call, indices: Tensor) -> tuple[Tensor, list[Tensor]]:
    """fp64 scores [b, sq, sk], and the loss with its gradients by autograd; ``indices`` are a sparse loss's support."""
    case, (leaves, scores) = call.case, exact_scores(call)
    support = call.valid.expand(scores.shape)
    if case.sparse:
        support = support & times_chosen(indices, scores).bool()
    live = support.any(-1)  # rows without a key have no loss
    least = torch.finfo(torch.float64).min
    log_r = scores.masked_fill(~support, least).log_softmax(-1).masked_fill(~support, 0)
    p = torch.zeros_like(scores)
    for query, key in zip(call.query.detach().unbind(2), call.key.detach().unbind(2), strict=True):
        dot = torch.einsum("tbd,sbd->bts", query.double(), key.double()) * case.hn**-0.5 + call.bias
        p = p + dot.masked_fill(~support, least).softmax(-1).masked_fill(~support, 0)
    p = (p / p.sum(-1, keepdim=True).clamp_min(1e-300)).detach()
    kept = torch.ones_like(live) if call.kept is None else call.kept.expand(live.shape)
    rows = ((p * (p.clamp_min(1e-300).log() - log_r)).sum(-1) * live * kept).sum()
    loss = case.coeff * rows / (1 if case.per_token else kept.sum().clamp_min(1))
    return scores.detach(), [loss, *torch.autograd.grad(case.grad * loss, leaves)]


def times_chosen(indices: Tensor, scores: Tensor) -> Tensor:
    """How often each key [b, sq, sk] is among ``indices`` [b, sq, topk], where -1 is none."""
    spare = scores.shape[-1]
    slots = torch.where(indices < 0, spare, indices)
    times = torch.zeros(*scores.shape[:-1], spare + 1, dtype=torch.int64, device=scores.device)
    return times.scatter_add(-1, slots, torch.ones_like(slots))[..., :-1]


def distance(measured: Sequence[Tensor], exact: Sequence[Tensor], least: Any = ()) -> float:
    """Largest relative norm of the differences of two lists of tensors; an exact one counts for ``least`` at least."""
    pairs = zip(measured, exact, strict=True)
    norms = [(float((a.double() - b).detach().norm()), float(b.detach().norm())) for a, b in pairs]
    return max(
        error / max(size, float(few))
        for (error, size), few in zip(norms, [*least] or [1e-30] * len(norms), strict=True)
    )


def wrong_keys(indices: Tensor, scores: Tensor, valid: Tensor) -> int:
    """Chosen keys that are double, too few, or masked or worse than the k-th best by more than rounding."""
    masked, times = scores.masked_fill(~valid, -math.inf), times_chosen(indices, scores)
    want = masked.topk(indices.shape[-1]).values  # [b, sq, topk]
    slack = 1e-5 * scores.abs().amax(-1, keepdim=True)
    worse = (times > 0) & (masked < want[..., -1:] - slack) | (times > 0) & ~valid
    few = (indices >= 0).sum(-1) != want.isfinite().sum(-1)
    return int((times > 1).sum() + worse.sum() + few.sum())


class Found(NamedTuple):
    """Relative errors of a case: the loss, its gradients, the scores of the call without it; and wrong keys."""

    loss: float
    gradients: float
    scores: float
    keys: int

    def over(self, limit: float) -> float:
        return max(
            self.loss / limit * 10, self.gradients / limit, self.scores / FP32 * 10, math.inf if self.keys else 0
        )


def compare(call: Call, found: tuple[Tensor, list[Tensor]]) -> Found:
    """What ``call.run`` found, and what the top-k call finds, against fp64."""
    indices, (loss, *grads), case = *found, call.case
    scores, (true, *exact) = reference(call, indices)
    # with no bounds at all the loss is causal, but the top-k is not masked
    seen = (torch.ones_like(call.valid) if case.bounds == "none" else call.valid).expand(scores.shape)
    with torch.no_grad():
        given, chosen = call.topk()
    size, shape = min(case.topk, case.sk), (case.b, case.sq)
    form = [loss.shape, *(t.shape for t in (indices, chosen, given))] != [(), *2 * [(*shape, size)], (*shape, case.sk)]
    form |= [t.dtype for t in (loss, given, indices, chosen)] != 2 * [torch.float32] + 2 * [torch.int64]
    if form or not torch.equal(given == -math.inf, ~seen):
        return Found(*3 * [math.inf], 1)
    # a mean loss of 0.01 is one that fp32 does not hold to five digits; gradients of a row or two can vanish by chance
    few = case.coeff * torch.tensor([1e-2, *len(exact) * [1e-3 / case.b / case.sq]])
    # finite values of a mask are added to the index scores twice in the released loss, once in its gradients
    off = 0.0 if case.bounds == "finite mask" else distance([loss], [true], few[:1])
    wrong = sum(wrong_keys(keys, scores, seen) for keys in (indices, chosen))
    return Found(off, distance(grads, exact, few[1:]), distance([given.where(seen, 0)], [scores.where(seen, 0)]), wrong)


def check_numbers(p: probe.Probe, name: str, call: Call) -> None:
    """Loss, gradients and top-k sets of both calls against fp64."""
    limit, done = LIMITS[call.case.dtype], p.guard_attempt(f"{name}: loss and backward return", call.run)
    if done is None:
        return
    found = compare(call, done)
    if call.case.bounds != "finite mask":
        p.guard(f"{name}: loss", found.loss, limit / 10, reference="fp64")
    p.guard(f"{name}: gradients of q, weights and k", found.gradients, limit, reference="fp64 autograd")
    p.guard(f"{name}: scores of the top-k call", found.scores, FP32 / 10, reference="fp64")
    p.guard(f"{name}: wrong top-k keys", found.keys, 0, reference="fp64, ties within 1e-5")


def check_host(p: probe.Probe) -> None:
    """What a host with a GPU computes of tensors that are not on it."""
    for name, case in SMALL.items():
        call = Call(p, case, "cpu")
        check_numbers(p, f"on the host, {name}", call)
        alone, loss = call.loss(wanted=False)[1], call.loss()[1].detach()
        p.guard(f"on the host, {name}: loss alone", distance([alone], [loss.double()]), FP32 / 10, reference="the same")


def check_drawn(p: probe.Probe, name: str, device: str, most: int, count: int, **fixed: Any) -> None:
    """The same of shapes, bounds, layouts and options that nobody chose."""
    sizes = {name: st.integers(1, most) for name in ("sq", "sk")}

    def over(**drawn: Any) -> float:
        call = Call(p, Case(**drawn), device)
        try:
            return compare(call, call.run()).over(LIMITS[call.case.dtype])
        except Exception:  # then this check fails, and tells the simplest case that does it
            return math.inf

    space = sizes | SPACE | {key: st.sampled_from(values) for key, values in fixed.items()}
    p.drawn(f"{name}: errors over their limits", over, 1, space=space, count=count, reference="fp64")


def check_neighbours(p: probe.Probe, device: str) -> None:
    """What else the two calls promise: who gets gradients and how often, what is refused, top-k to the bit."""
    call = Call(p, Case(), device)
    call.query.requires_grad_()
    loss = call.loss()[1]
    for _ in range(2):
        (GRAD * loss).backward(retain_graph=True)  # type: ignore[no-untyped-call]
    p.guard("gradients that reach the attention's query", float(call.query.grad is not None), 0, reference="detached")
    twice = [t.grad for t in (call.q, call.w, call.k) if t.grad is not None]
    indices, (true, *once) = call.run()
    p.guard(
        "gradients after two backward passes",
        distance(twice, [2 * t.double() for t in once]),
        FP32 / 10,
        reference="twice those of one",
    )
    with torch.no_grad():
        (others, alone), (_, nothing) = call.loss(), Call(p, Case(topk=0), device).topk()
    p.guard("loss without gradients", distance([alone], [true.double()]), FP32 / 10, reference="with them")
    wrong = int((others != indices).sum()) + (tuple(nothing.shape) != (2, 80, 0)) + (nothing.dtype != torch.int64)
    p.guard("top-k of the loss without gradients, top-k of none: wrong", wrong, 0, reference="the same; [b, sq, 0]")
    (leaves, exact), weight = exact_scores(call), torch.randn(call.valid.shape, device=device)
    true = torch.autograd.grad((exact.where(call.valid, 0) * weight.double()).sum(), leaves)
    got = torch.autograd.grad((call.topk()[0].where(call.valid, 0) * weight).sum(), (call.q, call.w, call.k))
    p.guard("gradients through the scores of the top-k call", distance(got, true), FP32, reference="fp64 autograd")
    accepted, masked = 0, Call(p, SMALL["additive mask"], device)
    for mask, error in ((masked.bounds[0].half(), AssertionError), (masked.bounds[0], ValueError)):  # type: ignore
        masked.bounds = (mask, *(call.bounds[1:] if error is ValueError else masked.bounds[1:]))
        for ask in (masked.topk, masked.loss):
            with contextlib.suppress(error):
                ask()
                accepted += 1
    p.guard("masks of half precision, or beside bounds, that are accepted", accepted, 0, reference="refused")
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check_numbers(p, "torch's default dtype fp64", Call(p, Case(sparse=True), device))
    finally:
        torch.set_default_dtype(usual)
    if p.lane == "cuda":  # whose top-k chooses an algorithm, and so among ties, by the number of rows
        return
    for name, case in SMALL.items():
        call = Call(p, replace(case, heads=4), device, whole=True)
        p.digest(f"{name}: scores and top-k of whole numbers", *call.topk())
        p.digest(f"{name}: top-k of the loss, whole numbers", call.loss()[0])


def check_ranks(p: probe.Probe) -> None:
    """Two tensor-parallel ranks, half of the attention heads each: the target is summed over both."""

    def work(rank: int) -> None:
        p.megatron_cpu(tensor_model_parallel_size=2)
        groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups(["tp"])
        for name, case in {
            "": Case(np=4, mqa=False, sparse=True),
            ", several blocks": replace(MANY, mqa=False),
        }.items():
            call, share = (Call(p, case, "cpu") for _ in range(2))
            share.groups, share.query, share.key = groups, *(t.chunk(2, 2)[rank] for t in (call.query, call.key))
            with torch.no_grad():
                alone = share.loss(wanted=False)[1]
            indices, found = share.run()
            loss, *grads = reference(call, indices)[1]
            p.guard(
                f"tensor-parallel rank {rank}{name}: loss and gradients",
                distance([alone, *found], [loss, loss, *grads]),
                FP32,
                reference="fp64, all heads",
            )

    p.ranks(2, work)


def peaks(p: probe.Probe, case: Case, device: str) -> tuple[float, float, float, float]:
    """Peak GiB beyond the inputs: of the top-k, the loss without gradients, its forward, its forward and backward."""
    call = Call(p, case, device)
    inputs = call.q, call.w, call.k, call.query, call.key
    mode: Any = LiveBytes(*inputs) if device == "meta" else contextlib.nullcontext()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0

    def restart() -> float:
        if device == "meta":
            peak, mode.peak = mode.peak, mode.live
        else:
            peak = torch.cuda.max_memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
        return float(peak / GIB)

    with mode:
        restart()  # what making the inputs took
        with torch.no_grad():
            call.topk()
        topk = restart()
        call.loss(wanted=False)
        alone = restart()
        loss = call.loss()[1]
        forward = restart()
        (GRAD * loss).backward()  # type: ignore[no-untyped-call]
        return topk, alone, forward, max(forward, restart())


def kept(p: probe.Probe, case: Case, device: str) -> tuple[float, float, float]:
    """GiB that the loss keeps for its backward where nobody else keeps its inputs; of q, w and k; and of the query."""
    call = Call(p, case, device)
    names = "q", "w", "k", "query", "key"
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in names}
    mode: Any = LiveBytes(*leaves.values()) if device == "meta" else contextlib.nullcontext()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    with mode:
        vars(call).update({name: leaf * 1 for name, leaf in leaves.items()})
        own, query = sum(t.nbytes for t in (call.q, call.w, call.k)), call.query.nbytes
        loss = call.loss()[1]
        vars(call).update(leaves)
        live = mode.live if device == "meta" else torch.cuda.memory_allocated() - before
    del loss
    return live / GIB, own / GIB, query / GIB


def check_memory(p: probe.Probe, device: str) -> None:
    """Peaks at S 4096, 32 index and 32 attention heads against what must be kept plus a few blocks of rows.

    The batch is 8 on the meta device and 4 on a GPU, which 80 GB hold: five tensors of all heads live at a time.
    """
    case = replace(NAM56R, b=8 if device == "meta" else 4)
    one = case.sq * case.b * case.heads * case.sk * 4 / GIB  # one [sq, b, heads, sk] in fp32: 16 or 8 GiB
    model = f"outputs, saved gradients, 16 blocks of 64 MiB; one [sq, b, heads, sk] is {one:g} GiB"
    sums, chosen = one / case.heads, case.b * case.sq * case.topk * 8 / GIB  # [b, sq, sk] 0.5, indices 0.06 at batch 8
    grad = case.sq * case.b * case.heads * case.d * 2 / GIB  # 0.125 there for q, saved, and once more when scaled
    blocks = 1.0
    topk, alone, forward, both = peaks(p, case, device)
    p.error("top-k peak", topk, sums + chosen + blocks, reference=model, bug_above=one, unit="GiB")
    p.error("loss forward peak", forward, chosen + grad + blocks, reference=model, bug_above=2 * one, unit="GiB")
    p.error(
        "loss without gradients: peak over that of forward less a gradient of q",
        alone + grad - forward,
        grad / 2,
        reference="no gradient is made",
        bug_above=0.9 * grad,
        unit="GiB",
    )
    p.error(
        "loss forward and backward peak",
        both,
        chosen + 2 * grad + blocks,
        reference=model,
        bug_above=2 * one,
        unit="GiB",
    )
    held, own, query = kept(p, case, device)
    p.error(
        "kept from forward to backward",
        held,
        1.01 * own,
        reference="gradients of q, weights and k, no inputs",
        bug_above=own + query,
        unit="GiB",
    )


def median_ms(run: Callable[[], Any]) -> float:
    """Milliseconds of a call on the GPU, the median of nine."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(13)]  # four to warm up, then nine intervals
    for event in events:
        run()
        event.record()
    torch.cuda.synchronize()
    return sorted(one.elapsed_time(two) for one, two in itertools.pairwise(events[3:]))[4]


def check_time(p: probe.Probe) -> None:
    """Forward and backward at micro-batch 4 and 28 attention heads."""
    call = Call(p, replace(NAM56R, b=4, np=28), "cuda")
    # a layer without the loss takes 20 ms with the TileLang backend, and may take three times that with it
    p.error(
        "indexer loss forward and backward, B4 S4096",
        median_ms(call.run),
        40,
        reference="budget: twice a DSA layer without the loss",
        bug_above=150,
        unit="ms",
    )


def layer(p: probe.Probe, device: str, s: int, b: int, **other: Any) -> Callable[[float], dict[str, Tensor | None]]:
    """NAM56R's DSA layer in bf16, absorbed MLA as a whole: gradients of parameters and input at a loss coefficient."""
    dsa, mla, norms = (p.upstream(x) for x in (DSA, VARIANT + "absorbed_mla", "megatron.core.transformer.torch_norm"))
    config = mla.MLATransformerConfig(
        **dict(
            hidden_size=3584,
            num_attention_heads=28,
            q_lora_rank=64,
            kv_lora_rank=64,
            qk_head_dim=64,
            v_head_dim=64,
            qk_pos_emb_head_dim=64,
            dsa_indexer_n_heads=32,
            dsa_indexer_head_dim=64,
            dsa_indexer_topk=256,
            experimental_attention_variant="dsa",
            rope_type="rope",
            rotary_base=500000,
            num_layers=1,
            add_bias_linear=False,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_cpu_initialization=True,
        )
        | other
    )
    column, row, spec = mla.ColumnParallelLinear, mla.tensor_parallel.RowParallelLinear, mla.ModuleSpec

    class Duplicated(column):  # type: ignore[misc,valid-type]  # the same on one rank; Megatron's own is in TE only
        def __init__(self, *sizes: int, parallel_mode: str, **options: Any) -> None:
            super().__init__(*sizes, gather_output=False, **options)

    parts: Any = dsa.DSAIndexerSubmodules(Duplicated, Duplicated, norms.WrappedTorchNorm, Duplicated)
    parts = spec(dsa.DSAttention, submodules=dsa.DSAttentionSubmodules(spec(dsa.DSAIndexer, submodules=parts)))
    parts = mla.AbsorbedMLASelfAttentionSubmodules(None, column, column, column, column, parts, row)
    torch.manual_seed(p.seed)
    module = mla.AbsorbedMLASelfAttention(config, parts, 1, mla.AttnMaskType.causal).bfloat16().to(device).train()
    x, grad = (torch.randn(s, b, config.hidden_size).bfloat16().to(device) for _ in range(2))

    def step(coefficient: float) -> dict[str, Tensor | None]:
        config.dsa_indexer_loss_coeff = coefficient
        module.zero_grad(set_to_none=True)
        x.requires_grad_().grad = None
        module(x, None)[0].backward(grad)
        return {name: t.grad for name, t in [*module.named_parameters(), ("x", x)]}

    return step


def check_learning(p: probe.Probe, name: str, step: Callable[[float], Any], coefficient: float) -> str:
    """The loss, and nothing else, trains the indexer; all else is trained either way. Returns the name of the case."""
    name, wrong, on = f"{name}, loss {'on' if coefficient else 'off'}", 0, coefficient > 0
    found = p.guard_attempt(f"{name}: forward and backward return", partial(step, coefficient)) or {}
    for key, g in found.items():
        wrong += (g is not None and bool(g.any() and g.isfinite().all())) != (on or ".indexer." not in key)
    p.guard(f"{name}: tensors that learn and should not, or reverse", wrong, 0, reference="indexer: by the loss")
    return name


def check_layer(p: probe.Probe) -> None:
    """NAM56R's layer at micro-batch 4: where TileLang does the attention, the loss must not be what a layer costs."""
    name, took = "DSA layer with the loss on over off, B4 S4096", []
    if not p.upstream(VARIANT + "ops.tilelang_utils").HAVE_TILELANG:
        return p.skip(name, "tilelang cannot be imported")
    step = layer(p, "cuda", 4096, 4, dsa_kernel_backend="tilelang")
    for coefficient in (0.0, 1e-3):
        case = check_learning(p, "DSA layer, B4 S4096", step, coefficient)
        if not p.upstream(VARIANT + "ops.tilelang_sparse_mla_fwd")._tilelang_sparse_mla_fwd_kernel_cache:
            return p.skip(name, "TileLang declines these sizes: none of its sparse kernels was asked for")
        torch.cuda.reset_peak_memory_stats()
        took.append(median_ms(partial(step, coefficient)))
        p.note(case, took[-1], unit="ms")
        p.note(f"{case}: peak", torch.cuda.max_memory_allocated() / GIB, unit="GiB")
    # the most that a user is to pay for it; the bug is a loss that costs more than seven layers without
    return p.error(name, took[1] / took[0], 3, reference="the same layer with the loss off", bug_above=8)


def check_blocks(p: probe.Probe, device: str) -> None:
    """What the host does for a further block of rows: operators, and on the cpu lane kernels, which do not run."""
    from triton.runtime import interpreter

    kernels: list[int] = []
    launch = mock.patch.object(interpreter.GridExecutor, "__call__", lambda *_, **__: kernels.append(1))

    def count(rows: int) -> int:
        call = Call(p, replace(MANY, sq=rows, sparse=False, rows=0), device)
        kernels.clear()
        with launch if p.lane == "cpu" else contextlib.nullcontext():
            return p.operators(call.loss).count + len(kernels)

    p.guard(
        "operators and kernels for a further block of rows",
        count(66) - count(64),
        60,
        reference="seven kernels, the top-k, copies of what a block made, and views",
    )


def dots_of_bf16() -> None:
    """Triton's interpreter keeps bf16 as bits and multiplies those; widen them before a product, which is exact."""
    from triton import language
    from triton.runtime.interpreter import InterpreterBuilder

    create_dot = InterpreterBuilder.create_dot

    def widened(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (self.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x for x in (a, b))
        return create_dot(self, a, b, *rest)

    InterpreterBuilder.create_dot = widened


def reads_outside() -> list[int]:
    """Of each block that an interpreted kernel asks for from now on: how many numbers lie in none of its tensors."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    take, load, found, ends = GridExecutor._init_args_hst, InterpreterBuilder.create_masked_load, [], []

    def taken(self: Any, *given: Any) -> Any:
        out = take(self, *given)
        storages = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, Tensor)]
        ends[:] = {(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages}
        return out

    def watched(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        asked, size = ptrs.data[mask.data], ptrs.get_element_ty().primitive_bitwidth // 8
        low, high = (asked.min(), asked.max()) if asked.size else (0, 0)
        if asked.size and not any(start <= low and high + size <= end for start, end in ends):
            found.append(sum(not any(start <= a and a + size <= end for start, end in ends) for a in asked.tolist()))
        return load(self, ptrs, mask, *rest)

    GridExecutor._init_args_hst, InterpreterBuilder.create_masked_load = taken, watched
    return found


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        check_ranks(p)
        p.triton_interpreter()
        dots_of_bf16()
        outside = reads_outside()
        p.megatron_cpu()
        pretended, torch.Tensor.is_cuda = torch.Tensor.is_cuda, property(lambda self: False)  # type: ignore
        check_memory(p, "meta")
        for name, case in (SMALL | LONG | HALF).items():
            check_numbers(p, name, Call(p, case, "cpu"))
        check_drawn(p, "drawn", "cpu", 80, 30)
        check_neighbours(p, "cpu")
        small = layer(p, "cpu", 40, 2, hidden_size=96, num_attention_heads=3, dsa_indexer_n_heads=4, dsa_indexer_topk=8)
        for coefficient in (0.0, 1e-3):
            check_learning(p, "small DSA layer", small, coefficient)
        torch.Tensor.is_cuda = pretended  # type: ignore[method-assign]
        for name, case in (TRITON | HALF).items():
            check_numbers(p, f"as on a GPU, {name}", Call(p, case, "cpu"))
        check_drawn(p, "drawn, as on a GPU", "cpu", 200, 8)
        check_blocks(p, "cpu")
        p.guard("as on a GPU: numbers read outside of a kernel's tensors", sum(outside), 0, reference="none")
        return
    p.megatron_cpu()
    check_memory(p, "cuda")
    torch.cuda.empty_cache()
    for name, case in (SMALL | LONG | TRITON).items():
        check_numbers(p, f"{name}, bf16", Call(p, replace(case, dtype=torch.bfloat16), "cuda"))
    for name, case in (WIDE | {"additive mask": SMALL["additive mask"]}).items():
        check_numbers(p, f"{name}, fp32", Call(p, case, "cuda"))
    for name, case in HALF.items():
        check_numbers(p, name, Call(p, case, "cuda"))
    check_host(p)
    check_drawn(p, "drawn", "cuda", 200, 40)
    check_neighbours(p, "cuda")
    check_blocks(p, "cuda")
    check_numbers(p, "S 4096, bf16", Call(p, replace(NAM56R, b=2), "cuda"))
    torch.cuda.empty_cache()
    check_time(p)
    with p.unwatched():
        check_layer(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=12, package="megatron", minimal=minimal)
