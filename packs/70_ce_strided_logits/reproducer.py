# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's cross entropy returns the logits as their gradient where the logits' last stride is not 1.

The kernel writes the gradient over the logits, and computes one where the logits require one. Logits whose last stride
is not 1 are copied first, within the forward of an autograd function, where a copy requires no gradient. So the copy
stays as it is, and the backward hands it out. The loss is right. Such logits are a transposed view, as of a head that
puts classes first, or every other column of a matrix.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """The gradient of logits that a head with classes first gives."""
    import torch
    from liger_kernel.transformers import LigerCrossEntropyLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    logits = torch.randn(16, 4, device=device).t().requires_grad_()
    target = torch.arange(4, device=device)
    (want,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), logits)
    (got,) = torch.autograd.grad(LigerCrossEntropyLoss()(logits, target), logits)
    print(f"norm of the gradient: {got.norm():.4f}, should be {want.norm():.4f}")
    torch.testing.assert_close(got, want)


FP64 = "eager fp64"
# over the largest entry of the gradient. fp32: a softmax of at most 70 terms at 2**-23, its exponentials at 1e-6; half
# types: logits are read exactly, the gradient is rounded to 2**-9 of itself, scaled once more in the backward. The bug
# hands out logits, which are of size 1, for gradients below 1: off by 1 and more
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
BUG = 0.5
IGNORE = -100


def apart(values: Tensor, step: int, shift: int = 0) -> Tensor:
    """The same values in columns that lie ``step`` apart, NaN between them."""
    memory = torch.full((len(values), values.shape[1] * step + shift), float("nan"), dtype=values.dtype)
    memory = memory.to(values.device)
    memory[:, shift::step] = values
    return memory[:, shift::step]


# layouts [BT, V] of the same values whose last stride is not 1
STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: t.t().contiguous().t(),
    "classes first, batch of 1": lambda t: t.t().contiguous()[None].transpose(1, 2).reshape(-1, t.shape[1]),
    "every other column": lambda t: apart(t, 2),
    "every third column, from the second": lambda t: apart(t, 3, 1),
    "one of a last dimension of two": lambda t: torch.stack([torch.full_like(t, float("nan")), t], -1)[..., 1],
    "rows of a transposed matrix": lambda t: torch.cat([t, t]).t().contiguous().t()[: len(t)],
}
# layouts whose last stride is 1
DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.clone(),
    "columns of a wider matrix": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "every other row": lambda t: torch.stack([t, t], 1)[:, 0],
}


@dataclass(frozen=True)
class Case:
    """Logits [BT, V], labels [BT] and options of the loss by the names of upstream's function."""

    logits: Tensor
    target: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def make(tokens: int, vocab: int, device: str, dtype: torch.dtype, seed: int, **options: Any) -> Case:
        """Random ones, every third label ignored from the second on."""
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(tokens, vocab, generator=generator).to(device, dtype)
        target = torch.randint(0, vocab, (tokens,), generator=generator).to(device)
        target[1::3] = IGNORE
        if options.pop("weighted", False):
            options["weight"] = (torch.rand(vocab, generator=generator) + 0.5).to(device)
        return Case(logits, target, options)

    def eager(self, z: Tensor) -> Tensor:
        """The loss of fp64 logits [BT, V] by torch: [BT] for "none", else []."""
        o = self.options
        if cap := o.get("softcap"):
            z = cap * torch.tanh(z / cap)
        weight, reduction = o.get("weight"), o.get("reduction", "mean")
        weight = None if weight is None else weight.double()
        smoothing = o.get("label_smoothing", 0.0)
        loss = F.cross_entropy(z, self.target, weight, None, IGNORE, None, reduction, smoothing)
        if scale := o.get("lse_square_scale"):
            kept = self.target != IGNORE
            more = scale * torch.where(kept, z.logsumexp(-1), 0.0) ** 2
            loss = loss + {"none": more, "sum": more.sum(), "mean": more.sum() / kept.sum()}[reduction]
        return loss

    def above(self, scale: float) -> Tensor:
        """What the backward is given: ``scale``, of each token another where each has a loss."""
        if self.options.get("reduction", "mean") != "none":
            return torch.tensor(scale, device=self.logits.device)
        return scale * torch.linspace(0.5, 1.5, len(self.logits), device=self.logits.device)

    def want(self, scale: float = 1.0) -> Tensor:
        """The gradient [BT, V] in fp64."""
        leaf = self.logits.detach().double().requires_grad_()
        return torch.autograd.grad(self.eager(leaf), leaf, self.above(scale).double())[0]

    def error(self, got: Tensor, scale: float = 1.0) -> float:
        """The largest error of a gradient over its largest entry."""
        want = self.want(scale)
        return ((got.double() - want).abs().max() / (want.abs().max().item() or 1.0)).item()


@dataclass(frozen=True)
class Entry:
    """One way to call the loss: of logits and a case, the loss."""

    name: str
    call: Callable[[Tensor, Case], Tensor]

    def backward(self, case: Case, layout: Callable[[Tensor], Tensor], scale: float = 1.0) -> Tensor:
        """The gradient that logits in a layout get; what the loss may write to is no leaf, as a layer's output."""
        leaf = layout(case.logits).requires_grad_()
        loss = self.call(leaf.view_as(leaf), case)
        return torch.autograd.grad(loss, leaf, case.above(scale).to(loss.dtype))[0]


def entries(p: probe.Probe) -> list[Entry]:
    """The autograd function, the function of the public API and the module."""
    function = p.upstream("liger_kernel.ops").LigerCrossEntropyFunction
    order = [*inspect.signature(function.forward).parameters][3:]
    default = {k: v.default for k, v in inspect.signature(function.forward).parameters.items()}
    functional = p.upstream("liger_kernel.transformers.functional").liger_cross_entropy
    module = p.upstream("liger_kernel.transformers.cross_entropy").LigerCrossEntropyLoss

    def apply(z: Tensor, case: Case) -> Tensor:
        values = [case.options.get(k, None if k == "weight" else default[k]) for k in order]
        return function.apply(z, case.target, *values)[0]  # type: ignore[no-any-return]

    return [
        Entry("function", apply),
        Entry("functional", lambda z, case: functional(z, case.target, **case.options)),
        Entry("module", lambda z, case: module(**case.options)(z, case.target)),
    ]


# up to 0.8.3 a softcap makes logits of what pads a block of the kernel: 16 classes need no padding
OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.1},
    "z-loss": {"lse_square_scale": 0.01},
    "softcap": {"softcap": 2.0},
    "class weights": {"weighted": True},
    "class weights, smoothing, none": {"weighted": True, "label_smoothing": 0.2, "reduction": "none"},
}


def gradients(
    p: probe.Probe, entry: Entry, device: str, dtype: torch.dtype, scale: float, options: tuple[str, ...]
) -> None:
    """Each layout, of the loss times ``scale``."""
    kind = str(dtype).removeprefix("torch.")
    for option in options:
        case = Case.make(4, 16 if option == "softcap" else 19, device, dtype, p.seed, **OPTIONS[option])
        for name, layout in {**STRIDED, **DENSE}.items():
            off = case.error(entry.backward(case, layout, scale), scale)
            full = f"{entry.name}, {kind}, {option}, times {scale}: {name}"
            if name in STRIDED:
                p.error(full, off, LIMITS[dtype], reference=FP64, bug_above=BUG)
            else:
                p.guard(full, off, LIMITS[dtype], reference=FP64)


def losses(p: probe.Probe, entry: Entry, device: str, dtype: torch.dtype) -> None:
    """The loss is right in every layout, with gradients and without, of labels in a layout too, and has its dtype."""
    kind = str(dtype).removeprefix("torch.")
    layouts = {name: {**STRIDED, **DENSE}[name] for name in ("transposed", "every other column", "contiguous")}
    layouts["one logit for all classes"] = lambda t: t[:, :1].expand_as(t)
    for option in ("mean", "none", "softcap", "class weights, smoothing, none"):
        case = Case.make(3, 16 if option == "softcap" else 19, device, dtype, p.seed, **OPTIONS[option])
        for name, layout in layouts.items():
            logits = layout(case.logits)
            want = case.eager(logits.detach().double())
            for mode in ("gradients", "no_grad", "a constant"):
                with torch.set_grad_enabled(mode == "gradients"):
                    given = layout(case.logits).requires_grad_(mode != "a constant")
                    loss = entry.call(given.view_as(given), case)
                off = ((loss.double() - want).abs().max() / want.abs().max()).item()
                full = f"{entry.name}, {kind}, {option}, {name}, {mode}"
                p.guard(f"{full}: loss", off, LIMITS[dtype], reference=FP64)
                p.guard(f"{full}: loss of another dtype", loss.dtype != dtype, 0, reference="that of the logits")
                p.guard(f"{full}: wants a gradient", loss.requires_grad != (mode == "gradients"), 0, reference="torch")
        labels = torch.stack([case.target, case.target], 1)[:, 0]
        apart_labels = Case(case.logits, labels, case.options)
        off = case.error(entry.backward(apart_labels, STRIDED["transposed"]))
        p.error(f"{entry.name}, {kind}, {option}, strided labels", off, LIMITS[dtype], reference=FP64, bug_above=BUG)


def outputs(p: probe.Probe, device: str) -> None:
    """What the loss returns beside itself, of transposed logits."""
    functional = p.upstream("liger_kernel.transformers.functional").liger_cross_entropy
    case = Case.make(7, 20, device, torch.float32, p.seed, lse_square_scale=0.01)
    kept = case.target != IGNORE
    lse = case.logits.double().logsumexp(-1)
    right = case.logits.argmax(-1) == case.target
    want = {"z_loss": (0.01 * lse[kept] ** 2).mean(), "token_accuracy": right[kept].double().mean()}
    known = inspect.signature(functional).parameters
    if "return_predicted_tokens" in known:
        want["predicted_tokens"] = torch.where(kept, case.logits.argmax(-1), -1)
    leaf = STRIDED["transposed"](case.logits).requires_grad_()
    asked = {f"return_{name}": True for name in want}
    out = functional(leaf.view_as(leaf), case.target, **case.options, **asked)
    for name, value in want.items():
        off = (getattr(out, name).double() - value.double()).abs().max().item()
        p.guard(f"{name}, transposed", off, 1e-5, reference=FP64)
    (got,) = torch.autograd.grad(out.loss, leaf)
    p.error("gradient beside other outputs", case.error(got), 1e-5, reference=FP64, bug_above=BUG)


def kept_values(p: probe.Probe, entry: Entry, device: str) -> None:
    """What the loss must not write to: strided logits, logits that want no gradient, labels, class weights."""
    for name, layout in {**STRIDED, "contiguous, a constant": DENSE["contiguous"]}.items():
        case = Case.make(3, 18, device, torch.float32, p.seed, weighted=True)
        case.target[:] = torch.arange(3, device=device)  # ignored rows are cleared, with or without a gradient
        constant = name.endswith("constant")
        leaf = layout(case.logits).requires_grad_(not constant)
        given = leaf.view_as(leaf)
        held = [t.detach().clone() for t in (given, case.target, case.options["weight"])]
        loss = entry.call(given, case)
        if not constant:
            first = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
            was = first.clone()
            second = torch.autograd.grad(loss, leaf)[0]
            full = f"{entry.name}, {name}: second backward"
            p.error(full, case.error(second), 1e-5, reference=FP64, bug_above=BUG)
            off = (first - was).abs().max().item()
            p.guard(f"{entry.name}, {name}: first gradient after the second", off, 0, reference="as it was")
        for what, now, was in zip(
            ("logits", "labels", "class weights"), (given, case.target, case.options["weight"]), held, strict=True
        ):
            off = (now.detach() - was).abs().max().item()
            p.guard(f"{entry.name}, {name}: {what} after the loss", off, 0, reference="as they were")


def graphs(p: probe.Probe, entry: Entry, device: str) -> None:
    """Two losses before their backwards, logits below other layers, and a loss that comes again at other values."""
    case, other = (Case.make(6, 15, device, torch.float32, p.seed + n) for n in range(2))
    leaves = [STRIDED["transposed"](c.logits).requires_grad_() for c in (case, other)]
    both = [entry.call(z.view_as(z), c) for z, c in zip(leaves, (case, other), strict=True)]
    for n, c in ((1, other), (0, case)):
        (got,) = torch.autograd.grad(both[n], leaves[n])
        p.error(f"{entry.name}: overlapping losses, {n}", c.error(got), 1e-5, reference=FP64, bug_above=BUG)
    # channels first: a convolution's output [1, V, BT], transposed
    hidden = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(p.seed)).to(device)
    head = torch.randn(15, 4, 1, generator=torch.Generator().manual_seed(p.seed + 1)).to(device).requires_grad_()
    loss = entry.call(F.conv1d(hidden, head).transpose(1, 2)[0], case)
    (got,) = torch.autograd.grad(loss, head)
    wide = head.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(case.eager(F.conv1d(hidden.double(), wide).transpose(1, 2)[0]), wide)
    off = ((got.double() - want).abs().max() / want.abs().max()).item()
    p.error(f"{entry.name}: weight of a convolution", off, 1e-5, reference=FP64, bug_above=BUG)
    leaf = STRIDED["transposed"](case.logits)
    for n in range(3):
        leaf = leaf.detach().requires_grad_()
        now = Case(leaf.detach().clone(), case.target, case.options)
        (got,) = torch.autograd.grad(entry.call(leaf.view_as(leaf), now), leaf)
        p.error(f"{entry.name}: call {n} of the same memory", now.error(got), 1e-5, reference=FP64, bug_above=BUG)
        leaf.data.mul_(-1.5)


def fused(p: probe.Probe, device: str) -> None:
    """The loss with the head in it, whose chunks of logits the same kernel reads."""
    apply = p.upstream("liger_kernel.ops").LigerFusedLinearCrossEntropyFunction.apply
    case = Case.make(5, 12, device, torch.float32, p.seed)
    generator = torch.Generator().manual_seed(p.seed)
    leaves = [torch.randn(n, 6, generator=generator).to(device).requires_grad_() for n in (5, 12)]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    got = torch.autograd.grad(apply(*leaves, case.target)[0], leaves)
    want = torch.autograd.grad(case.eager(wide[0] @ wide[1].t()), wide)
    off = max(((g.double() - w).abs().max() / w.abs().max()).item() for g, w in zip(got, want, strict=True))
    p.guard("fused linear cross entropy: gradients", off, 1e-5, reference=FP64)


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


def cost(p: probe.Probe, entry: Entry, device: str) -> None:
    """Strided logits cost one tensor of their size, which the graph keeps; others cost none."""
    for option in ("mean", "none"):
        case = Case.make(3, 32, device, torch.float16, p.seed, **OPTIONS[option])
        size = case.logits.nbytes
        for name, layout in {**STRIDED, **DENSE}.items():
            leaf = layout(case.logits).requires_grad_()
            given = leaf.view_as(leaf)
            saved: list[int] = []

            def keep(t: Tensor, saved: list[int] = saved, least: int = case.logits.numel()) -> Tensor:
                saved.append(t.nbytes if t.numel() >= least else 0)
                return t

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), Made(case.logits.numel()) as forward:
                loss = entry.call(given, case)
            with Made(case.logits.numel()) as backward:
                torch.autograd.grad(loss, leaf, case.above(2.0))
            full = f"{entry.name}, {option}, {name}"
            copy = size if name in STRIDED else 0
            p.guard(f"{full}: bytes of a forward", forward.bytes, copy, reference="a copy at most", unit="bytes")
            p.guard(f"{full}: bytes kept", sum(saved), size, reference="the gradient", unit="bytes")
            product = size if option == "none" else 0
            p.guard(f"{full}: bytes of a backward", backward.bytes, product, reference="the product", unit="bytes")


def drawn(p: probe.Probe, entry: Entry, device: str) -> None:
    """Any size, layout, option and scale."""

    def measure(tokens: int, vocab: int, layout: str, option: str, scale: float, seed: int) -> float:
        case = Case.make(tokens, vocab, device, torch.float32, seed, **OPTIONS[option])
        return case.error(entry.backward(case, STRIDED[layout], scale), scale)

    # with one class or one token some layouts have a last stride of 1, or no gradient but 0
    space = {
        "tokens": st.integers(2, 5),
        "vocab": st.integers(2, 70),
        "layout": st.sampled_from(sorted(STRIDED)),
        "option": st.sampled_from(sorted(set(OPTIONS) - {"softcap"})),
        "scale": st.sampled_from([1.0, 2.0, -1.0, 0.25]),
        "seed": st.integers(0, 9999),
    }
    # a gradient of two classes may cancel to a hundredth of its terms
    p.drawn("drawn logits", measure, 1e-3, space=space, count=16, reference=FP64, bug_above=BUG)


def wide(p: probe.Probe, entry: Entry, device: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    """A vocabulary of several blocks of the kernel."""
    case = Case.make(*sizes, device, dtype, p.seed)
    kind = str(dtype).removeprefix("torch.")
    for name in ("transposed", "every other column"):
        off = case.error(entry.backward(case, STRIDED[name], 2.0), 2.0)
        full = f"{sizes[0]} x {sizes[1]}, {kind}: {name}"
        p.error(full, off, max(1e-4, LIMITS[dtype]), reference=FP64, bug_above=BUG)


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """Under Triton's interpreter on the CPU; compiled, and at a model's size, on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    function, functional, module = entries(p)
    gradients(p, function, device, torch.float32, 1.0, ("mean",))
    gradients(p, function, device, torch.float32, -0.3, tuple(OPTIONS))
    gradients(p, functional, device, torch.float16, -0.3, ("mean", "none"))
    # Triton's interpreter multiplies bfloat16 as the integers that hold it, which the backward does but for 1
    gradients(p, functional, device, torch.bfloat16, 1.0 if p.lane == "cpu" else -0.3, ("mean", "none"))
    losses(p, module, device, torch.float16)
    outputs(p, device)
    fused(p, device)
    for entry in (functional, module):
        kept_values(p, entry, device)
        graphs(p, entry, device)
    cost(p, function, device)
    drawn(p, module, device)
    wide(p, functional, device, torch.float32, (3, 40_000))
    if p.lane == "cuda":
        for dtype in (torch.float32, torch.bfloat16):
            wide(p, functional, device, dtype, (512, 50_000))


if __name__ == "__main__":
    probe.main(reproduce, pack=70, package="liger_kernel", minimal=minimal, prepare=prepare)
