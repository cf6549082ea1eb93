# /// script
# requires-python = ">=3.11"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "einops"]
# ///
"""DSA's indexer top-k and KL loss materialise [seq, batch, heads, seq] fp32 scores, several copies of them at a time.

Only [batch, seq, seq] sums over heads are needed, and their rows are independent of each other. At sequence 4096, batch 8
and 32 heads the top-k peaks at 32 GiB and the loss, forward and backward, at 70 GiB. What is called here is what
DSAttention calls: ``fused_qk_topk_naive`` and ``FusedDSAIndexerLoss``. The cpu lane counts live bytes on the meta device.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reproducers import probe

GIB = 2.0**30
COEFF, GRAD = 0.1, 3.0  # loss coefficient; gradient of the loss, as if scaled: not a power of two
FP32 = 1e-4  # of gradients, a tenth of it for the loss: sums of up to 4096 fp32 terms of either sign, tf32 in three parts
BF16 = 4e-3  # gradients are rounded to bf16 before they are scaled and after: 2 x 2^-9 at most
DSA = "megatron.core.transformer.experimental_attention_variant.dsa"


@dataclass(frozen=True)
class Case:
    """One call of the indexer; ``rows`` leaves some query rows out of the loss, ``mqa`` shares one key head."""

    sq: int = 80
    sk: int = 80
    b: int = 2
    heads: int = 3
    d: int = 16
    np: int = 3
    hn: int = 24
    topk: int = 8
    bounds: str = "packed"  # or "causal" (DSAttention's bounds), "mask" (additive), "none" (defaults)
    sparse: bool = False
    relu: bool = True
    rows: bool = False
    per_token: bool = False
    mqa: bool = True
    dtype: torch.dtype = torch.float32


NAM56R = Case(sq=4096, sk=4096, b=8, heads=32, d=64, np=32, hn=128, topk=256, bounds="causal", dtype=torch.bfloat16)
SMALL = {
    "packed": Case(),
    "packed, sparse": Case(sparse=True),
    "packed, sparse, rows left out, per token": Case(sk=130, sparse=True, rows=True, per_token=True),
    "causal, rows left out, no ReLU": Case(bounds="causal", rows=True, relu=False, mqa=False),
    "default bounds": Case(bounds="none"),
    "default bounds, sparse": Case(bounds="none", sparse=True, topk=30),
    "additive mask": Case(bounds="mask", mqa=False),
    "additive mask, sparse, rows left out": Case(bounds="mask", sparse=True, rows=True),
}
LONG = Case(sq=1600, sk=1600, heads=2, d=16, np=2, hn=16, topk=64, sparse=True)  # several blocks of query rows
TRITON = {
    "packed, 192 wide": Case(sq=80, sk=144, hn=192, heads=5),
    "causal, sparse, rows left out": Case(bounds="causal", sk=144, sparse=True, rows=True, mqa=False),
    "packed, no ReLU": Case(relu=False, per_token=True),
}


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages made under this mode and not yet freed, and their peak; holds for meta tensors too."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in inputs}

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        self.known.remove(key)

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
        self.dsa: ModuleType = p.upstream(DSA)
        self.case, self.device = case, device
        self.random = torch.Generator(device="cpu" if device == "meta" else device).manual_seed(p.seed)
        self.tp: Any = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))  # all that is asked of the groups
        self.whole = whole  # small integers: every sum is exact in fp32, whatever its order, and scores have ties
        sq, sk, b, h = case.sq, case.sk, case.b, case.heads
        self.q, self.w, self.k = self.make(sq, b, h, case.d), self.make(sq, b, h) / h, self.make(sk, b, case.d)
        self.query = self.make(sq, b, case.np, case.hn)
        self.key = self.make(sk, b, 1 if case.mqa else case.np, case.hn).expand(-1, -1, case.np, -1)
        row = torch.arange(sq, device=device)
        first = torch.where(row < sq // 3, 0, sq // 3) * (case.bounds == "packed")
        self.bounds = (None, first, (row + 1).clamp(max=sk)) if case.bounds in ("packed", "causal") else (None,) * 3
        self.valid = torch.arange(sk, device=device) < (row + 1)[:, None]  # [sq, sk]
        if case.bounds == "mask":
            self.valid = torch.rand(b, sq, sk, generator=self.random, device=device) < 0.6
            self.valid[:, 5] = False  # a row without any key
            self.bounds = torch.zeros(b, sq, sk, device=device).masked_fill(~self.valid, -math.inf), None, None
        elif case.bounds == "packed":
            self.valid = self.valid & (torch.arange(sk, device=device) >= first[:, None])
        self.kept = torch.rand(b, sq, generator=self.random, device=device) < 0.7 if case.rows else None

    def make(self, *shape: int) -> Tensor:
        if self.device == "meta":
            return torch.empty(*shape, dtype=self.case.dtype, device="meta")
        if self.whole:
            return torch.randint(-2, 3, shape, generator=self.random, device=self.device).to(self.case.dtype)
        return torch.randn(*shape, generator=self.random, device=self.device).to(self.case.dtype)

    def topk(self) -> tuple[Tensor, Tensor]:
        """Scores [b, sq, sk] and indices [b, sq, topk], as DSAttention asks for them without the loss."""
        mask, *bounds = self.bounds
        call = self.dsa.fused_qk_topk_naive
        return call(self.q, self.k, self.w, self.case.topk, mask, *bounds, use_relu=self.case.relu)  # type: ignore[no-any-return]

    def loss(self) -> tuple[Tensor, Tensor]:
        """Indices and loss, as DSAttention asks for them in training."""
        case, (mask, *bounds) = self.case, self.bounds
        for tensor in (self.q, self.w, self.k):
            tensor.requires_grad_().grad = None
        return self.dsa.FusedDSAIndexerLoss.apply(  # type: ignore[no-any-return]
            self.q, self.w, self.k, self.query, self.key, case.hn**-0.5, case.topk, COEFF, mask, case.sparse,
            self.tp, *bounds, None, self.kept, case.per_token, case.relu,
        )  # fmt: skip


def exact_scores(call: Call) -> tuple[tuple[Tensor, ...], Tensor]:
    """(q, w, k) in fp64 and the scores [b, sq, sk] that autograd derives from them."""
    q, w, k = leaves = tuple(t.detach().double().requires_grad_() for t in (call.q, call.w, call.k))
    dots = torch.einsum("tbhd,sbd->bths", q, k)
    return leaves, ((dots.relu() if call.case.relu else dots) * w.transpose(0, 1).unsqueeze(-1)).sum(2)


def reference(call: Call, indices: Tensor | None) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """fp64 scores [b, sq, sk], loss, and its gradients by autograd. ``indices``: the support of the sparse loss."""
    leaves, scores = exact_scores(call)
    support = call.valid.expand(scores.shape)
    if indices is not None:
        chosen = torch.zeros(*scores.shape[:2], scores.shape[2] + 1, dtype=torch.bool, device=scores.device)
        support = support & chosen.scatter(2, indices % chosen.shape[2], True)[..., :-1]  # -1 is the last, spare key
    live = support.any(-1)  # rows without a key have no loss
    least = torch.finfo(torch.float64).min
    log_r = scores.masked_fill(~support, least).log_softmax(-1).masked_fill(~support, 0)
    p = torch.zeros_like(scores)
    for query, key in zip(call.query.detach().unbind(2), call.key.detach().unbind(2), strict=True):
        dot = torch.einsum("tbd,sbd->bts", query.double(), key.double()) * call.case.hn**-0.5
        p = p + dot.masked_fill(~support, least).softmax(-1).masked_fill(~support, 0)
    p = (p / p.sum(-1, keepdim=True).clamp_min(1e-300)).detach()
    kept = torch.ones_like(live) if call.kept is None else call.kept
    rows = ((p * (p.clamp_min(1e-300).log() - log_r)).sum(-1) * live * kept).sum()
    loss = COEFF * rows / (1 if call.case.per_token else kept.sum())
    return scores.detach(), loss.detach(), torch.autograd.grad(GRAD * loss, leaves)


def distance(measured: Any, exact: Any) -> float:
    """Largest relative norm of the differences of two lists of tensors."""
    return max(float((a.detach().double() - b).norm() / b.norm()) for a, b in zip(measured, exact, strict=True))


def wrong_keys(indices: Tensor, scores: Tensor, valid: Tensor, tolerance: float) -> int:
    """Chosen keys that are masked, double, too few, or worse than the k-th best by more than ``tolerance`` of it."""
    masked = scores.masked_fill(~valid, -math.inf)
    want = masked.topk(indices.shape[-1]).values  # [..., k]
    slots = torch.where(indices < 0, scores.shape[-1], indices)
    times = torch.zeros(*scores.shape[:-1], scores.shape[-1] + 1, device=scores.device)
    times = times.scatter_add(-1, slots, torch.ones_like(slots, dtype=times.dtype))[..., :-1]
    slack = tolerance * scores.abs().amax(-1, keepdim=True)
    worse = (times > 0) & (masked < want[..., -1:] - slack)
    few = (indices >= 0).sum(-1) != want.isfinite().sum(-1)
    return int((times > 1).sum() + worse.sum() + few.sum())


def check_numbers(p: probe.Probe, name: str, call: Call, limit: float) -> None:
    """Loss, gradients and top-k sets against fp64; ``limit`` is a relative norm."""
    case = call.case
    done = p.guard_attempt(f"{name}: loss and backward return", lambda: run(call))
    if done is None:
        return
    indices, loss, grads = done
    scores, exact, truth = reference(call, indices if case.sparse else None)
    seen = call.valid if case.bounds != "none" else torch.ones_like(call.valid)  # the defaults do not mask the top-k
    p.guard(f"{name}: loss", distance([loss], [exact]), limit / 10, reference="fp64")
    p.guard(f"{name}: gradients of q, weights and k", distance(grads, truth), limit, reference="fp64 autograd")
    p.guard(f"{name}: wrong top-k keys", wrong_keys(indices, scores, seen, 1e-5), 0, reference="fp64, ties within 1e-5")


def run(call: Call) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Indices, loss and the gradients of q, weights and k."""
    indices, loss = call.loss()
    (GRAD * loss).backward()
    return indices, loss.detach(), [t.grad for t in (call.q, call.w, call.k) if t.grad is not None]


def check_neighbours(p: probe.Probe, device: str) -> None:
    """What else the two calls promise: no gradient for the attention, a differentiable score, top-k to the bit."""
    call = Call(p, Case(), device)
    call.query.requires_grad_()
    run(call)
    p.guard("gradients that reach the attention's query", float(call.query.grad is not None), 0, reference="detached")
    scores, _ = call.topk()
    weight = torch.randn(scores.shape, generator=call.random, device=device)
    got = torch.autograd.grad((scores.where(call.valid, 0) * weight).sum(), (call.q, call.w, call.k))
    leaves, exact = exact_scores(call)
    true = torch.autograd.grad((exact.where(call.valid, 0) * weight.double()).sum(), leaves)
    p.guard("gradients through the scores of the top-k call", distance(got, true), FP32, reference="fp64 autograd")
    if p.lane == "cpu":  # a GPU's top-k picks among equal scores by the number of rows it is given
        for name, case in SMALL.items():
            call = Call(p, replace(case, heads=4), device, whole=True)
            p.digest(f"{name}: scores and top-k of whole numbers", *call.topk())
            p.digest(f"{name}: top-k of the loss, whole numbers", call.loss()[0])


def check_ranks(p: probe.Probe) -> None:
    """Two tensor-parallel ranks, half of the attention heads each: the target is summed over both."""

    def work(rank: int) -> None:
        p.megatron_cpu(tensor_model_parallel_size=2)
        groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups(["tp"])
        call = Call(p, Case(np=4, mqa=False, sparse=True), "cpu")
        share = Call(p, call.case, "cpu")
        share.tp, share.query, share.key = groups, *(t.chunk(2, 2)[rank] for t in (call.query, call.key))
        indices, loss, grads = run(share)
        _, exact, truth = reference(call, indices)
        p.guard(f"tensor-parallel rank {rank}: loss and gradients", distance([loss, *grads], [exact, *truth]), FP32,
                reference="fp64, all heads")  # fmt: skip

    p.ranks(2, work)


def peak(p: probe.Probe, case: Case, device: str, loss: bool) -> tuple[float, float]:
    """Peak GiB beyond the inputs of (forward, forward and backward)."""
    call = Call(p, case, device)
    if device != "meta":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        read = lambda: (torch.cuda.max_memory_allocated() - before) / GIB  # noqa: E731
        mode: Any = torch.no_grad() if not loss else torch.enable_grad()
    else:
        mode = LiveBytes(call.q, call.w, call.k, call.query, call.key)
        read = lambda: mode.peak / GIB  # noqa: E731
    with mode:
        if not loss:
            with torch.no_grad():
                call.topk()
            return read(), 0.0
        _, value = call.loss()
        forward = read()
        (GRAD * value).backward()
    return forward, read()


def check_memory(p: probe.Probe, device: str) -> None:
    """Peaks at S 4096, batch 8, 32 index and 32 attention heads against what must be kept plus a few blocks of rows."""
    case = NAM56R
    one = case.sq * case.b * case.heads * case.sk * 4 / GIB  # one [sq, b, heads, sk] in fp32: 16 GiB
    sums, chosen = one / case.heads, case.b * case.sq * case.topk * 8 / GIB  # [b, sq, sk] 0.5, indices 0.06
    grad = case.sq * case.b * case.heads * case.d * 2 / GIB  # 0.125; held for q, and again as it is scaled
    block = 0.25  # working set: 16 buffers of 16 MiB
    model = "outputs + 16 blocks of 16 MiB; one [sq, b, heads, sk] is 16 GiB"
    p.error("top-k peak", peak(p, case, device, False)[0], sums + chosen + block, reference=model, bug_above=one,
            unit="GiB")  # fmt: skip
    for name, varied in {"loss": case, "sparse loss": replace(case, sparse=True, bounds="packed")}.items():
        forward, both = peak(p, varied, device, True)
        p.error(f"{name} forward peak", forward, chosen + grad + block, reference=model, bug_above=2 * one, unit="GiB")
        p.error(f"{name} forward and backward peak", both, chosen + 2 * grad + block, reference=model,
                bug_above=2 * one, unit="GiB")  # fmt: skip


def check_time(p: probe.Probe) -> None:
    """Forward and backward at micro-batch 4 and 28 attention heads, the median of nine."""
    call = Call(p, replace(NAM56R, b=4, np=28), "cuda")
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(call)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    # a layer without the loss takes 20 ms with the TileLang backend, and may take three times that with it
    p.error("indexer loss forward and backward, B4 S4096", sorted(times[3:])[4], 40,
            reference="budget: twice a DSA layer without the loss", bug_above=150, unit="ms")  # fmt: skip


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        check_ranks(p)
        p.triton_interpreter()
        p.megatron_cpu()
        pretended, torch.Tensor.is_cuda = torch.Tensor.is_cuda, property(lambda self: False)  # type: ignore
        check_memory(p, "meta")
        for name, case in {**SMALL, "several blocks": LONG}.items():
            check_numbers(p, name, Call(p, case, "cpu"), FP32)
        check_neighbours(p, "cpu")
        torch.Tensor.is_cuda = pretended  # type: ignore[method-assign]
        for name, case in TRITON.items():
            check_numbers(p, f"as on a GPU, {name}", Call(p, case, "cpu"), FP32)
        return
    p.megatron_cpu()
    check_memory(p, "cuda")
    torch.cuda.empty_cache()
    for name, case in {**SMALL, **TRITON, "several blocks": LONG}.items():
        check_numbers(p, name, Call(p, case, "cuda"), FP32)
        if case.bounds != "mask":
            check_numbers(p, f"{name}, bf16", Call(p, replace(case, dtype=torch.bfloat16), "cuda"), BF16)
    check_neighbours(p, "cuda")
    check_numbers(p, "S 4096, bf16", Call(p, replace(NAM56R, b=1), "cuda"), BF16)
    torch.cuda.empty_cache()
    check_time(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=12, package="megatron")
