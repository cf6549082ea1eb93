# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""LigerFusedLinearCrossEntropyFunction gives the head's weight and bias no gradient where the trunk is frozen.

With reduction="mean" and "sum" the forward computes gradients for the sake of the hidden states' alone. Where these
want none, as those of a frozen trunk, the weight and the bias of the head get none either: the loss says that it has a
gradient, ``backward()`` runs, ``weight.grad`` stays None, and an optimizer passes over it without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """A head behind hidden states of a frozen trunk."""
    import torch
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    hidden = torch.randn(8, 16, device=device)  # a frozen trunk's
    weight = torch.randn(32, 16, device=device, requires_grad=True)
    loss = LigerFusedLinearCrossEntropyLoss()(weight, hidden, torch.arange(8, device=device))
    loss.backward()
    print("loss.requires_grad:", loss.requires_grad, "weight.grad:", weight.grad)
    assert weight.grad is not None


SOURCE = "liger_kernel/ops/fused_linear_cross_entropy.py"
IGNORE = -100
FP64 = "eager fp64"
BUG = 0.99  # what gets no gradient is off by all of it: exactly 1
# fp32: 2**-23 an operation in sums of at most 64 terms; measured below 1e-6
FP32 = 1e-5
BF16 = 5e-2  # logits, their gradient and the running sum over up to 16 chunks are rounded to 2**-9
Leaves = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Case:
    """One linear head: x [BT, H], w [V, H], b [V] or None, target [BT]."""

    x: torch.Tensor
    w: torch.Tensor
    b: torch.Tensor | None
    target: torch.Tensor

    @classmethod
    def make(cls, shape: tuple[int, int, int], device: str, dtype: torch.dtype, seed: int) -> Case:
        """Random operands whose logits have about unit variance; every fifth token is ignored."""
        tokens, hidden, vocab = shape
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(tokens, hidden, generator=generator)
        w = torch.randn(vocab, hidden, generator=generator) * hidden**-0.5
        b = torch.randn(vocab, generator=generator) * 0.2
        target = torch.randint(0, vocab, (tokens,), generator=generator)
        target[1::5] = IGNORE
        return cls(x.to(device, dtype), w.to(device, dtype), b.to(device, dtype), target.to(device))

    def leaves(self, needs: str) -> list[torch.Tensor | None]:
        """x, w and b as leaves of a graph of their own; those named in ``needs`` want a gradient. Strides stay."""
        named = zip("xwb", (self.x, self.w, self.b), strict=True)
        return [None if t is None else t.detach().requires_grad_(name in needs) for name, t in named]

    def strided(self) -> Case:
        """The same values, operands with a gap after each row or number."""
        spread = [None if t is None else t.repeat_interleave(2, dim=0)[::2] for t in (self.x, self.w, self.b)]
        assert spread[0] is not None and spread[1] is not None
        return Case(spread[0], spread[1], spread[2], self.target.repeat_interleave(2)[::2])


def eager(leaves: Leaves, target: torch.Tensor, **o: Any) -> torch.Tensor:
    """The loss by torch's own operators, in the dtype of its operands."""
    x, w, b = leaves
    assert x is not None and w is not None
    ignore, cap, smoothing = o.get("ignore_index", IGNORE), o.get("softcap"), o.get("label_smoothing", 0.0)
    classes = o.get("ce_weight")
    classes = torch.ones_like(w[:, 0]) if classes is None else classes.to(w.dtype)  # [V]
    valid, t = target != ignore, target.clamp(0, len(w) - 1)[:, None]  # [BT], [BT, 1]
    z = F.linear(x, w, b)  # [BT, V]
    z = cap * torch.tanh(z / cap) if cap else z
    lse = z.logsumexp(-1)  # [BT]
    picked = z.gather(1, t)[:, 0]
    nll = (1 - smoothing) * classes[t[:, 0]] * (lse - picked)
    if smoothing:
        nll = nll + smoothing * ((lse[:, None] - z) * classes).mean(-1)
    square = o.get("lse_square_scale", 0.0) * lse**2
    if o.get("reduction", "mean") == "mean":
        nll = nll / (classes[t[:, 0]] * valid).sum()
        square = square / valid.sum()
    loss = nll + square
    if o.get("use_token_scaling"):
        loss = loss * (picked - lse).exp().detach()
    loss = torch.where(valid, loss, 0.0)
    return loss if o.get("reduction") == "none" else loss.sum()


def reference(case: Case, needs: str, scale: float = 1.0, **options: Any) -> Leaves:
    """Gradients in fp64 of x, w and b, None for those that want none."""
    leaves = [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in case.leaves(needs)]
    return differentiate(eager(leaves, case.target, **options) * scale, leaves)


def differentiate(loss: torch.Tensor, leaves: Leaves) -> Leaves:
    """Gradients of a loss, or of the sum of losses, by ``backward()``, which leaves what it does not reach at None."""
    for t in leaves:
        if t is not None:
            t.grad = None
    loss.sum().backward(retain_graph=True)
    return [None if t is None else t.grad for t in leaves]


def liger(function: Any, leaves: Leaves, target: torch.Tensor, extras: bool = False, **o: Any) -> Any:
    """(loss, z_loss, token accuracy, ...) of the function under test, whose ``apply`` takes positions only."""
    (x, w, b), get = leaves, o.get
    head = (x, w, target, b, get("ce_weight"), get("ignore_index", IGNORE), get("lse_square_scale", 0.0))
    tail = (get("label_smoothing", 0.0), get("reduction", "mean"), get("softcap"), extras, get("accum_dtype"))
    return function.apply(*head, *tail, get("use_token_scaling", False), extras)


def gradients(function: Any, case: Case, needs: str, scale: float = 1.0, **options: Any) -> Leaves:
    """Those of the function under test; None for all where 0.7.0 trips over the gradient that it leaves out."""
    leaves = case.leaves(needs)
    try:
        loss = liger(function, leaves, case.target, **options)[0]
    except AttributeError as error:
        if "'NoneType' object has no attribute 'detach'" not in str(error):
            raise
        return [None, None, None]
    return differentiate(loss * scale, leaves)


def error(got: torch.Tensor | None, want: torch.Tensor | None) -> float:
    """max|got - want| / max|want|, or max|got| where all of want is 0; a missing gradient counts as zeros.

    A gradient that nobody wants is an error of 2, one of another shape or dtype, or not finite, of 3.
    """
    if want is None:
        return 2.0 * (got is not None)
    if got is None:
        return float(want.any())
    if got.shape != want.shape or not got.isfinite().all():
        return 3.0
    return ((got.double() - want).abs().max() / (want.abs().max().item() or 1.0)).item()


def worst(got: Leaves, want: Leaves) -> float:
    """The largest error over the gradients."""
    return max(error(g, r) for g, r in zip(got, want, strict=True))


class Made(TorchDispatchMode):
    """How many matrix products ran, and bytes of the largest tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.largest = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        self.largest = max(self.largest, made.nbytes if isinstance(made, torch.Tensor) else 0)
        self.products += op.name().split(".")[0] in ("aten::mm", "aten::matmul", "aten::addmm")
        return made


def claim(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """What of the head wants a gradient gets the right one, with both reductions."""
    crash = probe.Signature("AttributeError", "NoneType.*detach", SOURCE)
    p.attempt("head with a bias: forward", partial(liger, function, case.leaves("wb"), case.target), crash)
    for reduction in ("mean", "sum"):
        for needs, c in (("w", case), ("b", case), ("wb", case), ("w", replace(case, b=None))):
            got = gradients(function, c, needs, reduction=reduction)
            want = reference(c, needs, reduction=reduction)
            names = {"x": "hidden states", "w": "weight", "b": "bias"}
            among = " and ".join(names[n] for n in needs) + ("" if c.b is not None else " alone")
            for part, g, r in zip(names, got, want, strict=True):
                name = f"{reduction}, {among}: grad of {names[part]}"
                if part in needs:
                    p.error(name, error(g, r), limit, reference=FP64, bug_above=BUG)
                else:
                    p.guard(name, error(g, r), 0, reference="nobody wants one")


def fine_tune(p: probe.Probe, function: Any, device: str, steps: int = 50) -> None:
    """A new head is trained on a frozen trunk's hidden states, by AdamW: how far its loss falls, against eager's."""
    case = Case.make((16, 16, 24), device, torch.float32, p.seed)
    torch.manual_seed(p.seed)
    trunk, falls = torch.nn.Linear(16, 16, device=device).requires_grad_(False), {}
    hidden = trunk(case.x)
    for name, loss_of in (("liger", lambda *a: liger(function, *a)[0]), ("eager", eager)):
        head = case.w.clone().requires_grad_()
        adam, losses = torch.optim.AdamW([head], lr=3e-2, weight_decay=0.0), []
        for _ in range(steps):
            adam.zero_grad()
            loss = loss_of((hidden, head, None), case.target)
            loss.backward()
            adam.step()
            losses.append(loss.item())
        falls[name] = losses[0] - losses[-1]
        p.note(f"{steps} steps, {name}: first loss", losses[0])
        p.note(f"{steps} steps, {name}: last loss", losses[-1])
    # Adam divides small gradients by themselves: fp32 and the order of sums are seen in the third digit at most
    off = abs(falls["liger"] - falls["eager"]) / falls["eager"]
    p.error(f"{steps} steps: fall of the loss", off, 1e-2, reference="the same head trained eagerly", bug_above=BUG)


def choices(vocab: int, device: str) -> dict[str, dict[str, Any]]:
    """Every option that changes the gradient, by name."""
    return {
        "label smoothing": {"label_smoothing": 0.1},
        "z-loss": {"lse_square_scale": 1e-2},
        "class weights": {"ce_weight": torch.linspace(0.2, 1.2, vocab, device=device)},
        "softcap": {"softcap": 2.0},
        "token scaling": {"use_token_scaling": True},
        "wide accumulation": {"accum_dtype": torch.float64},
    }


def drawn(p: probe.Probe, function: Any, device: str) -> None:
    """Heads of any size behind a frozen trunk, with any options, upstream gradients and what of them wants one."""

    def measure(
        tokens: int, hidden: int, vocab: int, form: str, ignore: int, chosen: list[str], scale: float, seed: int
    ) -> float:
        case = Case.make((tokens, hidden, vocab), device, torch.float32, seed)
        # up to 0.8.3 softcap has a separate defect in padded columns, which are there unless V is a power of two
        names = [name for name in chosen if name != "softcap" or vocab & (vocab - 1) == 0]
        o = {key: value for name in names for key, value in choices(vocab, device)[name].items()}
        case.target[case.target == IGNORE] = ignore if tokens > 1 else 0
        needs, reduction, *more = form.split()
        case = replace(case, b=None) if "bare" in more else case
        case = case.strided() if "strided" in more else case
        needs = "w" if case.b is None else needs
        o |= {"ignore_index": ignore, "reduction": reduction}
        return worst(gradients(function, case, needs, scale, **o), reference(case, needs, scale, **o))

    forms = [f"{n} {r}{m}" for n in ("w", "b", "wb") for r in ("mean", "sum") for m in ("", " strided", " bare")]
    numbers = {"tokens": st.integers(2, 9), "hidden": st.integers(1, 9), "vocab": st.integers(2, 40)}
    options = {
        "form": st.sampled_from(forms),
        "ignore": st.sampled_from([IGNORE, -1]),
        "chosen": st.lists(st.sampled_from(sorted(choices(2, device))), unique=True),
        "scale": st.sampled_from([1.0, 2.5, -0.3]),
    }
    # fp32: sums of at most 40 terms at 2**-23 make 5e-6; the rest is for sums that cancel
    space = {**numbers, **options, "seed": st.integers(0, 9999)}
    p.drawn("drawn heads", measure, 1e-4, space=space, count=16, reference=FP64, bug_above=BUG)


def calls(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Other ways to the same function, and other times at which its backward runs."""

    def check(name: str, measured: float) -> None:
        p.error(name, measured, limit, reference=FP64, bug_above=BUG)

    bare = replace(case, b=None)
    want = reference(bare, "w")
    module = p.upstream("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()
    functional = p.upstream("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    for name, call in (
        ("module", lambda x, w: module(w, x, bare.target)),
        ("functional", lambda x, w: functional(x, w, bare.target)),
    ):
        leaves = bare.leaves("w")
        check(name, worst(differentiate(call(*leaves[:2]), leaves), want))
    leaves = bare.leaves("w")
    loss = liger(function, leaves, bare.target, extras=True)[0]
    check("z-loss and accuracy asked for", worst(differentiate(loss, leaves), want))
    leaves = bare.leaves("w")
    loss = liger(function, leaves, bare.target)[0]
    differentiate(loss, leaves)
    check("second backward", worst(differentiate(loss, leaves), want))
    pairs = []
    for scale in (1.0, 3.0):  # two micro-batches whose backwards come after both forwards
        leaves = bare.leaves("w")
        pairs.append((liger(function, leaves, bare.target)[0] * scale, leaves, reference(bare, "w", scale)))
    for name, (loss, leaves, expected) in zip(("first", "second"), pairs, strict=True):
        check(f"{name} of two losses", worst(differentiate(loss, leaves), expected))
    leaves = bare.leaves("w")
    loss = liger(function, leaves, bare.target)[0]
    p.guard(
        "hidden states want a gradient after the call",
        any(t is not None and t.requires_grad for t in leaves[:1]),
        0,
        reference="they are the caller's",
    )
    with torch.no_grad():
        bare.x.mul_(2.0)
    try:
        off = worst(differentiate(loss, leaves), want)
    except RuntimeError as refused:
        if "inplace operation" not in str(refused):
            raise
        off = 0.0  # autograd sees that what the backward needs is gone
    bare.x.mul_(0.5)
    check("hidden states changed before the backward", off)
    leaves = bare.leaves("w")
    for _ in range(2):  # gradients accumulate
        liger(function, leaves, bare.target)[0].backward()
    twice = [None if t is None else 2 * t for t in want]
    check("two micro-batches", worst([None if t is None else t.grad for t in leaves], twice))
    full = Case(case.x.float(), case.w.float(), None if case.b is None else case.b.float(), case.target)
    with torch.autocast(case.x.device.type, torch.bfloat16):
        got = gradients(function, full, "wb")
    p.error("autocast", worst(got, reference(full, "wb")), BF16, reference=FP64, bug_above=BUG)
    narrow = [t is not None and t.dtype != torch.float32 for t in got]
    p.guard("autocast: gradients not in fp32", sum(narrow), 0, reference="the operands' dtype")


def trained_trunk(p: probe.Probe, function: Any, case: Case, limit: float) -> None:
    """Where the hidden states want a gradient everything is as it was; so is what wants none at all."""
    for reduction in ("mean", "sum", "none"):
        for needs in ("xwb", "xw", "xb", "x"):
            # 0.7.0's "none" has one number for all tokens, which here it is
            got, want = (f(case, needs, reduction=reduction) for f in (partial(gradients, function), reference))
            # a bias is given its gradient whether it wants one or not, and autograd drops it
            p.guard(f"{reduction}, {needs}: gradients", worst(got, want), limit, reference=FP64)
            p.digest(f"{reduction}, {needs}: bits", *(g for g in got if g is not None))
    for reduction in ("mean", "sum"):
        loss = liger(function, replace(case, b=None).leaves(""), case.target, reduction=reduction)[0]
        p.guard(f"{reduction}, all frozen: the loss wants a gradient", loss.requires_grad, 0, reference="nothing does")
    bare = replace(case, b=None)
    for name, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with mode():
            loss = liger(function, bare.leaves("w"), bare.target)[0]
        want = eager([None if t is None else t.double() for t in bare.leaves("")], bare.target).item()
        p.guard(f"{name}: loss", abs(loss.item() / want - 1), limit, reference=FP64)


def cost(p: probe.Probe, function: Any, device: str) -> None:
    """Chunks stay chunks; no gradient of the hidden states is made; evaluation makes logits alone."""
    case = replace(Case.make((16, 4, 16), device, torch.float32, p.seed), b=None)  # 4 chunks of 4 tokens
    leaves = case.leaves("w")
    with Made() as made:
        got = differentiate(liger(function, leaves, case.target)[0], leaves)
    p.guard("products of a step", made.products, 3 * 4, reference="logits twice and the weight's gradient, in 4 chunks")
    # operands, their gradients and a chunk of logits have 64 fp32 numbers each, all logits 256
    p.guard("largest tensor of a step", made.largest, 128 * 4, reference="two chunks of logits", unit="bytes")
    p.error("products of a step: gradients", worst(got, reference(case, "w")), FP32, reference=FP64, bug_above=BUG)
    for name, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
        with mode(), Made() as made:
            liger(function, case.leaves("w"), case.target)
        p.guard(f"{name}: products", made.products, 4, reference="the logits, in 4 chunks")
        p.guard(f"{name}: largest tensor", made.largest, 128 * 4, reference="two chunks of logits", unit="bytes")


def large(p: probe.Probe, function: Any) -> None:
    """A real head on the GPU: gradients, peak memory above the operands, and time, as notes."""
    case = replace(Case.make((4096, 4096, 65536), "cuda", torch.bfloat16, p.seed), b=None)
    got = gradients(function, case, "w")[1]
    leaves = [None if t is None else t.float() for t in case.leaves("")]
    assert leaves[1] is not None
    leaves[1].requires_grad_()
    want = differentiate(eager(leaves, case.target), leaves)[1]  # fp64 logits do not fit beside fp32's gradient
    p.error("large head: grad of weight", error(got, want), BF16, reference="eager fp32", bug_above=BUG)
    del leaves, want, got
    for name, needs in (("frozen trunk", "w"), ("trained trunk", "xw")):
        leaves = case.leaves(needs)
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss = liger(function, leaves, case.target)[0]
        held = torch.cuda.memory_allocated() - base
        loss.backward()
        peak = torch.cuda.max_memory_allocated() - base
        p.note(f"{name}: held for backward", held / 2**30, unit="GiB", detail="above the operands")
        p.note(f"{name}: peak", peak / 2**30, unit="GiB", detail="above the operands, gradients among it")
        del loss
        step = partial(gradients, function, case, needs)
        p.note(f"{name}: forward and backward", p.milliseconds(step, 7, 2), unit="ms", detail="median of 7")


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; bf16, compiled, up to a real head's size on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    function = p.upstream("liger_kernel.ops.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyFunction
    if p.lane == "cpu":
        device, limit = "cpu", FP32
        case = Case.make((12, 32, 64), device, torch.float32, p.seed)  # a full and a ragged chunk
    else:
        device, limit = "cuda", BF16
        case = Case.make((512, 256, 1024), device, torch.bfloat16, p.seed)
        torch.backends.cuda.matmul.allow_tf32 = False
    claim(p, function, case, limit)
    fine_tune(p, function, device)
    calls(p, function, case, limit)
    trained_trunk(p, function, case, limit)
    cost(p, function, device)
    drawn(p, function, device)
    if p.lane == "cuda":
        large(p, function)


if __name__ == "__main__":
    probe.main(reproduce, pack=27, package="liger_kernel", minimal=minimal, prepare=prepare)
