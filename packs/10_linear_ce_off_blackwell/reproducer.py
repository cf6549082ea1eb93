# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "megatron-core @ git+https://github.com/NVIDIA/Megatron-LM@d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1",
#     "torch>=2.8", "triton==3.6.0", "numpy", "einops", "hypothesis",
# ]
# ///
"""Megatron's fused linear cross entropy refuses every GPU whose compute capability is not 10.x.

``cross_entropy_fusion_impl="linear"`` is accepted anywhere, and the first loss then raises ``ValueError: Unsupported
architecture``. On 10.x itself a missing cutlass surfaces as ``AttributeError: module ... has no attribute 'forward'``.
What must work instead is the contract that the Blackwell entry documents: reductions, ignored labels, tensor and
sequence parallel, both gradients, and no tensor as large as the logits.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import logging
import math
import os
import statistics
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """The fused loss on this GPU, whatever its compute capability is."""
    import torch
    from megatron.core.fusions.fused_linear_cross_entropy import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, 128, device="cuda", dtype=torch.bfloat16) / 128**0.5
    labels = torch.arange(64, device="cuda")
    loss = linear_cross_entropy(hidden, weight, labels)  # ValueError: Unsupported architecture: 9
    want = torch.nn.functional.cross_entropy(hidden.float() @ weight.float().T, labels)
    print(f"loss {loss.item():.4f}, torch's {want.item():.4f}")
    torch.testing.assert_close(loss, want, rtol=1e-3, atol=1e-3)


FUSION = "megatron.core.fusions.fused_linear_cross_entropy"
BLACKWELL = "megatron.core.fusions.linear_cross_entropy.blackwell.entry"
SOURCE = "megatron/core/fusions/fused_linear_cross_entropy.py"
OTHERS = ((7, 5), (8, 0), (8, 6), (8, 9), (11, 0), (12, 0), (12, 1))  # Turing to Blackwell's smaller chips
# fp32: sums of a few thousand terms; bf16: every element is rounded (2**-9) as d_logits and again as the gradient;
# fp16 has three bits more, of which one is left for sums that a GPU may round between its parts
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
BF16_LOSS = 1e-5  # exact inputs, fp32 logits; one rounding of a logit to bf16 would lose 3e-4
FEW = 2  # times these limits where there are few elements: all may be rounded the most, twice 2**-8 in bf16
FP64 = "torch cross entropy in fp64"
SPLIT = 4096  # how many entries of the vocabulary the fix takes at a time: cases lie at its ends, whatever it is


def refused() -> probe.Signature:
    """No kernels for this compute capability."""
    return probe.Signature("ValueError", r"Unsupported architecture: \d+", SOURCE)


def no_cutlass() -> probe.Signature:
    """Kernels for this compute capability that could not be imported."""
    return probe.Signature("AttributeError", r"blackwell\.entry' has no attribute 'forward'", SOURCE)


def relative(got: Tensor, want: Tensor) -> float:
    """Norm of the error over the norm of the fp64 reference."""
    return ((got.double() - want).norm() / want.norm()).item() if got.shape == want.shape else math.inf


@contextlib.contextmanager
def on_capability(p: probe.Probe, version: tuple[int, int]) -> Iterator[None]:
    """torch.cuda says ``version``; Megatron asks it once a process, so that answer is forgotten before and after."""
    fusion: Any = p.upstream(FUSION)
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: version),
    ):
        try:
            fusion.Platform._instance = None
            fusion._get_platform.cache_clear()
            yield
        finally:
            fusion.Platform._instance = None
            fusion._get_platform.cache_clear()


@contextlib.contextmanager
def warnings_of(version: tuple[int, int]) -> Iterator[list[str]]:
    """The warnings that name a compute capability, as loggers hand them on."""
    said: list[str] = []

    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and f"{version[0]}.{version[1]}" in record.getMessage():
            said.append(logger.name)

    with mock.patch.object(logging.Logger, "handle", handle):
        yield said


def problem(tokens: int, width: int, vocab: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [tokens, width] and weight [vocab, width] of logits with variance 4, labels [tokens] (some -100)."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(vocab, width, generator=generator) * 2 / width**0.5
    labels = torch.randint(vocab, (tokens,), generator=generator)
    labels[::5] = -100
    device = torch.cuda.current_device()
    return hidden.to(device, dtype), weight.to(device, dtype), labels.to(device)


def upstream_gradient(reduction: str, tokens: int, like: Tensor) -> Tensor:
    """As a loss mask would have it: a different weight for every token, or one for the reduced loss."""
    weights = torch.linspace(0.5, 1.5, tokens, device=like.device)
    return weights if reduction == "none" else weights[-1]


def reference(hidden: Tensor, weight: Tensor, labels: Tensor, reduction: str, ignore: int) -> list[Tensor]:
    """[loss, d_hidden, d_weight] by torch's own cross entropy in fp64."""
    h, w = (t.detach().double().requires_grad_() for t in (hidden, weight))
    loss = torch.nn.functional.cross_entropy(h @ w.t(), labels, reduction=reduction, ignore_index=ignore)
    grads = torch.autograd.grad(loss, [h, w], upstream_gradient(reduction, len(labels), loss).double())
    return [loss.detach(), *grads]


def fused(
    p: probe.Probe,
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    reduction: str,
    ignore: int,
    group: Any = None,
    sequence_parallel: bool = False,
) -> list[Tensor]:
    """[loss, d_hidden, d_weight] by Megatron's public function; d_hidden is inf where a tensor given is changed."""
    h, w = (t.detach().requires_grad_() for t in (hidden, weight))
    loss = p.upstream(FUSION).linear_cross_entropy(h, w, labels, group, reduction, ignore, sequence_parallel)
    gradient = upstream_gradient(reduction, labels.numel(), loss)
    given = [(t, t.detach().clone()) for t in (h, w, labels, gradient)]
    grads = torch.autograd.grad(loss, [h, w], gradient)
    for t, before in given:
        if not torch.equal(t, before):  # it is the caller's
            grads[0].fill_(math.inf)
    return [loss.detach(), *grads]


def compare(p: probe.Probe, case: str, got: list[Tensor], want: list[Tensor], scale: float = 1.0) -> None:
    """Check the relative errors of [loss, d_hidden, d_weight]; an error of a logit grows with its ``scale``."""
    for name, mine, true in zip(("loss", "d_hidden", "d_weight"), got, want, strict=True):
        limit = BF16_LOSS if name == "loss" else LIMIT[mine.dtype] * scale
        p.error(f"{case}: {name}", relative(mine, true), limit, reference=FP64)


def check_dispatch(p: probe.Probe) -> None:
    """Every capability gives a loss; 10.x takes its own kernels where they can be imported."""
    h, w, y = problem(8, 16, 32, torch.float32, p.seed)
    entry: Any = p.upstream(BLACKWELL)

    def foreign(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a kernel of 10.x on another capability")

    cutlass = importlib.util.find_spec("cutlass") and importlib.util.find_spec("cuda.bindings")
    for version in (*OTHERS, (10, 0), (10, 3)):
        case = f"capability {version[0]}.{version[1]}: loss and gradients"
        if version[0] == 10 and cutlass:
            p.skip(case, "cutlass is installed here, and its kernels need the real GPU")
            continue
        signature = no_cutlass() if version[0] == 10 else refused()
        there: dict[str, Any] = {} if version[0] == 10 else {"forward": foreign, "backward": foreign}
        with (
            mock.patch.multiple(entry, create=True, **there) if there else contextlib.nullcontext(),
            on_capability(p, version),
            warnings_of(version) as warned,
        ):
            got = p.attempt(case, partial(fused, p, h, w, y, "none", -100), signature)
            if got is not None:
                fused(p, h, w, y, "none", -100)
                p.error(f"{case}: warnings in two steps", len(warned), 1, reference="one at most that names it")
        if got is not None:
            worst = max(map(relative, got, reference(h, w, y, "none", -100)))
            p.error(f"{case}: largest error", worst, LIMIT[torch.float32], reference=FP64)
    kernels = (mock.sentinel.forward, mock.sentinel.backward)  # in place of the two compiled kernels
    with (
        mock.patch.multiple(entry, create=True, forward=kernels[0], backward=kernels[1]),
        on_capability(p, (10, 0)),
        warnings_of((10, 0)) as warned,
    ):
        platform = p.upstream(FUSION)._get_platform()
        taken = (platform.forward_func, platform.backward_func)
    p.guard("capability 10.0 with its kernels there takes others", taken != kernels, 0, reference="blackwell.entry")
    p.guard("capability 10.0 with its kernels there: warnings", len(warned), 0, reference="none")
    accepted = False
    with mock.patch.object(torch.cuda, "is_available", lambda: False), contextlib.suppress(AssertionError):
        accepted = bool(p.upstream(FUSION).Platform())
    p.guard("a host without CUDA is accepted", accepted, 0, reference="AssertionError")


def check_contract(p: probe.Probe) -> None:
    """Reductions, ignored labels, extreme logits and a vocabulary of any size at capability 9.0."""
    f32, bf16 = torch.float32, torch.bfloat16
    cases = [
        (f32, "none", -100, 5000, 1.0),
        (f32, "sum", -100, 5000, 1.0),
        (f32, "mean", -100, 5000, 1.0),
        (f32, "none", 7, 96, 1.0),
        (f32, "mean", -100, 4097, 100.0),
        (bf16, "none", -100, 5000, 1.0),
    ]
    for dtype, reduction, ignore, vocab, scale in cases:
        case = f"{str(dtype)[6:]} {reduction} ignore {ignore} vocabulary {vocab} logits x{scale:g}"
        h, w, y = problem(24, 64, vocab, dtype, p.seed)
        w = w * scale
        y = y.masked_fill(y == -100, ignore)
        with on_capability(p, (9, 0)):
            got = p.attempt(f"{case}: runs", partial(fused, p, h, w, y, reduction, ignore), refused())
        if got is None:
            continue
        compare(p, case, got, reference(h, w, y, reduction, ignore), scale)
        changed = [got[0].dtype != torch.float32, got[1].dtype != dtype, got[2].dtype != dtype]
        p.error(f"{case}: wrong dtypes", sum(changed), 0, reference="fp32 loss, gradients as their inputs")


def floors(h: Tensor, w: Tensor, y: Tensor, reduction: str, ignore: int) -> list[float]:
    """What [loss, d_hidden, d_weight] are of where no label is likely: true values far below are rounding errors."""
    gradient = upstream_gradient(reduction, len(y), h).expand(len(y))[y != ignore].norm().item()
    gradient /= (y != ignore).sum().item() if reduction == "mean" else 1
    rows = [t.double().norm().item() / len(t) ** 0.5 for t in (w, h)]  # of these a token's gradients are made
    return [len(y) ** {"none": 0.5, "sum": 1.0, "mean": 0.0}[reduction], *(max(gradient * row, 1e-3) for row in rows)]


def measure(
    p: probe.Probe,
    tokens: int = 6,
    batch: int = 0,
    width: int = 8,
    vocab: int = 9,
    dtype: str = "float32",
    reduction: str = "none",
    ignore: int = -100,
    every: int = 4,
    shift: float = 0.0,
) -> float:
    """The largest error of loss and gradients over its limit; inf for another shape or dtype.

    Hidden states are [tokens, batch, width] where ``batch`` is not 0; each ``every``-th label is ignored; ``shift`` is
    added to all logits. Labels begin with those at the ends of the vocabulary and of its first split.
    """
    count = tokens * (batch or 1)
    every = every or count + 1
    h, w, y = problem(count, width, vocab, getattr(torch, dtype), p.seed)
    ends = [e for e in (SPLIT - 1, SPLIT, vocab - 1, 0) if e < vocab][:count]
    y.clamp_min_(0)[: len(ends)] = torch.tensor(ends, device=y.device)
    y[every - 1 :: every] = ignore
    if shift:
        h[:, 0], w[:, 0] = shift, 1  # both exact in bf16
    reduction = "sum" if reduction == "mean" and not (y != ignore).any() else reduction  # the mean of nothing is NaN
    want, least = reference(h, w, y, reduction, ignore), floors(h, w, y, reduction, ignore)
    shaped = (h.view(tokens, batch, width), y.view(tokens, batch)) if batch else (h, y)
    got = fused(p, shaped[0], w, shaped[1], reduction, ignore)
    right = [(torch.float32, want[0].shape), (h.dtype, shaped[0].shape), (w.dtype, w.shape)]
    if [(t.dtype, t.shape) for t in got] != right:
        return math.inf
    parts = zip(got, want, least, strict=True)
    errors = [(mine.flatten() - true.flatten()).norm() / true.norm().clamp_min(floor) for mine, true, floor in parts]
    return max(float(e) / limit for e, limit in zip(errors, (BF16_LOSS, *2 * [LIMIT[h.dtype]]), strict=True))


EDGES: dict[str, dict[str, Any]] = {
    "1 token, width 1, vocabulary 1": {"tokens": 1, "width": 1, "vocab": 1, "every": 0},
    "one entry behind two splits": {"vocab": 2 * SPLIT + 1, "reduction": "sum"},
    "batch of 3": {"batch": 3, "vocab": 5000},
    "all labels ignored": {"every": 1},
    "ignore -1": {"ignore": -1, "vocab": 5000},
    "ignore 4096": {"ignore": SPLIT, "vocab": 5000, "reduction": "mean"},
    "logits near -120": {"shift": -120.0, "dtype": "bfloat16", "vocab": 5000},  # fp32 has no exp of these
    "float16": {"dtype": "float16", "vocab": 5000, "tokens": 24, "width": 64},
}


def check_edges(p: probe.Probe) -> None:
    """Where loops, masks and shapes end; then what nobody can foresee, one case after the other in one process."""
    from hypothesis import strategies as st

    with on_capability(p, (9, 0)):
        for name, case in EDGES.items():
            off = p.attempt(f"{name}: runs", partial(measure, p, **case), refused())
            if off is not None:
                p.error(f"{name}: largest error over its limit", off, FEW, reference=FP64)
        vocabularies = st.one_of(st.integers(1, 64), st.integers(SPLIT - 2, SPLIT + 2), st.integers(65, 9000))
        space = {
            "tokens": st.integers(1, 24),
            "batch": st.integers(0, 3),
            "width": st.integers(1, 40),
            "vocab": vocabularies,
            "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
            "reduction": st.sampled_from(["none", "sum", "mean"]),
            "every": st.integers(0, 5),
            "ignore": st.sampled_from([-100, -1, 0, 7, SPLIT - 1]),
        }
        if off is not None:
            p.drawn(
                "drawn: largest error over its limit",
                partial(measure, p),
                FEW,
                space=space,
                count=60,
                reference=FP64,
                bug_above=1e3,
            )


def check_partial(p: probe.Probe) -> None:
    """One of hidden and weight is frozen; labels that the model is sure of."""
    h, w, y = problem(24, 64, 5000, torch.float32, p.seed)
    want = reference(h, w, y, "none", -100)
    for name, at in (("hidden", 1), ("weight", 2)):
        case, leaves = f"only {name} wants a gradient", [h.clone(), w.clone()]
        leaves[at - 1].requires_grad_()
        with on_capability(p, (9, 0)):
            call = partial(p.upstream(FUSION).linear_cross_entropy, *leaves, y, None, "none", -100, False)
            loss = p.attempt(f"{case}: runs", call, refused())
            if loss is None:
                return
            loss.backward(upstream_gradient("none", len(y), loss))
        grads = [leaf.grad for leaf in leaves]
        wrong = sum((grad is None) == (number == at) for number, grad in enumerate(grads, 1))
        p.error(f"{case}: gradients that are missing or too many", wrong, 0, reference="one")
        if (grad := grads[at - 1]) is not None:
            p.error(f"{case}: it", relative(grad, want[at]), LIMIT[torch.float32], reference=FP64)
    h, w, y = problem(24, 64, 640, torch.bfloat16, p.seed)
    y = torch.arange(24, device=y.device) * 20
    w[y] = (h.double() * 13 / h.double().square().sum(1, keepdim=True)).to(w.dtype)  # probabilities of 0.98 or so
    with on_capability(p, (9, 0)):
        got, want = fused(p, h, w, y, "none", -100), reference(h, w, y, "none", -100)
    for name, mine, true in zip(("d_hidden", "d_weight"), got[1:], want[1:], strict=True):
        p.error(f"sure labels: {name}", relative(mine, true), LIMIT[torch.bfloat16], reference=FP64)


def check_more(p: probe.Probe) -> None:
    """The mean of no label, which is NaN or 0 and ends nothing; calls that overlap; operators of a large vocabulary."""
    h, w, y = problem(6, 8, 5000, torch.float32, p.seed)
    with on_capability(p, (9, 0)):
        got = p.attempt(
            "mean of no label: runs", partial(fused, p, h, w, torch.full_like(y, -100), "mean", -100), refused()
        )
        if got is None:
            return
        beyond = [got[0].isinf().any(), *(~(part.isnan() | (part == 0)).all() for part in got)]
        p.error("mean of no label: neither NaN nor 0", sum(map(bool, beyond)), 0, reference="0 over 0")
        cases = [problem(24, 16, 5000, torch.float32, p.seed + at) for at in range(2)]
        leaves = [[t.detach().requires_grad_() for t in case[:2]] for case in cases]
        losses = [
            p.upstream(FUSION).linear_cross_entropy(*mine, case[2], None, "none", -100, False)
            for mine, case in zip(leaves, cases, strict=True)
        ]
        for name, case, mine, loss in zip(("first", "second"), cases, leaves, losses, strict=True):
            grads = torch.autograd.grad(loss, mine, upstream_gradient("none", 24, loss))
            want = reference(*case, "none", -100)
            compare(p, f"two calls before their backward, the {name}", [loss.detach(), *grads], want)
        vocabulary = 65536
        h, w, y = problem(8, 16, vocabulary, torch.float32, p.seed)
        compare(p, f"vocabulary {vocabulary}", fused(p, h, w, y, "none", -100), reference(h, w, y, "none", -100))
        count = p.operators(partial(fused, p, h, w, y, "none", -100)).count
        # splits of 4,096 entries take some 500, of 16 entries 100,000
        p.error(
            f"operators for a vocabulary of {vocabulary}", count, 5000, reference="parts of a thousand entries or more"
        )


def check_entries(p: probe.Probe, name: str = "") -> None:
    """The dispatcher's two functions: what they return, refuse and default to, as Blackwell's do."""
    h, w, y = problem(24, 64, 9000, torch.float32, p.seed + 10 + p.rank.number)
    refusals = {
        "labels of another number": partial(fused, p, h, w, y[:-1], "none", -100),
        "another reduction": partial(fused, p, h, w, y, "max", -100),
    }
    with on_capability(p, (9, 0)):
        found = p.attempt(f"entry points{name}: found", p.upstream(FUSION)._get_platform, refused())
        for case, call in refusals.items():
            p.attempt(f"{case} refused{name}", partial(must_refuse, call), refused())
    if found is None:
        return
    loss, maximum, total, valid, rank, size, hidden = found.forward_func(h, w, y)
    wrong = [
        (rank, size) != (0, 1),
        (valid.dtype, valid.shape) != (torch.int64, ()),
        int(valid) != (y != -100).sum(),
        hidden.data_ptr() != h.data_ptr(),
        {maximum.dtype, total.dtype} != {torch.float32},
    ]
    p.error(f"entry points{name}: wrong beside the loss", sum(wrong), 0, reference="blackwell.entry")
    want, gradient = reference(h, w, y, "mean", -100), upstream_gradient("mean", len(y), h)
    for case in ("defaults", "backward again"):  # with the same gradient
        grads = found.backward_func(gradient, hidden, w, y, maximum, total, valid)
        compare(p, f"entry points{name}, {case}", [loss, *grads], want)


def must_refuse(call: Any) -> bool:
    """True where ``call`` raises, as Blackwell's entry does, by anything but for want of kernels."""
    try:
        call()
    except Exception as error:
        if refused().matches(error):
            raise
        return True
    raise RuntimeError("it was accepted")


def check_sums(p: probe.Probe, name: str = "", group: Any = None) -> None:
    """bf16 where each of 8 splits adds some 0.16 to a d_hidden that ends near 0.05: sums in bf16 would lose 2**-6."""
    h, w, y = problem(4, 16, 8 * SPLIT, torch.bfloat16, p.seed)
    w.copy_(1 + torch.rand(w.shape, generator=torch.Generator().manual_seed(p.seed)) / 2)
    w[y.clamp_min_(0)] = 1.203125  # exact in bf16
    w[:, 0], h[:, 0], h[:, 1:] = 0.5, 1, 0  # all logits are 0.5: every probability is a power of two, exact in bf16
    want, (size, rank) = reference(h, w, y, "sum", -100), (group.size(), group.rank()) if group else (1, 0)
    with on_capability(p, (9, 0)):
        call = partial(fused, p, h, w.chunk(size)[rank], y, "sum", -100, group)
        got = p.attempt(f"bf16 sums over 8 splits{name}: runs", call, refused())
    if got is not None:
        compare(p, f"bf16 sums over 8 splits{name}", got, [*want[:2], want[2].chunk(size)[rank]])


def check_rank(p: probe.Probe, rank: int) -> None:
    """A rank in a group of two, then in one of all: each of a group's ranks has its part of the vocabulary."""
    p.megatron_cpu(tensor_model_parallel_size=2)
    cases = (
        ("none", False, 1.0, -100, 0),
        ("mean", False, 1.0, -100, 0),
        ("none", True, 1.0, -100, 0),
        ("none", False, 100.0, -100, 0),
        ("sum", True, 1.0, 4499, 2),
        ("mean", True, 1.0, 4500, 2),
    )
    group = check_group(p, rank, 2, cases)
    check_alone(p, f"rank {rank} of {p.rank.world}", group)
    check_sums(p, f", rank {rank} of {p.rank.world}", group)
    if p.rank.world > 2:
        parallel = p.upstream("megatron.core.parallel_state")
        parallel.destroy_model_parallel()
        parallel.initialize_model_parallel(tensor_model_parallel_size=p.rank.world)
        check_group(p, rank, p.rank.world, cases[2:3])


def check_group(p: probe.Probe, rank: int, size: int, cases: Iterable[tuple[str, bool, float, int, int]]) -> Any:
    """Parts of the vocabulary, with sequence parallel of the tokens too. Each group has a batch. Returns the group."""
    group, place = p.upstream("megatron.core.parallel_state").get_tensor_model_parallel_group(), rank % size
    if p.lane == "cpu":  # where one rank fails, the others must not wait for it for as long as gloo does
        torch.distributed.distributed_c10d._set_pg_timeout(datetime.timedelta(minutes=1), group)
    for number, (reduction, split_tokens, scale, ignore, batch) in enumerate(cases):
        h, w, y = problem(24, 64, 9000, torch.float32, p.seed + rank // size)
        w, y = w * scale, y.masked_fill(y == -100, ignore)
        ends = [0, 4499, 4500, 8999, SPLIT - 1, SPLIT, 4499 + SPLIT, 4500 + SPLIT]  # of two ranks, and of their splits
        y[1:9] = torch.tensor(ends, device=y.device)
        y = y.where(y < 0, y % 4500) if number == 1 else y  # then rank 1 has no label
        kind = "tensor and sequence" if split_tokens else "tensor"
        case = f"{kind} parallel {reduction}{f' {number}' if number > 2 else ''}{f' by {size}' if size > 2 else ''}"
        case += f", rank {rank} of {p.rank.world}"
        mine, labels = (h.view(12, 2, 64), y.view(12, 2)) if batch else (h, y)
        mine = mine.chunk(size)[place] if split_tokens else mine
        with on_capability(p, (9, 0)), warnings_of((9, 0)) as warned, late_collectives():
            call = partial(fused, p, mine, w.chunk(size)[place], labels, reduction, ignore, group, split_tokens)
            got = p.attempt(f"{case}: runs", call, refused())
        if got is None:
            continue
        loss, dh, dw = reference(h, w, y, reduction, ignore)
        got[1] = got[1].flatten(0, -2)
        want = [loss, dh.chunk(size)[place] if split_tokens else dh, dw.chunk(size)[place]]
        compare(p, case, got, want, scale)
        p.error(f"{case}: warnings", len(warned), int(rank == 0), reference="one at most, of rank 0")
    return group


def rank_on_cpu(p: probe.Probe, rank: int) -> None:
    """The same in this rank's process alone, as on the CPU lane."""
    p.lane = "cpu"
    check_rank(p, rank)


def check_alone(p: probe.Probe, name: str, group: Any) -> None:
    """Without a group each rank is for itself, whatever it is told of sequences; and what the entries default to."""
    check_entries(p, f", {name}")
    h, w, y = problem(24, 64, 9000, torch.float32, p.seed + 10 + p.rank.number)
    case = f"without a group, sequence parallel, {name}"
    with on_capability(p, (9, 0)):
        got = p.attempt(f"{case}: runs", partial(fused, p, h, w, y, "mean", -100, None, True), refused())
        if got is None:
            return
        compare(p, case, got, reference(h, w, y, "mean", -100))
        found = p.upstream(FUSION)._get_platform()
    h, w, y = problem(24, 64, 9000, torch.float32, p.seed + p.rank.number // 2)
    (loss, dh, dw), part = reference(h, w, y, "mean", -100), w.chunk(2)[group.rank()]
    made, maximum, total, valid, rank, size, hidden = found.forward_func(h, part, y, group)
    gradient = upstream_gradient("mean", len(y), h)
    grads = found.backward_func(gradient, hidden, part, y, maximum, total, valid, "mean", -100, group, rank, size)
    compare(p, f"entry points of a group, defaults, {name}", [made, *grads], [loss, dh, dw.chunk(2)[group.rank()]])


class Late:
    """A collective that nobody has waited for: it ends when somebody does, as late as a backend may end it."""

    def __init__(self, end: Any) -> None:
        self.end, self.ended = end, False

    def wait(self, *timeout: Any) -> bool:
        if not self.ended:
            self.end()
            self.ended = True
        return True

    def is_completed(self) -> bool:
        return self.ended


@contextlib.contextmanager
def late_collectives() -> Iterator[None]:
    """Collectives that are asked for without waiting end at ``wait`` and not before."""

    def late(function: Any) -> Any:
        def called(*args: Any, async_op: bool = False, **named: Any) -> Any:
            end = partial(function, *args, **named)
            return Late(end) if async_op else end()

        return called

    names = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
    there = {name: late(getattr(torch.distributed, name)) for name in names}
    with mock.patch.multiple(torch.distributed, **there):
        yield


class Largest(TorchDispatchMode):
    """The most elements that any single tensor made under it has; and how many tensors should not be there.

    ``strays``: in fp64, or on another device than the GPU, where there is one; ``widened``: fp32 products.
    """

    elements = strays = widened = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        tensors = [t for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, Tensor)]
        self.elements = max(self.elements, *(t.numel() for t in tensors), 0)
        home = "cuda" if torch.cuda.device_count() else "cpu"
        self.strays += sum(t.dtype == torch.float64 or t.device.type != home for t in tensors)
        self.widened += str(function).startswith("aten.mm.") and args[0].dtype == torch.float32
        return made


def module(p: probe.Probe, weight: Tensor) -> Any:
    """Megatron's output layer for the fused loss, as GPTModel builds it."""
    config = p.upstream("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=1,
        hidden_size=weight.shape[1],
        num_attention_heads=1,
        cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="linear",
        gradient_accumulation_fusion=False,
        params_dtype=weight.dtype,
        use_cpu_initialization=True,
        perform_initialization=False,
    )
    layers = p.upstream("megatron.core.transformer.linear_cross_entropy")
    layer = layers.LinearCrossEntropyModule(
        weight.shape[1],
        weight.shape[0],
        config=config,
        init_method=lambda w: w,
        bias=False,
        skip_bias_add=False,
        gather_output=False,
    )
    layer.to(weight.device)
    layer.weight.data.copy_(weight)
    return layer


def run_module(p: probe.Probe, impl: str, layer: Any, hidden: Tensor, labels: Tensor) -> list[Tensor]:
    """[loss [tokens], d_hidden, d_weight] of the output layer with ``impl``; hidden [s, b, h], labels [b, s]."""
    h = hidden.detach().requires_grad_()
    if impl == "linear":
        loss = layer(h, labels=labels, output_cross_entropy_loss=True)  # [b, s]
    else:  # as LanguageModule.compute_language_model_loss does under impl "native"
        native = p.upstream("megatron.core.fusions.fused_cross_entropy").fused_vocab_parallel_cross_entropy
        loss = native(layer(h)[0], labels.t().contiguous(), layer.tp_group).t()
    gradient = upstream_gradient("none", labels.numel(), loss).view_as(loss)
    grads = torch.autograd.grad(loss, [h, layer.weight], gradient)
    return [loss.detach().flatten(), grads[0].flatten(0, 1), grads[1]]


def check_module(p: probe.Probe, tokens: int, width: int, vocab: int) -> None:
    """bf16 through the real output layer: fused against fp64 and against impl "native", with what each costs."""
    hidden, weight, labels = problem(tokens, width, vocab, torch.bfloat16, p.seed)
    labels = labels.clamp_min(0)  # native knows no ignored label
    layer, want = module(p, weight), reference(hidden, weight, labels, "none", -100)
    args = (layer, hidden[:, None], labels[None])  # [s, 1, h], [1, s]
    native = partial(run_module, p, "native", *args)
    # native's logits are rounded to bf16 (2**-9 of up to 8) before the loss
    for name, mine, true in zip(("loss", "d_hidden", "d_weight"), native(), want, strict=True):
        p.guard(f"native {name}", relative(mine, true), 1e-2, reference=FP64)
    call = partial(run_module, p, "linear", *args)
    with on_capability(p, (9, 0)) if p.lane == "cpu" else contextlib.nullcontext():  # a GPU speaks for itself
        got = p.attempt("fused loss of the output layer: runs", call, refused())
        if got is None:
            return
        compare(p, "fused output layer", got, want)
        with Largest() as seen:
            call()
        p.error("fused: tensors in fp64 or on another device", seen.strays, 0, reference="none, as on Blackwell")
        p.error("fused: waits of the host", p.waits(call).total(), 0, reference="none: no value decides")
        if p.lane == "cuda":
            p.error("fused: products of fp32 copies", seen.widened, 0, reference="bf16 inputs, as tensor cores take")
            cost_on_gpu(p, call, native, layer, hidden)
        else:
            p.skip("fused: products of fp32 copies", "on a CPU torch has no product of bf16 that it returns in fp32")
            cost_on_cpu(p, call, native, layer, hidden)


def cost_on_cpu(p: probe.Probe, call: Any, native: Any, layer: Any, hidden: Tensor) -> None:
    shares = {}
    for name, run in (("fused", call), ("native", native)):
        with Largest() as seen:
            run()
        shares[name] = seen.elements / (hidden.shape[0] * layer.weight.shape[0])
    p.error("fused: largest tensor, share of the logits", shares["fused"], 0.5, reference="[tokens, vocabulary]")
    p.note("native: largest tensor, share of the logits", shares["native"])


def cost_on_gpu(p: probe.Probe, call: Any, native: Any, layer: Any, hidden: Tensor) -> None:
    """Peak bytes over what is there before the call, and the median time of forward with backward."""
    peaks = {}
    for name, run in (("fused", call), ("native", native)):
        run()
        torch.cuda.synchronize()
        rest = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peaks[name] = (torch.cuda.max_memory_allocated() - rest) / 2**30
        times = []
        for _ in range(11):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        p.note(f"{name}: forward and backward, median of 11", statistics.median(times), unit="ms")
    gradients = (layer.weight.numel() + hidden.numel()) * 2
    logits = hidden.shape[0] * layer.weight.shape[0] * 2
    p.error(
        "fused: peak over its inputs",
        peaks["fused"],
        (gradients + logits) / 2**30,
        unit="GiB",
        reference="both gradients and the whole logits in bf16",
    )
    p.note("native: peak over its inputs", peaks["native"], unit="GiB")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``: without a GPU Megatron is told of one of capability 9.0."""
    p.megatron_cpu()
    if p.lane == "cpu":
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_capability = lambda device=None: (9, 0)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # native's elementwise functions: compiling them takes longer
        p.upstream(FUSION)  # once, for all ranks
        p.ranks(4, partial(check_rank, p))  # of four, a group of two is not the default one
    elif torch.cuda.device_count() > 1:
        p.ranks(2, partial(check_rank, p))
    else:
        p.skip("tensor parallel on GPUs", "needs two; ranks run as on the CPU lane")
        p.ranks(4, partial(rank_on_cpu, p))
    p.megatron_cpu()
    check_dispatch(p)
    check_contract(p)
    check_edges(p)
    check_partial(p)
    check_more(p)
    check_entries(p)
    check_sums(p)
    check_module(p, *((4096, 3584, 65536) if p.lane == "cuda" else (64, 16, 16384)))


if __name__ == "__main__":
    probe.main(reproduce, pack=10, package="megatron", minimal=minimal, prepare=prepare)
