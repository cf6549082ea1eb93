# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""Liger's norms write the gradient of their input over the gradient that they are given, unless told otherwise.

``in_place=True`` is the default of RMSNorm, of the modulated one and of PolyNorm. Autograd hands the gradient of
``h + norm(h)`` to both readers of ``h`` as one tensor, so that the residual's part is replaced by the norm's: the
gradient of all that made ``h`` is wrong. The caller's own gradient, and what a hook keeps, are overwritten as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed.tensor  # Liger 0.7.0 uses it without an import of its own
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """A norm on a residual, against the same with the option off."""
    import torch
    from liger_kernel.transformers import LigerRMSNorm

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, target = torch.randn(4, 64, device=device, requires_grad=True), torch.randn(4, 64, device=device)
    gradients = []
    for options in ({}, {"in_place": False}):
        h = 2 * x
        y = h + LigerRMSNorm(64, **options).to(device)(h)
        gradients += torch.autograd.grad((y * target).sum(), x)
    print("norms of the gradient:", *(round(g.norm().item(), 3) for g in gradients))
    torch.testing.assert_close(*gradients)


EPS = 1e-6
FP64 = "eager fp64"
# fp32: sums of at most 64 terms at 2**-23; a residual that is lost is off by O(1) of the gradient
FP32, BUG = 2e-5, 0.1
BF16 = 3e-2  # what leaves in bf16 is rounded to 2**-9, the gradient of the weight sums 512 such rows
Leaves = list[Tensor]


def rms(x: Tensor, w: Tensor | float = 1.0) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w


def poly(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """PolyCom's PolyNorm: cube, square and value, each divided by its root mean square, weighted."""
    return w[0] * rms(x**3) + w[1] * rms(x**2) + w[2] * rms(x) + b


@dataclass(frozen=True)
class Norm:
    """One way to one norm: of a hidden state and parameters, by Liger with its defaults and by torch."""

    name: str
    parameters: Leaves
    liger: Callable[..., Tensor]
    eager: Callable[..., Tensor]


def norms(p: probe.Probe, hidden: int, device: str, dtype: torch.dtype, seed: int) -> Iterator[Norm]:
    """Every way to a norm of the tree: its autograd function, function and module."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (1 + 0.3 * torch.randn(*shape, generator=generator)).to(device, dtype)

    ops, functional = p.upstream("liger_kernel.ops"), p.upstream("liger_kernel.transformers.functional")
    modules = p.upstream("liger_kernel.transformers.rms_norm")
    w = draw(hidden)

    def module(made: torch.nn.Module) -> Callable[..., Tensor]:
        """The module called as a function of its parameters, in their order, and of what its forward takes besides."""
        named = [name for name, _ in made.named_parameters()]

        def call(x: Tensor, *given: Tensor) -> Tensor:
            own = dict(zip(named, given, strict=False))
            return torch.func.functional_call(made, own, (x, *given[len(named) :]))  # type: ignore[no-any-return]

        return call

    yield Norm("RMSNorm, autograd function", [w], lambda x, w: ops.LigerRMSNormFunction.apply(x, w, EPS), rms)
    yield Norm("RMSNorm, function", [w], lambda x, w: functional.liger_rms_norm(x, w, EPS), rms)
    yield Norm("RMSNorm, module", [w], module(modules.LigerRMSNorm(hidden, EPS)), rms)
    gemma = module(modules.LigerRMSNormForGemma(hidden, EPS))
    yield Norm("RMSNorm, Gemma's module", [w], gemma, lambda x, w: rms(x, w + 1))
    yield Norm(
        "fused add, function",
        [w],
        lambda x, w: functional.liger_fused_add_rms_norm(x, torch.zeros_like(x), w, EPS)[0],
        rms,
    )
    three, b = draw(3), draw(1)[0]
    polys = p.upstream("liger_kernel.transformers.poly_norm")
    yield Norm("PolyNorm, autograd function", [three, b], ops.LigerPolyNormFunction.apply, poly)
    yield Norm("PolyNorm, function", [three, b], functional.liger_poly_norm, poly)
    yield Norm("PolyNorm, module", [three, b], module(polys.LigerPolyNorm()), poly)
    if hasattr(ops, "LigerModulatedRMSNormFunction"):
        scale, shift = draw(hidden), draw(hidden)
        apply = ops.LigerModulatedRMSNormFunction.apply
        modulated = p.upstream("liger_kernel.transformers.modulated_rms_norm").LigerModulatedRMSNorm(hidden, EPS)

        def eager(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
            return (1 + scale) * rms(x, w) + shift

        given = [w, scale, shift]
        yield Norm("modulated, autograd function", given, lambda x, *t: apply(x, *t, EPS), eager)
        yield Norm("modulated, function", given, functional.liger_modulated_rms_norm, eager)
        yield Norm("modulated, module", given, module(modulated), eager)


@dataclass(frozen=True)
class Case:
    """Rows x [tokens, hidden], the matrix a [hidden, hidden] of the layer that makes h of them, and a gradient go."""

    x: Tensor
    a: Tensor
    go: Tensor

    @classmethod
    def make(cls, tokens: int, hidden: int, device: str, dtype: torch.dtype, seed: int) -> Case:
        generator = torch.Generator().manual_seed(seed)
        x, a, go = (torch.randn(n, hidden, generator=generator) for n in (tokens, hidden, tokens))
        return cls(x.to(device, dtype), (a * hidden**-0.5).to(device, dtype), go.to(device, dtype))

    def gradients(
        self, norm: Callable[..., Tensor], parameters: Leaves, block: Callable[..., Tensor], fp64: bool
    ) -> Leaves:
        """Of x, a and the parameters, for the gradient go of ``block(h, norm)`` with h = x a."""
        given = [self.x, self.a, *parameters]
        leaves = [(t.double() if fp64 else t.clone()).detach().requires_grad_() for t in given]
        x, a, *rest = leaves
        y = block(x @ a, lambda h: norm(h, *rest))
        return list(torch.autograd.grad(y, leaves, self.go.double() if fp64 else self.go.clone()))


def worst(got: Leaves, want: Leaves) -> float:
    """The largest of max|got - want| / max|want|, NaN where one is not finite."""
    errors = [(g.double() - w).abs().max() / (w.abs().max().item() or 1.0) for g, w in zip(got, want, strict=True)]
    return torch.stack(errors).max().item()


def residual(h: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
    return h + norm(h)


# Blocks in which a norm's output is added to something, and blocks in which it is all there is.
SHARED: dict[str, Callable[..., Tensor]] = {
    "residual": residual,
    "residual on the left": lambda h, norm: norm(h) + h,
    "sandwich": lambda h, norm: h + norm(torch.tanh(norm(h))),  # as Gemma 2's, OLMo 2's and GLM 4's layers
    "two norms of one": lambda h, norm: norm(h) + norm(2 * h),
    "a view between": lambda h, norm: h.view(-1) + norm(h).view(-1),
}
ALONE: dict[str, Callable[..., Tensor]] = {
    "alone": lambda h, norm: norm(h),
    "before a layer": lambda h, norm: h + torch.tanh(norm(h)),  # pre-norm: tanh's backward makes a tensor of its own
    "in three dimensions": lambda h, norm: norm(h[None])[0],
}


def blocks(p: probe.Probe, each: Norm, case: Case, limit: float, label: str = "") -> None:
    """What a norm's gradients are, and those of the layer before it, in each kind of block."""
    chosen = SHARED if each.name == "RMSNorm, module" else {"residual": residual}
    for name, block in {**chosen, **ALONE}.items():
        reshaped = Case(case.x, case.a, case.go.view(-1)) if name == "a view between" else case
        want = reshaped.gradients(each.eager, each.parameters, block, True)
        got = reshaped.gradients(each.liger, each.parameters, block, False)
        full = f"{label}{each.name}, {name}"
        if name in SHARED:
            p.error(full, worst(got, want), limit, reference=FP64, bug_above=BUG)
        else:
            p.guard(full, worst(got, want), limit, reference=FP64)
            p.digest(f"{full}, bits", *got)


def kept(p: probe.Probe, each: Norm, case: Case) -> None:
    """Gradients that others hold: the caller's, what hooks keep, and retain_grad's."""

    def changed(call: Callable[[Tensor, Tensor], Tensor | None]) -> float:
        h = case.x.clone().requires_grad_()
        go = case.go.clone()
        held = call(each.liger(h, *each.parameters), go)
        return (case.go - (go if held is None else held)).abs().max().item()

    def given(y: Tensor, go: Tensor) -> None:
        y.backward(go)

    def hooked(y: Tensor, go: Tensor) -> Tensor:
        seen: Leaves = []
        y.register_hook(seen.append)
        (2 * y).backward(go)
        return seen[0] / 2

    def retained(y: Tensor, go: Tensor) -> Tensor | None:
        y.retain_grad()
        (2 * y).backward(go)
        return None if y.grad is None else y.grad / 2

    reference = "the gradient that the norm is given"
    p.guard(f"{each.name}: retain_grad changed", changed(retained), 1e-6, reference=reference)  # torch keeps a copy
    for name, call in {"caller's gradient": given, "gradient in a hook": hooked}.items():
        p.error(f"{each.name}: {name} changed", changed(call), 1e-6, reference=reference, bug_above=BUG)


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


def option(p: probe.Probe, case: Case, limit: float) -> None:
    """in_place=True, where it is asked for, is in place; without it a backward makes the gradient and nothing more."""
    ops, size = p.upstream("liger_kernel.ops"), case.x.shape[-1]
    w = torch.ones(size, device=case.x.device, dtype=case.x.dtype)
    three = torch.ones(3, device=case.x.device, dtype=case.x.dtype)
    asked: dict[str, Callable[[Tensor], Tensor]] = {
        "autograd function": lambda h: ops.LigerRMSNormFunction.apply(h, w, EPS, 0.0, "llama", True),
        "module": p.upstream("liger_kernel.transformers.rms_norm").LigerRMSNorm(size, in_place=True).to(case.x),
        "PolyNorm": lambda h: ops.LigerPolyNormFunction.apply(h, three, three[0], EPS, True),
    }
    for name, norm in asked.items():
        h, go = case.x.clone().requires_grad_(), case.go.clone()
        (got,) = torch.autograd.grad(norm(h), h, go)
        p.guard(
            f"in_place=True, {name}: not in place", got.data_ptr() != go.data_ptr(), 0, reference="it was asked for"
        )
    for name, in_place in (("True", (0.0, "llama", True)), ("False", (0.0, "llama", False)), ("default", ())):
        h, go = case.x.clone().requires_grad_(), case.go.clone()
        y = ops.LigerRMSNormFunction.apply(h, w, EPS, *in_place)
        with Made(h.numel()) as made:
            (got,) = torch.autograd.grad(y, h, go)
        most = 0 if name == "True" else h.nbytes
        p.guard(f"in_place {name}: bytes of a backward", made.bytes, most, reference="its gradient", unit="bytes")
        want = torch.autograd.grad(rms(d := h.detach().double().requires_grad_(), w.double()), d, case.go.double())
        p.guard(f"in_place {name}: gradient", worst([got], list(want)), limit, reference=FP64)


def drawn(p: probe.Probe, device: str) -> None:
    """Rows of any size, any norm, any block that shares a gradient."""

    def measure(tokens: int, hidden: int, which: int, block: str, seed: int) -> float:
        found = list(norms(p, hidden, device, torch.float32, seed))
        each = found[which % len(found)]
        case = Case.make(tokens, hidden, device, torch.float32, seed)
        got = case.gradients(each.liger, each.parameters, SHARED[block], False)
        return worst(got, case.gradients(each.eager, each.parameters, SHARED[block], True))

    shared = st.sampled_from(["residual", "residual on the left", "sandwich"])
    sizes = {"tokens": st.integers(1, 6), "hidden": st.integers(4, 70), "which": st.integers(0, 10)}
    space = {**sizes, "block": shared, "seed": st.integers(0, 9999)}
    # fp32: cubes of PolyNorm, and two norms one after the other, where terms cancel
    p.drawn("drawn blocks", measure, 1e-3, space=space, count=16, reference=FP64, bug_above=BUG)


def cost(p: probe.Probe) -> None:
    """Memory and time of one norm at a model's size, with the option and without, as notes."""
    case = Case.make(8192, 4096, "cuda", torch.bfloat16, p.seed)
    w = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    apply = p.upstream("liger_kernel.ops").LigerRMSNormFunction.apply
    for in_place in (True, False):
        h = case.x.clone().requires_grad_()

        def step(h: Tensor = h, in_place: bool = in_place) -> Any:
            return torch.autograd.grad(torch.tanh(apply(h, w, EPS, 0.0, "llama", in_place)), h, case.go)

        step()
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = (torch.cuda.max_memory_allocated() - base) / 2**20
        p.note(f"in_place={in_place}: peak of forward and backward", peak, unit="MiB", detail="8192 x 4096, bf16")
        p.note(f"in_place={in_place}: forward and backward", p.milliseconds(step, 20, 3), unit="ms")


def prepare(p: probe.Probe) -> None:
    """Without a GPU, Triton's interpreter."""
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    """fp32 under Triton's interpreter on the CPU; fp32 and bf16, compiled, on a GPU."""
    prepare(p)
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device", "run the cpu lane")
    device = "cpu" if p.lane == "cpu" else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = False
    case = Case.make(6, 48, device, torch.float32, p.seed)
    for each in norms(p, 48, device, torch.float32, p.seed):
        blocks(p, each, case, FP32)
        kept(p, each, case)
    option(p, case, FP32)
    drawn(p, device)
    if p.lane == "cuda":
        wide = partial(Case.make, 512, 1024, device)
        for dtype, limit in ((torch.float32, FP32), (torch.bfloat16, BF16)):
            for each in norms(p, 1024, device, dtype, p.seed):
                blocks(p, each, wide(dtype, p.seed), limit, f"512 x 1024, {dtype}: ".replace("torch.", ""))
        cost(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=22, package="liger_kernel", minimal=minimal, prepare=prepare)
