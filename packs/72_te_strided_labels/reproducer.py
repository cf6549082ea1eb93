# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "triton==3.6.0", "numpy<2.4", "einops", "pydantic", "hypothesis", "transformer-engine"]
# ///
"""Transformer Engine's parallel_cross_entropy reads the wrong labels where rows of labels are slices of longer ones.

Its kernels take the labels [B, SQ] as one row, whose step is the last stride. It makes them contiguous where that is
not 1. Of ``tokens[:, 1:]`` it is 1, so that the second row begins in the middle of the first: labels and logits no
longer belong together. Loss and gradient are of other labels, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """The loss of the next tokens, which are a slice, and of their copy."""
    import torch
    from transformer_engine.pytorch.cross_entropy import CrossEntropyFunction

    torch.manual_seed(0)
    logits, tokens = torch.randn(2, 4, 16), torch.arange(10).view(2, 5)
    labels = tokens[:, 1:]
    losses = [CrossEntropyFunction.apply(logits.clone(), t) for t in (labels, labels.clone())]
    print(f"mean loss: {losses[0].mean():.4f} of a slice, {losses[1].mean():.4f} of its copy")
    torch.testing.assert_close(*losses)


FP64 = "eager fp64"
# over the largest entry. fp32: a softmax of at most 70 terms at 2**-23; another token's label is off by about 1
FP32, BUG = 1e-5, 0.05
IGNORE = -100
Layout = Callable[[Tensor], Tensor]


def others(t: Tensor, columns: int) -> Tensor:
    """Labels [B, ``columns``] of the same range as ``t``'s, none of which is what ``t`` has beside it."""
    return torch.where(t[:, :1] == IGNORE, 0, 1 - t[:, :1].clamp(0, 1)).expand(-1, columns)


# layouts [B, SQ] of the same labels in longer rows, or rows that lie apart: their last stride is 1
SLICED: dict[str, Layout] = {
    "next tokens": lambda t: torch.cat([others(t, 1), t], 1)[:, 1:],
    "all but the last token": lambda t: torch.cat([t, others(t, 1)], 1)[:, :-1],
    "a window": lambda t: torch.cat([others(t, 2), t, others(t, 3)], 1)[:, 2:-3],
    "every other sequence": lambda t: torch.stack([t, t.flip(1)], 1)[:, 0],
}
# layouts that the kernels read rightly
READ: dict[str, Layout] = {
    "contiguous": lambda t: t.clone(),
    "transposed": lambda t: t.t().contiguous().t(),
    "every other token": lambda t: torch.stack([t, t], -1)[..., 0],
    "the first sequences": lambda t: torch.cat([t, t])[: len(t)],
}


def drawn_case(rows: int, length: int, vocab: int, ignored: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Logits [B, SQ, V] and labels [B, SQ] of which each is another than the one before it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, length, vocab, generator=generator)
    steps = torch.randint(1, vocab, (rows, length), generator=generator).flatten().cumsum(0)
    labels = (steps % vocab).view(rows, length)
    if ignored:
        labels[:, 1::4] = IGNORE
    return logits, labels


def eager(logits: Tensor, labels: Tensor, smoothing: float, mean: bool) -> Tensor:
    """Each token's loss [B, SQ], or the mean [1] over those that count."""
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=smoothing)
    return loss.sum().reshape(1) / (labels != IGNORE).sum().clamp(min=1) if mean else loss.view(labels.shape)


def errors(function: Any, case: tuple[Tensor, Tensor], layout: Layout, options: tuple[float, bool]) -> dict[str, float]:
    """Error of the loss and of the gradient over their largest entry, of logits that no one reads afterwards."""
    logits, labels = case
    leaf, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
    given = layout(labels)
    held = given.clone()
    loss, want = function.apply(leaf.view_as(leaf), given, *options), eager(wide, labels, *options)
    above = torch.linspace(0.5, 1.5, want.numel()).view(want.shape)
    pairs = {"loss": (loss.detach().view(want.shape), want.detach())}
    pairs["gradient"] = (
        torch.autograd.grad(loss, leaf, above.view(loss.shape))[0],
        torch.autograd.grad(want, wide, above.double())[0],
    )
    assert torch.equal(given, held), "the labels were written to"
    return {k: ((g.double() - w).abs().max() / w.abs().max()).item() for k, (g, w) in pairs.items()}


OPTIONS = {
    "by token": (0.0, False),
    "mean": (0.0, True),
    "smoothing": (0.1, False),
}


def layouts(p: probe.Probe, function: Any) -> None:
    """Each layout and option, with labels that are ignored and without."""
    for option, values in OPTIONS.items():
        for ignored in (False, True):
            case = drawn_case(3, 5, 19, ignored, p.seed)
            for name, layout in {**SLICED, **READ}.items():
                for what, value in errors(function, case, layout, values).items():
                    full = f"{option}{', some ignored' if ignored else ''}, {name}: {what}"
                    if name in READ:
                        p.guard(full, value, FP32, reference=FP64)
                    elif (what, option) != ("loss", "mean"):  # a mean of wrong losses may be near the right one
                        p.error(full, value, FP32, reference=FP64, bug_above=BUG)


def drawn(p: probe.Probe, function: Any) -> None:
    """Any size, slice and option; one sequence alone is read rightly, a slice or not."""

    def measure(rows: int, length: int, vocab: int, layout: str, option: str, seed: int) -> float:
        case = drawn_case(rows, length, vocab, False, seed)
        return errors(function, case, {**SLICED, **READ}[layout], OPTIONS[option])["gradient"]

    space: dict[str, Any] = {
        "length": st.integers(2, 7),
        "vocab": st.integers(2, 70),
        "option": st.sampled_from(sorted(OPTIONS)),
        "seed": st.integers(0, 9999),
    }
    sliced = {**space, "rows": st.integers(2, 4), "layout": st.sampled_from(sorted(SLICED))}
    p.drawn("drawn slices: gradient", measure, 1e-4, space=sliced, count=16, reference=FP64, bug_above=BUG)
    one = {**space, "rows": st.just(1), "layout": st.sampled_from(sorted({**SLICED, **READ}))}
    p.drawn("drawn, one sequence: gradient", measure, 1e-4, space=one, count=8, reference=FP64)


def prepare(p: probe.Probe) -> None:
    """Triton's interpreter, and Transformer Engine's Python without its C++ extension."""
    p.triton_interpreter()
    p.transformer_engine()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter, which lacks what bf16 wants, by the function that parallel_cross_entropy calls.

    Later releases' parallel_cross_entropy refuses tensors that are not on a GPU before it calls that.
    """
    prepare(p)
    function = p.upstream("transformer_engine.pytorch.cross_entropy").CrossEntropyFunction
    layouts(p, function)
    drawn(p, function)


if __name__ == "__main__":
    probe.main(reproduce, pack=72, package="transformer_engine", minimal=minimal, prepare=prepare)
