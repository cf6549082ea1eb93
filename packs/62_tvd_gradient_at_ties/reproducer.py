# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's total variation distance has a gradient where both distributions are equal.

The derivative of ``0.5 * |p - q|`` is 0 at ``p == q``, for torch and by symmetry. Liger takes what is not ``p > q`` for
``p < q``. Distributions are equal wherever a student begins as its teacher, and at entries of a padded or masked
vocabulary, which are 0 in both: each is pushed up by half the scale of the loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """The gradient of a student that is its teacher."""
    import torch
    from liger_kernel.transformers.tvd import LigerTVDLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = torch.randn(4, 16, device=device).softmax(-1)
    student = teacher.clone().requires_grad_()
    LigerTVDLoss()(student, teacher).backward()
    print("largest number of the gradient:", student.grad.abs().max().item(), "should be 0")
    assert not student.grad.any()


FP64 = "eager fp64"
# a gradient is 0 or half the scale: exact but for the scale's rounding to the dtype, 2**-8 of it in bf16
LIMITS = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8}
BUG = 0.9  # errors are divided by half the scale: a tie with a gradient is off by 1
IGNORE = -100


def reference(p: Tensor, q: Tensor, labels: Tensor | None, reduction: str) -> tuple[Tensor, float]:
    """(gradient of p [BT, V] for the sum of the loss, half the scale) in fp64."""
    kept = torch.ones(len(p), dtype=torch.bool, device=p.device) if labels is None else labels != IGNORE
    count = max(int(kept.sum()), 1)
    scale = {"batchmean": 1 / count, "mean": 1 / (count * p.shape[-1])}.get(reduction, 1.0)
    leaf = p.detach().double().requires_grad_()
    loss = (0.5 * (leaf - q.double()).abs() * kept[:, None]).sum() * scale
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, 0.5 * scale


def measured(function: Any, p: Tensor, q: Tensor, labels: Tensor | None, reduction: str) -> Tensor:
    """|gradient - reference| [BT, V] over half the scale."""
    leaf = p.detach().clone().requires_grad_()
    (got,) = torch.autograd.grad(function.apply(leaf, q, labels, reduction, IGNORE).sum(), leaf)
    want, half = reference(p, q, labels, reduction)
    return (got.double() - want).abs() / half


def distributions(
    tokens: int, vocab: int, ties: float, device: str, dtype: torch.dtype, seed: int
) -> tuple[Tensor, Tensor]:
    """Two sets of rows, of which the last ``ties`` of the vocabulary are equal: half of those are 0, as of padding."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(tokens, vocab, generator=generator).softmax(-1).to(dtype) for _ in range(2))
    tied = round(ties * vocab)
    if tied:
        p[:, -tied:] = q[:, -tied:]
        p[:, vocab - tied // 2 :] = q[:, vocab - tied // 2 :] = 0
    return p.to(device), q.to(device)


def ties(p: probe.Probe, function: Any, tokens: int, vocab: int, device: str, dtype: torch.dtype, label: str) -> None:
    """Errors at ties and beside them, for each reduction, with labels and without."""
    labels = torch.arange(tokens, device=device)
    labels[1::3] = IGNORE
    for reduction in ("batchmean", "mean", "sum", "none"):
        for name, fraction in (("a student that is its teacher", 1.0), ("a padded vocabulary", 0.25)):
            one, other = distributions(tokens, vocab, fraction, device, dtype, p.seed)
            for with_labels in (False, True):
                off = measured(function, one, other, labels if with_labels else None, reduction)
                full = f"{label}{reduction}, {name}{', labels' if with_labels else ''}"
                tied = one == other
                p.error(full, off[tied].max().item(), LIMITS[dtype], reference=FP64, bug_above=BUG)
                if fraction < 1:
                    beside = off[~tied].max().item()
                    p.guard(f"{full}: gradient beside ties", beside, LIMITS[dtype], reference=FP64)
        one, other = distributions(tokens, vocab, 0.25, device, dtype, p.seed)
        loss = function.apply(one, other, None, reduction, IGNORE).sum().item()
        want = 0.5 * (one.double() - other.double()).abs().sum()
        want = want * reference(one, other, None, reduction)[1] * 2
        p.guard(f"{label}{reduction}: loss", abs(loss / want.item() - 1), 1e-2, reference=FP64)


def module(p: probe.Probe, device: str) -> None:
    """The module, and a step of a student that begins as its teacher: it should stay there."""
    loss_of = p.upstream("liger_kernel.transformers.tvd").LigerTVDLoss()
    teacher = torch.randn(6, 32, generator=torch.Generator().manual_seed(p.seed)).to(device)
    logits = teacher.clone().requires_grad_()
    probabilities = logits.softmax(-1)
    probabilities.retain_grad()
    loss = loss_of(probabilities, teacher.softmax(-1))
    (2 * loss).backward()
    assert probabilities.grad is not None
    off = probabilities.grad.abs().max().item() * len(teacher)  # twice half of 1 over the tokens
    p.error("module, times 2: a student that is its teacher", off, 1e-6, reference=FP64, bug_above=BUG)


def drawn(p: probe.Probe, function: Any, device: str) -> None:
    """Any size, reduction and number of ties."""

    def measure(tokens: int, vocab: int, tied: int, reduction: str, ignored: int, seed: int) -> float:
        fraction = (1 + tied % vocab) / vocab
        one, other = distributions(tokens, vocab, fraction, device, torch.float32, seed)
        labels = torch.arange(tokens, device=device)
        labels[1 : 1 + ignored] = IGNORE
        return measured(function, one, other, labels, reduction).max().item()

    sizes = {"tokens": st.integers(1, 6), "vocab": st.integers(2, 70), "tied": st.integers(0, 69)}
    reductions = st.sampled_from(["batchmean", "mean", "sum", "none"])
    space = {**sizes, "reduction": reductions, "ignored": st.integers(0, 4), "seed": st.integers(0, 9999)}
    p.drawn("drawn ties", measure, 1e-5, space=space, count=16, reference=FP64, bug_above=BUG)


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; fp32 and bf16, compiled, a vocabulary of several blocks on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    function = p.upstream("liger_kernel.ops.tvd").LigerTVDLossFunction
    device = "cpu" if p.lane == "cpu" else "cuda"
    ties(p, function, 5, 48, device, torch.float32, "")
    module(p, device)
    drawn(p, function, device)
    if p.lane == "cuda":
        for dtype in (torch.float32, torch.bfloat16):
            ties(p, function, 512, 50_000, device, dtype, f"512 x 50000, {dtype}: ".replace("torch.", ""))


if __name__ == "__main__":
    probe.main(reproduce, pack=62, package="liger_kernel", minimal=minimal, prepare=prepare)
