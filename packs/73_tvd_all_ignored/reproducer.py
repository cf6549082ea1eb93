# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's total variation distance has no loss for a batch of which every row is ignored: it divides by their count, 0.

Reductions "batchmean" and "mean" divide by the number of rows that count. From 0.8.1 on the host divides and ends in
ZeroDivisionError; before, loss and gradients are NaN. Such a batch comes with a mask of prompts, packing or padding.
Liger's other losses give 0 for it, with gradients of 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """The loss of rows that are all ignored."""
    import torch
    from liger_kernel.transformers.tvd import LigerTVDLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    student, teacher = (torch.randn(4, 16, device=device).softmax(-1) for _ in range(2))
    labels = torch.full((4,), -100, device=device)
    loss = LigerTVDLoss()(student.requires_grad_(), teacher, labels)
    print("loss of no row:", loss.item(), "should be 0")
    assert loss == 0


FP64 = "eager fp64"
# fp32: sums of at most 6 x 70 terms at 2**-23; bf16: probabilities are read exactly, a gradient is a rounded scale
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}
NONE = 1.0  # an error that stands for no number
REDUCTIONS = ("batchmean", "mean", "sum", "none")
Call = Callable[[Tensor, Tensor, "Tensor | None", str, int], Tensor]


def reference(p: Tensor, q: Tensor, labels: Tensor | None, reduction: str, ignore: int) -> Tensor:
    """The loss in fp64: [BT, V] for "none", else []; 0 where no row counts."""
    kept = torch.ones(len(p), dtype=torch.bool, device=p.device) if labels is None else labels != ignore
    each = 0.5 * (p - q.double()).abs() * kept[:, None]
    if reduction == "none":
        return each
    count = kept.sum().clamp(min=1)
    return each.sum() / {"sum": 1, "batchmean": count, "mean": count * p.shape[-1]}[reduction]


def errors(call: Call, case: tuple[Tensor, Tensor, Tensor | None, str, int], scale: float = 1.0) -> dict[str, float]:
    """Error of loss and gradient over their largest entry, as they are where that is 0; NONE for what is no number."""
    p, q, labels, reduction, ignore = case
    wide, leaf = p.detach().double().requires_grad_(), p.detach().clone().requires_grad_()
    want = reference(wide, q, labels, reduction, ignore)
    (gradient,) = torch.autograd.grad(want.sum() * scale, wide)
    try:
        loss = call(leaf, q, labels, reduction, ignore)
    except ZeroDivisionError:
        return {"loss": NONE, "gradient": NONE}
    (got,) = torch.autograd.grad(loss.sum() * scale, leaf, allow_unused=True)
    found = {}
    for name, g, w in (("loss", loss.detach(), want.detach()), ("gradient", got, gradient)):
        if g is None or g.shape != w.shape or not g.isfinite().all():
            found[name] = NONE
        else:
            found[name] = ((g.double() - w).abs().max() / (w.abs().max().item() or 1.0)).item()
    return found


def distributions(tokens: int, vocab: int, device: str, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Two sets of rows [BT, V]."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(tokens, vocab, generator=generator).softmax(-1).to(device, dtype) for _ in range(2))
    return p, q


def labelled(tokens: int, counting: int, ignore: int, device: str) -> Tensor:
    """Labels [BT] of which the last ``counting`` count."""
    labels = torch.arange(tokens, device=device) + 1
    labels[: tokens - counting] = ignore
    return labels


def rows(p: probe.Probe, call: Call, device: str, dtype: torch.dtype, sizes: tuple[int, int], label: str = "") -> None:
    """No row, one, and some count; none has a label; another index is ignored."""
    tokens, vocab = sizes
    one, other = distributions(tokens, vocab, device, dtype, p.seed)
    for reduction in REDUCTIONS:
        for ignore in (-100, 7_000_000):
            for scale in (1.0, -0.3):
                for counting in (0, 1, 2, tokens):
                    case = (one, other, labelled(tokens, counting, ignore, device), reduction, ignore)
                    for name, value in errors(call, case, scale).items():
                        full = f"{label}{reduction}, {counting} of {tokens} rows, not {ignore}, times {scale}: {name}"
                        if counting == 0 and reduction in ("batchmean", "mean"):
                            p.error(full, value, 0, reference="0", bug_above=NONE)
                        else:
                            p.guard(full, value, LIMITS[dtype], reference=FP64)
        for name, value in errors(call, (one, other, None, reduction, -100)).items():
            p.guard(f"{label}{reduction}, no labels: {name}", value, LIMITS[dtype], reference=FP64)


def graph(p: probe.Probe, call: Call, device: str, dtype: torch.dtype) -> None:
    """A loss of no row is one like any other: it adds up, comes without gradients, and tells its kind."""
    one, other = distributions(5, 18, device, dtype, p.seed)
    kind = str(dtype).removeprefix("torch.")
    for reduction in ("batchmean", "mean"):
        none, some = labelled(5, 0, -100, device), labelled(5, 3, -100, device)
        leaf, wide = one.clone().requires_grad_(), one.double().requires_grad_()
        (want,) = torch.autograd.grad(reference(wide, other, some, reduction, -100), wide)
        try:
            (got,) = torch.autograd.grad(
                sum(call(leaf, other, labels, reduction, -100) for labels in (some, none)), leaf
            )
            off = ((got.double() - want).abs().max() / want.abs().max()).item() if got.isfinite().all() else NONE
        except ZeroDivisionError:
            off = NONE
        name = f"{kind}, {reduction}: gradient beside a batch that counts"
        p.error(name, off, LIMITS[dtype], reference=FP64, bug_above=NONE)
        normal = call(leaf, other, some, reduction, -100)
        for mode in (True, False):
            with torch.set_grad_enabled(mode):
                try:
                    loss = call(leaf, other, none, reduction, -100)
                    same = (loss.dtype, loss.shape, loss.device) == (normal.dtype, normal.shape, normal.device)
                    off = float(not same or loss.requires_grad != mode or bool((loss != 0).any()))
                except ZeroDivisionError:
                    off = NONE
            p.error(f"{kind}, {reduction}: its kind, gradients {mode}", off, 0, reference="a loss", bug_above=NONE)
        held = [t.clone() for t in (one, other, none)]
        torch.use_deterministic_algorithms(True)  # memory that nothing has written to is NaN
        try:
            off = max(errors(call, (one, other, none, reduction, -100)).values())
        finally:
            torch.use_deterministic_algorithms(False)
        p.error(f"{kind}, {reduction}: memory that holds NaN", off, 0, reference="0", bug_above=NONE)
        kept = all(torch.equal(a, b) for a, b in zip(held, (one, other, none), strict=True))
        p.guard(f"{kind}, {reduction}: arguments written to", not kept, 0, reference="as they were")
    leaf = one.clone().requires_grad_()
    loss = call(leaf, other, labelled(5, 3, -100, device), "batchmean", -100)
    twice = [torch.autograd.grad(loss, leaf, retain_graph=True)[0].clone() for _ in range(2)]
    p.guard(f"{kind}: second backward", (twice[0] - twice[1]).abs().max().item(), 0, reference="the first")


def drawn(p: probe.Probe, call: Call, device: str) -> None:
    """Any size and ignored index; rows that count or not."""

    def measure(tokens: int, vocab: int, counting: int, reduction: str, ignore: int, scale: float, seed: int) -> float:
        one, other = distributions(tokens, vocab, device, torch.float32, seed)
        labels = labelled(tokens, min(counting, tokens), ignore, device)
        return max(errors(call, (one, other, labels, reduction, ignore), scale).values())

    space: dict[str, Any] = {
        "tokens": st.integers(1, 6),
        "vocab": st.integers(2, 70),
        "ignore": st.sampled_from([-100, -1, 0]),
        "scale": st.sampled_from([1.0, 2.0, -1.0]),
        "seed": st.integers(0, 9999),
    }
    means = st.sampled_from(["batchmean", "mean"])
    none = {**space, "counting": st.just(0), "reduction": means}
    p.drawn("drawn, no row counts", measure, 0, space=none, count=8, reference="0", bug_above=NONE)
    some = {**space, "counting": st.integers(1, 6), "reduction": st.sampled_from(REDUCTIONS)}
    p.drawn("drawn, rows count", measure, 1e-5, space=some, count=16, reference=FP64)


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; fp32 and bf16, compiled, a vocabulary of several blocks on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    apply = p.upstream("liger_kernel.ops.tvd").LigerTVDLossFunction.apply
    module = p.upstream("liger_kernel.transformers.tvd").LigerTVDLoss
    functional = p.upstream("liger_kernel.transformers.functional").liger_tvd
    rows(p, apply, device, torch.float32, (4, 19))
    graph(p, functional, device, torch.float32)
    drawn(p, lambda a, b, labels, reduction, ignore: module(reduction, ignore)(a, b, labels), device)
    if p.lane == "cuda":
        graph(p, functional, device, torch.bfloat16)
        for dtype in (torch.float32, torch.bfloat16):
            rows(p, apply, device, dtype, (128, 50_000), f"128 x 50000, {dtype}: ".replace("torch.", ""))


if __name__ == "__main__":
    probe.main(reproduce, pack=73, package="liger_kernel", minimal=minimal, prepare=prepare)
