# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's fused linear losses scale the gradient of a transposed operand in the wrong places.

These losses compute gradients in the forward, in memory laid out as the operand's, and multiply them in the backward by
what comes from above. The kernel that multiplies takes columns that lie beside each other. Of a transposed hidden state
or weight, as a head that is stored [H, V] gives, it multiplies some entries several times and others not at all. A loss
that is not multiplied is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """The gradient of a head that is stored transposed, of half a loss."""
    import torch
    from liger_kernel.transformers import LigerFusedLinearJSD

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, teacher, other = (torch.randn(n, 8, device=device) for n in (4, 4, 16))
    head = torch.randn(8, 16, device=device).requires_grad_()
    loss = LigerFusedLinearJSD()(x, head.t(), teacher, other, None)
    (whole,) = torch.autograd.grad(loss, head, retain_graph=True)
    whole = whole.clone()
    (half,) = torch.autograd.grad(0.5 * loss, head)
    print(f"norm of the gradient: {whole.norm():.4f}, of half the loss: {half.norm():.4f}")
    torch.testing.assert_close(half, 0.5 * whole)


FP64 = "eager fp64"
# over the largest entry of a gradient. fp32: sums of at most 64 terms at 2**-23, softmaxes of the JSD that cancel;
# fp16: logits and their gradient are rounded to 2**-11, sums over chunks too. The bug leaves entries unscaled, or
# scales them over and over: by 3 or by -0.4, an error of at least 1/3
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
BUG = 0.1
IGNORE = -100
Layout = Callable[[Tensor], Tensor]

# layouts [N, H] whose gradient's last stride is not 1, since it is laid out as they are
STRIDED: dict[str, Layout] = {
    "transposed": lambda t: t.t().contiguous().t(),
    "rows of a transposed matrix": lambda t: torch.cat([t, t]).t().contiguous().t()[: len(t)],
}
DENSE: dict[str, Layout] = {
    "contiguous": lambda t: t.clone(),
    "columns of a wider matrix": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "every other column": lambda t: torch.stack([t, t], -1)[..., 0],
}


@dataclass(frozen=True)
class Loss:
    """One of Liger's losses and the same by torch, of hidden states [BT, H] and the head's weight [V, H]: a scalar."""

    name: str
    x: Tensor
    w: Tensor
    liger: Callable[[Tensor, Tensor], Tensor]
    eager: Callable[[Tensor, Tensor], Tensor]

    def leaves(self, hidden: Layout, weight: Layout, wanted: str = "both") -> list[Tensor]:
        """New leaves in these layouts; ``wanted`` is "both", "hidden" or "weight"."""
        made = [hidden(self.x).detach(), weight(self.w).detach()]
        for t, name in zip(made, ("hidden", "weight"), strict=True):
            t.requires_grad_(wanted in ("both", name))
        return made

    def want(self, scale: float) -> list[Tensor]:
        """Gradients of the loss times ``scale`` in fp64."""
        leaves = [t.detach().double().requires_grad_() for t in (self.x, self.w)]
        return list(torch.autograd.grad(self.eager(*leaves) * scale, leaves))

    def errors(self, hidden: Layout, weight: Layout, scale: float, wanted: str = "both") -> dict[str, float]:
        """Error over the largest entry, of each gradient that is wanted."""
        leaves = self.leaves(hidden, weight, wanted)
        asked = [t for t in leaves if t.requires_grad]
        found = torch.autograd.grad(self.liger(*leaves) * scale, asked, allow_unused=True)
        got = iter(torch.zeros_like(t) if g is None else g for t, g in zip(asked, found, strict=True))
        want = dict(zip(("hidden", "weight"), self.want(scale), strict=True))
        return {k: off(next(got), want[k]) for k, t in zip(want, leaves, strict=True) if t.requires_grad}


def off(got: Tensor, want: Tensor) -> float:
    """max|got - want| over max|want|, or as it is where that is 0."""
    return ((got.double() - want).abs().max() / (want.abs().max().item() or 1.0)).item()


def jsd(x: Tensor, w: Tensor, tx: Tensor, tw: Tensor, beta: float, temperature: float, kept: Tensor) -> Tensor:
    """Generalised Jensen-Shannon divergence of two heads, averaged over the tokens that are kept."""
    q, p = ((a @ b.t() / temperature).log_softmax(-1) for a, b in ((x, w), (tx.double(), tw.double())))
    m = torch.log(beta * p.exp() + (1 - beta) * q.exp())
    each = beta * p.exp() * (p - m) + (1 - beta) * q.exp() * (q - m)
    return torch.where(kept[:, None], each, 0.0).sum() / kept.sum()


def kl(x: Tensor, w: Tensor, target: Tensor, reduction: str, temperature: float, kept: Tensor) -> Tensor:
    """KL divergence of a head from probabilities, over the tokens that are kept."""
    each = F.kl_div((x @ w.t() / temperature).log_softmax(-1), target.double(), reduction="none")
    total = torch.where(kept[:, None], each, 0.0).sum()
    return total / {"sum": 1, "batchmean": kept.sum(), "mean": kept.sum() * target.shape[1]}[reduction]


def losses(
    p: probe.Probe, sizes: tuple[int, int, int], device: str, dtype: torch.dtype, seed: int, labels: bool = False
) -> Iterator[Loss]:
    """Every fused linear loss of the tree; tokens, hidden and vocabulary are ``sizes``."""
    tokens, hidden, vocab = sizes
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, unit: bool = True) -> Tensor:
        return (torch.randn(*shape, generator=generator) / (shape[-1] ** 0.5 if unit else 1)).to(device, dtype)

    x, w, tx, tw = draw(tokens, hidden, unit=False), draw(vocab, hidden), draw(tokens, hidden), draw(vocab, hidden)
    target = torch.randint(0, vocab, (tokens,), generator=generator).to(device)
    kept = torch.ones(tokens, dtype=torch.bool, device=device)
    if labels:
        target[1::3], kept[1::3] = IGNORE, False
    shift = target if labels else None
    ops = p.upstream("liger_kernel.ops")
    yield Loss(
        "JSD",
        x,
        w,
        lambda x, w: ops.LigerFusedLinearJSDFunction.apply(x, w, tx, tw, shift, 0.3, IGNORE, 1.5),
        partial(jsd, tx=tx, tw=tw, beta=0.3, temperature=1.5, kept=kept),
    )
    if hasattr(ops, "LigerFusedLinearKLDivFunction"):
        teacher = (tx.float() @ tw.float().t()).softmax(-1).to(dtype)
        for reduction in ("batchmean", "mean", "sum"):
            apply = ops.LigerFusedLinearKLDivFunction.apply
            yield Loss(
                f"KL {reduction}",
                x,
                w,
                lambda x, w, reduction=reduction, apply=apply: apply(x, w, teacher, shift, reduction, IGNORE, 1.5),
                partial(kl, target=teacher, reduction=reduction, temperature=1.5, kept=kept),
            )


def cross_entropy(p: probe.Probe, device: str, dtype: torch.dtype, seed: int, reduction: str = "mean") -> Loss:
    """The fused linear cross entropy of the same sizes, which some releases scale rightly."""
    jsd = next(losses(p, (5, 6, 12), device, dtype, seed))
    target = torch.arange(5, device=device)
    target[1::3] = IGNORE
    apply = p.upstream("liger_kernel.ops").LigerFusedLinearCrossEntropyFunction.apply
    return Loss(
        f"cross entropy {reduction}",
        jsd.x,
        jsd.w,
        lambda x, w: apply(x, w, target, None, None, IGNORE, 0.0, 0.0, reduction)[0],
        lambda x, w: F.cross_entropy(x @ w.t(), target, ignore_index=IGNORE, reduction=reduction),
    )


def scaled(p: probe.Probe, each: Loss, dtype: torch.dtype, label: str = "") -> None:
    """Operands in each layout, of the loss times another number, and as it is."""
    dense = DENSE["contiguous"]

    def name(operand: str, layout: str, scale: float) -> str:
        return f"{label}{each.name}, {operand} {layout}, times {scale}"

    for layout, view in STRIDED.items():
        for operand, views in (("hidden", (view, dense)), ("weight", (dense, view)), ("both", (view, view))):
            for scale in (3.0, -0.4):
                found = each.errors(*views, scale)
                wrong = max(found.values()) if operand == "both" else found.pop(operand)
                full = name(operand, layout, scale)
                p.error(full, wrong, LIMITS[dtype], reference=FP64, bug_above=BUG)
                for other, value in found.items() if operand != "both" else ():
                    p.guard(f"{full}: the other operand's, {other}", value, LIMITS[dtype], reference=FP64)
        value = max(each.errors(view, view, 1.0).values())
        p.guard(name("both", layout, 1.0), value, LIMITS[dtype], reference=FP64)
    for layout, view in DENSE.items():
        value = max(each.errors(view, view, -0.4).values())
        p.guard(name("both", layout, -0.4), value, LIMITS[dtype], reference=FP64)


def other_modes(p: probe.Probe, each: Loss, limit: float) -> None:
    """One operand alone wants a gradient; no gradients; a factor of 0; what a later layer makes of the gradient."""
    view, dense = STRIDED["transposed"], DENSE["contiguous"]
    for wanted in ("hidden", "weight"):
        found = each.errors(view, view, 3.0, wanted)[wanted]
        p.error(f"{each.name}: {wanted} alone", found, limit, reference=FP64, bug_above=BUG)
    p.error(
        f"{each.name}: times 0",
        max(each.errors(view, view, 0.0).values()),
        0,
        reference="0",
        bug_above=1e-5,  # a loss that counts for nothing has a gradient, of whatever size it was
    )
    leaves = each.leaves(view, view)
    held = [t.detach().clone() for t in leaves]
    want = each.eager(each.x.double(), each.w.double())
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            loss = each.liger(*leaves)
        p.guard(f"{each.name}: loss, gradients {mode}", off(loss.detach(), want), limit, reference=FP64)
        p.guard(f"{each.name}: wants a gradient, gradients {mode}", loss.requires_grad != mode, 0, reference="torch")
    loss = each.liger(*leaves)
    got = torch.autograd.grad(3.0 * loss, leaves)
    for name, t, was, g in zip(("hidden", "weight"), leaves, held, got, strict=True):
        p.guard(f"{each.name}: {name} after the backward", off(t.detach(), was.double()), 0, reference="as it was")
        wrong = g.shape != t.shape or g.dtype != t.dtype
        p.guard(f"{each.name}: shape and dtype of the gradient of {name}", wrong, 0, reference="the operand's")
    # a head stored [H, V], hidden states as a layer's transposed output [H, BT], and an optimizer's .grad
    head, below = (t.t().contiguous().requires_grad_() for t in (each.w, each.x))
    for n in range(2):
        (each.liger(below.t(), head.t()) * 3.0 if n == 0 else each.liger(below.t(), head.t()) * -0.4).backward()
    total = [g.t() for g in each.want(3.0 - 0.4)]
    for name, leaf, w in zip(("hidden", "weight"), (below, head), total, strict=True):
        assert leaf.grad is not None
        full = f"{each.name}: .grad of {name} over two losses"
        p.error(full, off(leaf.grad, w), limit, reference=FP64, bug_above=BUG)
    # two losses of other factors before their backwards
    one, two = each.leaves(view, dense), each.leaves(dense, view)
    both = each.liger(*one), each.liger(*two)
    for n, (scale, mine) in enumerate(((3.0, one), (-0.4, two))):
        got = torch.autograd.grad(both[n] * scale, mine)
        wrong = max(off(g, w) for g, w in zip(got, each.want(scale), strict=True))
        p.error(f"{each.name}: overlapping losses, {n}", wrong, limit, reference=FP64, bug_above=BUG)


def accumulated(p: probe.Probe, device: str) -> None:
    """Weight gradients that are summed in fp32, where the tree has the option, and the modules of the public API."""
    each = next(losses(p, (5, 6, 12), device, torch.float16, p.seed))
    found = [p.upstream("liger_kernel.transformers").LigerFusedLinearJSD(jsd_beta=0.5)]
    generator = torch.Generator().manual_seed(p.seed)
    teacher = [torch.randn(n, 6, generator=generator).to(device) for n in (5, 12)]
    kept = torch.ones(5, dtype=torch.bool, device=device)
    by_module = Loss(
        "module JSD",
        each.x.float(),
        each.w.float(),
        lambda x, w: found[0](x, w, *teacher, None),
        partial(jsd, tx=teacher[0], tw=teacher[1], beta=0.5, temperature=1.0, kept=kept),
    )
    cases = [(by_module, torch.float32)]
    ops = p.upstream("liger_kernel.ops")
    if hasattr(ops, "LigerFusedLinearKLDivFunction"):
        target = (teacher[0] @ teacher[1].t()).softmax(-1).half()
        apply = ops.LigerFusedLinearKLDivFunction.apply
        sum_fp32 = (target, None, "batchmean", IGNORE, 1.0, 1e-10, torch.float32)
        eager = partial(kl, target=target, reduction="batchmean", temperature=1.0, kept=kept)
        case = Loss("KL, summed in fp32", each.x, each.w, lambda x, w: apply(x, w, *sum_fp32), eager)
        cases.append((case, torch.float16))
    view = STRIDED["transposed"]
    for case, dtype in cases:
        wrong = max(case.errors(view, view, 3.0).values())
        p.error(case.name, wrong, LIMITS[dtype], reference=FP64, bug_above=BUG)


class Made(TorchDispatchMode):
    """Bytes that operators make in tensors of at least ``least`` numbers."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.bytes, self.least = 0, least

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.numel() >= self.least and not made._is_view():
            given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
            self.bytes += made.nbytes if made.untyped_storage().data_ptr() not in given else 0
        return made


def cost(p: probe.Probe, each: Loss) -> None:
    """A backward scales contiguous gradients in place; strided ones may cost a copy of each, here or in the forward."""
    least, forwards = min(each.x.numel(), each.w.numel()), {}
    for name, view in {**DENSE, **STRIDED}.items():
        leaves = each.leaves(view, view)
        with Made(least) as forward:
            loss = each.liger(*leaves)
        with Made(least) as backward:
            torch.autograd.grad(3.0 * loss, leaves)
        forwards[name] = forward.bytes
        more = sum(t.nbytes for t in (each.x, each.w)) if name in STRIDED else 0
        p.guard(f"{each.name}, {name}: bytes of a backward", backward.bytes, more, reference="in place", unit="bytes")
        extra = max(0, forward.bytes - forwards["contiguous"])
        p.guard(f"{each.name}, {name}: more bytes of a forward", extra, more, reference="contiguous", unit="bytes")


def drawn(p: probe.Probe, device: str) -> None:
    """Any size, square ones among them, layouts, factor and loss."""

    def measure(tokens: int, hidden: int, vocab: int, square: bool, seen: tuple[str, str, float, int, int]) -> float:
        layout, operand, scale, which, seed = seen
        sizes = (hidden, hidden, hidden) if square else (tokens, hidden, vocab)
        found = list(losses(p, sizes, device, torch.float32, seed, labels=bool(seed % 2)))
        each, dense = found[which % len(found)], DENSE["contiguous"]
        views = [STRIDED[layout] if operand in ("both", name) else dense for name in ("hidden", "weight")]
        return max(each.errors(views[0], views[1], scale).values())

    seen = st.tuples(
        st.sampled_from(sorted(STRIDED)),
        st.sampled_from(["both", "hidden", "weight"]),
        st.sampled_from([2.0, -1.0, 0.25]),
        st.integers(0, 3),
        st.integers(0, 9999),
    )
    sizes = {"tokens": st.integers(2, 7), "hidden": st.integers(2, 9), "vocab": st.integers(2, 20)}
    space = {**sizes, "square": st.booleans(), "seen": seen}
    # fp32: a gradient of a few terms that cancel is off by more of its largest number
    p.drawn("drawn losses", measure, 1e-3, space=space, count=20, reference=FP64, bug_above=BUG)


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 and fp16 under Triton's interpreter on the CPU; bf16 and a model's sizes, compiled, on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    fp32, view = torch.float32, STRIDED["transposed"]
    for each in losses(p, (5, 6, 12), device, fp32, p.seed):
        scaled(p, each, fp32)
        cost(p, each)
    found = list(losses(p, (5, 6, 12), device, fp32, p.seed, labels=True))
    for each in found[:2]:
        other_modes(p, each, LIMITS[fp32])
    for each in losses(p, (5, 6, 12), device, torch.float16, p.seed):
        wrong = max(each.errors(view, view, 3.0).values())
        p.error(f"fp16: {each.name}", wrong, LIMITS[torch.float16], reference=FP64, bug_above=BUG)
    accumulated(p, device)
    for reduction in ("mean", "sum"):
        # of some releases this loss has the bug as well: with the JSD it is checked in all
        pair = (cross_entropy(p, device, fp32, p.seed, reduction), found[0])
        for wanted in ("hidden", "weight"):
            wrong = max(each.errors(view, view, 3.0)[wanted] for each in pair)
            full = f"JSD or cross entropy {reduction}, {wanted}: the larger error"
            p.error(full, wrong, LIMITS[fp32], reference=FP64, bug_above=BUG)
        wrong = max(pair[0].errors(DENSE["contiguous"], DENSE["contiguous"], 3.0).values())
        p.guard(f"cross entropy {reduction}, contiguous", wrong, LIMITS[fp32], reference=FP64)
    drawn(p, device)
    if p.lane == "cuda":
        for dtype in (fp32, torch.bfloat16):
            for each in losses(p, (512, 256, 4096), device, dtype, p.seed):
                wrong = max(each.errors(view, view, 3.0).values())
                full = f"512 x 256 x 4096, {dtype}: {each.name}".replace("torch.", "")
                p.error(full, wrong, max(1e-3, LIMITS[dtype]), reference=FP64, bug_above=BUG)


if __name__ == "__main__":
    probe.main(reproduce, pack=71, package="liger_kernel", minimal=minimal, prepare=prepare)
