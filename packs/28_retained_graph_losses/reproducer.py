# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""A second backward of Liger's losses returns the gradient of the first, scaled once more.

The losses that compute their gradient in the forward save it and scale it in place in the backward. Where the graph is
kept for another backward, as for gradient norms of single losses or for two optimizers, the next one begins with what
the last one left: a loss that is multiplied by 2 gives twice its gradient, then four times. What was returned before
changes with it. Vocabulary parallel cross entropy writes its gradient over the exponentials that it saved.
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
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """The gradient of a scaled loss, twice."""
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, weight = torch.randn(8, 16, device=device), torch.randn(32, 16, device=device)
    x.requires_grad_()
    loss = 2 * LigerFusedLinearCrossEntropyLoss()(weight, x, torch.arange(8, device=device))
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0].clone() for _ in range(2))
    print(f"norm of the gradient: {first.norm():.4f}, once more: {second.norm():.4f}")
    torch.testing.assert_close(second, first)


FP64 = "eager fp64"
# fp32: sums of at most 64 terms at 2**-23, and a few roundings more where softmaxes of the JSD cancel; measured below
# 1e-6. The bug multiplies by 2 or 3 once more, an error of 1 or more, but for vocabulary parallel cross entropy
FP32, BUG = 1e-5, 0.1
BF16 = 5e-2  # logits, their gradient and the running sum over up to 16 chunks are rounded to 2**-9
IGNORE = -100
Leaves = list[torch.Tensor]


@dataclass(frozen=True)
class Loss:
    """One of Liger's losses and the same by torch: of leaves and of what stays constant, [] as both return it."""

    name: str
    leaves: Leaves
    liger: Callable[..., torch.Tensor]
    eager: Callable[..., torch.Tensor]

    def fresh(self) -> tuple[torch.Tensor, Leaves]:
        """(loss, leaves) of a new graph. Logits that a loss writes to are a copy, as a layer's output is."""
        leaves = [t.detach().clone().requires_grad_() for t in self.leaves]
        return self.liger(*leaves), leaves

    def want(self, scale: torch.Tensor | float = 1.0) -> Leaves:
        """Gradients of the loss times ``scale`` in fp64."""
        leaves = [t.detach().double().requires_grad_() for t in self.leaves]
        return list(torch.autograd.grad((self.eager(*leaves) * scale).sum(), leaves))


def random(device: str, dtype: torch.dtype, seed: int) -> Callable[..., torch.Tensor]:
    """Draws tensors of a shape; the last dimension's root divides them where ``unit``, as weights have it."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, unit: bool = False) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) / (shape[-1] ** 0.5 if unit else 1)).to(device, dtype)

    return draw


def jsd(x: torch.Tensor, w: torch.Tensor, tx: torch.Tensor, tw: torch.Tensor, beta: float) -> torch.Tensor:
    """Generalised Jensen-Shannon divergence of two heads, averaged over tokens."""
    q, p = (x @ w.t()).log_softmax(-1), (tx.double() @ tw.double().t()).log_softmax(-1)
    m = torch.log(beta * p.exp() + (1 - beta) * q.exp())
    return (beta * p.exp() * (p - m) + (1 - beta) * q.exp() * (q - m)).sum() / len(x)


def losses(p: probe.Probe, sizes: tuple[int, int, int], device: str, dtype: torch.dtype, seed: int) -> Iterator[Loss]:
    """Every loss of this kind that the tree has; tokens, hidden and vocabulary are ``sizes``."""
    tokens, hidden, vocab = sizes
    draw = random(device, dtype, seed)
    x, w, tx, tw = (
        draw(tokens, hidden),
        draw(vocab, hidden, unit=True),
        draw(tokens, hidden),
        draw(vocab, hidden, unit=True),
    )
    b, logits = draw(vocab, unit=False) * 0.2, draw(tokens, vocab)
    target = torch.randint(0, vocab, (tokens,), generator=torch.Generator().manual_seed(seed)).to(device)
    target[1::4] = IGNORE
    ops = p.upstream("liger_kernel.ops")
    for reduction in ("mean", "sum"):
        ce = partial(F.cross_entropy, target=target, reduction=reduction)

        def flce(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, reduction: str = reduction) -> torch.Tensor:
            out = ops.LigerFusedLinearCrossEntropyFunction.apply(x, w, target, b, None, IGNORE, 0.0, 0.0, reduction)
            return out[0]  # type: ignore[no-any-return]

        yield Loss(f"FLCE {reduction}", [x, w, b], flce, lambda x, w, b, ce=ce: ce(F.linear(x, w, b)))

        def plain(z: torch.Tensor, reduction: str = reduction) -> torch.Tensor:
            out = ops.LigerCrossEntropyFunction.apply(z.clone(), target, None, IGNORE, 0.0, 0.0, reduction)
            return out[0]  # type: ignore[no-any-return]

        yield Loss(f"CE {reduction}", [logits], plain, ce)
    yield Loss(
        "FLJSD",
        [x, w],
        lambda x, w: ops.LigerFusedLinearJSDFunction.apply(x, w, tx, tw, None, 0.3),
        lambda x, w: jsd(x, w, tx, tw, 0.3),
    )
    if hasattr(ops, "LigerFusedLinearKLDivFunction"):
        teacher = tx.float().matmul(tw.float().t()).softmax(-1).to(dtype)
        yield Loss(
            "FLKL",
            [x, w],
            lambda x, w: ops.LigerFusedLinearKLDivFunction.apply(x, w, teacher),
            lambda x, w: F.kl_div((x @ w.t()).log_softmax(-1), teacher.double(), reduction="batchmean"),
        )
    if hasattr(ops, "LigerVocabParallelCEFunction"):
        parallel = ops.LigerVocabParallelCEFunction
        ce = partial(F.cross_entropy, target=target, reduction="none")
        args = (target[:, None], None, IGNORE, 0.0, "megatron", "partition")
        yield Loss("vocabulary parallel CE", [logits], lambda z: parallel.apply(z[:, None], *args)[:, 0], ce)


def gradients(loss: torch.Tensor, leaves: Leaves, scale: torch.Tensor | float, keep: bool = True) -> Leaves:
    """Of the loss times ``scale``, or of the sum of losses."""
    return list(torch.autograd.grad((loss * scale).sum(), leaves, retain_graph=keep))


def tried(call: Callable[[], Leaves], leaves: Leaves) -> Leaves:
    """What ``call`` gives, zeros where autograd sees that what it saved, and handed out before, has changed."""
    try:
        return call()
    except RuntimeError as refused:
        if "inplace operation" not in str(refused):
            raise
        return [torch.zeros_like(t) for t in leaves]


def worst(got: Leaves, want: Leaves) -> float:
    """The largest of max|got - want| / max|want|, NaN where one is not finite."""
    errors = [(g.double() - w).abs().max() / (w.abs().max().item() or 1.0) for g, w in zip(got, want, strict=True)]
    return torch.stack(errors).max().item()


class Made(TorchDispatchMode):
    """Bytes that operators make in tensors of more than ``least`` numbers; views of others count for none."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.bytes, self.least = 0, least

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.numel() > self.least and not made._is_view():
            given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
            self.bytes += made.nbytes if made.untyped_storage().data_ptr() not in given else 0
        return made


def twice(p: probe.Probe, each: Loss, limit: float) -> None:
    """Backwards of one kept graph, in several orders, against fp64."""

    def check(name: str, got: Leaves, want: Leaves) -> None:
        p.error(f"{each.name}: {name}", worst(got, want), limit, reference=FP64, bug_above=BUG)

    loss, leaves = each.fresh()
    first = gradients(loss, leaves, 2.0)
    p.guard(f"{each.name}: first backward", worst(first, each.want(2.0)), limit, reference=FP64)
    second = gradients(loss, leaves, 2.0)
    check("second backward", second, each.want(2.0))
    check("third backward, another scale", gradients(loss, leaves, -3.0), each.want(-3.0))
    check("first gradient after the third", first, each.want(2.0))
    last = gradients(loss, leaves, 0.5, keep=False)
    check("the last backward, graph not kept", last, each.want(0.5))
    loss, leaves = each.fresh()
    gradients(loss, leaves, 0.0)
    check("after a backward of zeros", gradients(loss, leaves, 1.0), each.want())
    loss, leaves = each.fresh()
    for g in gradients(loss, leaves, 1.0):
        g.zero_()  # the caller's own, say to clip it
    check("after the caller changed its gradient", tried(lambda: gradients(loss, leaves, 1.0), leaves), each.want())
    loss, leaves = each.fresh()

    def accumulated() -> Leaves:
        for _ in range(3):
            (loss * 2.0).sum().backward(retain_graph=True)
        return [t.grad for t in leaves]  # type: ignore[misc]

    check("accumulated over three backwards", tried(accumulated, leaves), each.want(6.0))


def once(p: probe.Probe, each: Loss, limit: float) -> None:
    """One backward: its gradient, for several scales; it makes nothing of the size of a gradient."""
    for scale in (1.0, -0.3):
        loss, leaves = each.fresh()
        got = gradients(loss, leaves, scale, keep=False)
        p.guard(f"{each.name}: single backward, times {scale}", worst(got, each.want(scale)), limit, reference=FP64)
        p.digest(f"{each.name}: single backward, times {scale}, bits", *got)
        loss, leaves = each.fresh()
        with Made(min(t.numel() for t in leaves) - 1) as made:
            torch.autograd.grad(loss.sum() * scale, leaves)
        p.guard(f"{each.name}: times {scale}: bytes", made.bytes, 0, reference="in place", unit="bytes")
    loss, leaves = each.fresh()
    with Made(min(t.numel() for t in leaves) - 1) as made:
        torch.autograd.grad(loss.sum() * 2.0, leaves, retain_graph=True)
    size = sum(t.nbytes for t in leaves)
    p.guard(f"{each.name}: kept graph: bytes", made.bytes, size, reference="a copy of each gradient", unit="bytes")


def drawn(p: probe.Probe, device: str) -> None:
    """Any size, with any scales one after another."""

    def measure(tokens: int, hidden: int, vocab: int, scales: list[float], which: int, seed: int) -> float:
        found = list(losses(p, (tokens, hidden, vocab), device, torch.float32, seed))
        each = found[which % len(found)]
        loss, leaves = each.fresh()
        return max(worst(gradients(loss, leaves, scale), each.want(scale)) for scale in scales)

    sizes = {"tokens": st.integers(2, 7), "hidden": st.integers(1, 9), "vocab": st.integers(2, 20)}
    scales = st.lists(st.sampled_from([1.0, 2.0, -1.0, 0.25, 3.0]), min_size=2, max_size=4)
    space = {**sizes, "scales": scales, "which": st.integers(0, 6), "seed": st.integers(0, 9999)}
    # fp32: a gradient of a few terms that cancel is off by more of its largest number
    p.drawn("drawn losses", measure, 1e-3, space=space, count=14, reference=FP64, bug_above=BUG)


def direct(p: probe.Probe, device: str) -> None:
    """Called outside of a backward, as other projects do, the functions scale in place what they are given."""
    fused = p.upstream("liger_kernel.ops.fused_linear_cross_entropy")
    given = [torch.ones(3, 4, device=device), torch.ones(5, 4, device=device), torch.ones(5, device=device)]
    out = fused.fused_linear_cross_entropy_backward(torch.tensor(2.0, device=device), *given)
    same = all(o.data_ptr() == g.data_ptr() and bool((o == 2).all()) for o, g in zip(out, given, strict=True))
    p.guard("called by itself: not in place", not same, 0, reference="the caller's tensors, doubled")
    logits = torch.ones(3, 4, device=device)
    out = p.upstream("liger_kernel.ops.cross_entropy").cross_entropy_backward(logits, torch.tensor(2.0, device=device))
    same = out.data_ptr() == logits.data_ptr() and bool((out == 2).all())
    p.guard("CE called by itself: not in place", not same, 0, reference="the caller's tensor, doubled")


def per_token(p: probe.Probe, device: str, limit: float) -> None:
    """CE with reduction="none" scales rows out of place: as it was, and without a copy besides."""
    draw = random(device, torch.float32, p.seed)
    logits, target = draw(6, 16), torch.arange(6, device=device)
    go = torch.linspace(0.5, 2.0, 6, device=device)
    apply = p.upstream("liger_kernel.ops").LigerCrossEntropyFunction.apply
    each = Loss(
        "CE none",
        [logits],
        lambda z: apply(z.clone(), target, None, IGNORE, 0.0, 0.0, "none")[0],
        lambda z: F.cross_entropy(z, target, reduction="none"),
    )
    loss, leaves = each.fresh()
    for name in ("first", "second"):
        got = gradients(loss, leaves, go)
        p.guard(f"CE none: {name} backward", worst(got, each.want(go.double())), limit, reference=FP64)
    with Made(logits.numel() - 1) as made:
        gradients(loss, leaves, go)
    p.guard("CE none: kept graph: bytes", made.bytes, logits.nbytes, reference="the product", unit="bytes")


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; bf16 and fp32, compiled, on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    for each in losses(p, (5, 6, 12), device, torch.float32, p.seed):
        twice(p, each, FP32)
        once(p, each, FP32)
    per_token(p, device, FP32)
    direct(p, device)
    drawn(p, device)
    if p.lane == "cuda":
        for each in losses(p, (512, 256, 4096), device, torch.bfloat16, p.seed):
            loss, leaves = each.fresh()
            for n, above in ((1, float("inf")), (2, BUG)):
                name = f"{each.name}, bf16: backward {n}"
                p.error(
                    name, worst(gradients(loss, leaves, 2.0), each.want(2.0)), BF16, reference=FP64, bug_above=above
                )


if __name__ == "__main__":
    probe.main(reproduce, pack=28, package="liger_kernel", minimal=minimal, prepare=prepare)
