# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.4", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis", "liger-kernel"]
# ///
"""The backward of Liger's SiLU-mul and GELU-mul writes the gradients over the gate and the up projection.

Both are the caller's tensors. Whatever else has saved them gets a wrong gradient in a single backward: a loss on the
gate, an activation before it that saves its output, the same tensor as gate and up. So do a second backward of a kept
graph and whoever reads the activations later. Autograd's version counters do not see Triton's writes: nothing raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.tensor  # the newer releases use it without an import of their own
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """A loss on the gate beside the output's, against torch's."""
    import torch
    from liger_kernel.transformers.functional import liger_swiglu

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    w, x, up = (torch.randn(64, 64, device=device, requires_grad=True) for _ in range(3))
    gradients = []
    for swiglu in (liger_swiglu, lambda a, b: torch.nn.functional.silu(a) * b):
        gate = x @ w
        loss = gate.square().mean() + swiglu(gate, up).mean()
        gradients += torch.autograd.grad(loss, w)
    print("norms of the gradient, Liger's and torch's:", *(f"{g.norm():.5f}" for g in gradients))
    torch.testing.assert_close(*gradients)


FP64 = "eager fp64"
# fp32: sums of at most 64 terms at 2**-23, GELU's tanh to some 1e-6; a gate that is overwritten is off by O(1)
FP32, BUG = 2e-5, 0.02
BF16 = 3e-2  # what leaves in bf16 is rounded to 2**-9
Leaves = list[Tensor]


@dataclass(frozen=True)
class Op:
    """One way to act(gate) * up, by Liger and by torch."""

    name: str
    liger: Callable[..., Tensor]
    eager: Callable[..., Tensor]


def gelu(a: Tensor, b: Tensor) -> Tensor:
    return F.gelu(a, approximate="tanh") * b


def silu(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def operators(p: probe.Probe) -> Iterator[Op]:
    """Autograd functions and functions, the one with multipliers where the tree has them."""
    ops, functional = p.upstream("liger_kernel.ops"), p.upstream("liger_kernel.transformers.functional")
    yield Op("SiLU", ops.LigerSiLUMulFunction.apply, silu)
    yield Op("GELU", ops.LigerGELUMulFunction.apply, gelu)
    yield Op("SiLU, function", functional.liger_swiglu, silu)
    yield Op("GELU, function", functional.liger_geglu, gelu)
    if "gate_multiplier" in inspect.signature(ops.LigerSiLUMulFunction.forward).parameters:
        yield Op(
            "SiLU, multipliers",
            lambda a, b: ops.LigerSiLUMulFunction.apply(a, b, 0.5, 3.0),
            lambda a, b: 3.0 * silu(0.5 * a, b),
        )


@dataclass(frozen=True)
class Case:
    """Rows x [tokens, hidden], weights of gate and up [hidden, inner], and a gradient go [tokens, inner]."""

    x: Tensor
    gate: Tensor
    up: Tensor
    go: Tensor

    @classmethod
    def make(cls, sizes: tuple[int, int, int], device: str, dtype: torch.dtype, seed: int) -> Case:
        tokens, hidden, inner = sizes
        generator = torch.Generator().manual_seed(seed)

        def draw(rows: int, columns: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) * scale).to(device, dtype)

        unit = hidden**-0.5
        return cls(draw(tokens, hidden), draw(hidden, inner, unit), draw(hidden, inner, unit), draw(tokens, inner))

    def gradients(self, act: Callable[..., Tensor], layer: Callable[..., Tensor], fp64: bool) -> Leaves:
        """Of x and both weights, for the number that ``layer(x, gate, up, act, go)`` returns."""
        leaves = [(t.double() if fp64 else t.clone()).detach().requires_grad_() for t in (self.x, self.gate, self.up)]
        return list(torch.autograd.grad(layer(*leaves, act, self.go.to(leaves[0].dtype)), leaves))


def worst(got: Leaves, want: Leaves) -> float:
    """The largest of max|got - want| / max|want|, NaN where one is not finite."""
    errors = [(g.double() - w).abs().max() / (w.abs().max().item() or 1.0) for g, w in zip(got, want, strict=True)]
    return torch.stack(errors).max().item()


def auxiliary(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """A loss on the gate that is made first, so that its backward comes last."""
    a = x @ gate
    loss = a.square().sum()
    return loss + (act(a, x @ up) * go).sum()


def auxiliary_up(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    b = x @ up
    loss = b.square().sum()
    return loss + (act(x @ gate, b) * go).sum()


def activated(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """Activations before it whose backwards read what they returned."""
    return (act(torch.tanh(x @ gate), torch.sigmoid(x @ up)) * go).sum()


def same(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """One tensor is gate and up."""
    a = x @ gate
    return (act(a, a) * go).sum() + (x @ up).sum()


def two_acts(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """One gate for two branches, as experts that share it."""
    a = x @ gate
    return (act(a, x @ up) * go).sum() + (act(a, x @ up + 1) * go).sum()


def plain(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    return (act(x @ gate, x @ up) * go).sum()


def scaled(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """The same activations, with products between that save nothing."""
    return (act(3 * torch.tanh(x @ gate), 2 * torch.sigmoid(x @ up)) * go).sum()


def auxiliary_after(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """A loss on the gate that is made last: its backward comes first."""
    a = x @ gate
    out = (act(a, x @ up) * go).sum()
    return a.square().sum() + out


def chunked(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """Gate and up are halves of one product, which the operator copies to have them contiguous."""
    a, b = (x @ torch.cat([gate, up], 1)).chunk(2, -1)
    return (act(a, b) * go).sum()


def batched(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    return (act((x @ gate)[None], (x @ up)[None])[0] * go).sum()


def expanded(x: Tensor, gate: Tensor, up: Tensor, act: Callable[..., Tensor], go: Tensor) -> Tensor:
    """A gradient of one number for all, which autograd hands over without a memory of its own."""
    return act(x @ gate, x @ up).sum()


SHARED = {
    "a loss on the gate": auxiliary,
    "a loss on the up projection": auxiliary_up,
    "activations before it": activated,
    "one tensor twice": same,
    "a gate for two": two_acts,
}
ALONE = {
    "alone": plain,
    "a loss on the gate, made last": auxiliary_after,
    "halves of one product": chunked,
    "three dimensions": batched,
    "one gradient for all": expanded,
    "products between": scaled,
}


def layers(p: probe.Probe, op: Op, case: Case, limit: float, label: str = "") -> None:
    """Gradients of x and both weights in each kind of layer."""
    for name, layer in {**SHARED, **ALONE}.items():
        got, want = case.gradients(op.liger, layer, False), case.gradients(op.eager, layer, True)
        full = f"{label}{op.name}, {name}"
        if name in SHARED:
            p.error(full, worst(got, want), limit, reference=FP64, bug_above=BUG)
        else:
            p.guard(full, worst(got, want), limit, reference=FP64)
            p.digest(f"{full}, bits", *got)


def later(p: probe.Probe, op: Op, case: Case, limit: float) -> None:
    """What comes after a backward: another one, and who reads gate and up."""
    a, b = (t.detach().requires_grad_() for t in (case.x @ case.gate, case.x @ case.up))
    held = a.detach().clone(), b.detach().clone()
    want = [t.detach().double().requires_grad_() for t in (a, b)]
    want = list(torch.autograd.grad(op.eager(*want), want, case.go.double()))
    out = op.liger(a, b)
    first = torch.autograd.grad(out, (a, b), case.go, retain_graph=True)
    p.guard(f"{op.name}: first backward", worst(list(first), want), limit, reference=FP64)
    kept = [t.clone() for t in first]
    for name, t, was in zip(("gate", "up"), (a, b), held, strict=True):
        off = (t.detach() - was).abs().max().item()
        p.error(f"{op.name}: {name} after the backward", off, 0, reference="as it was", bug_above=BUG)
    second = torch.autograd.grad(out, (a, b), case.go)
    p.error(f"{op.name}: second backward", worst(list(second), want), limit, reference=FP64, bug_above=BUG)
    off = worst(list(first), [t.double() for t in kept])
    p.error(f"{op.name}: first gradient after the second", off, 0, reference="as it was", bug_above=BUG)
    for needs in ((True, False), (False, True)):
        a, b = (t.clone().requires_grad_(n) for t, n in zip(held, needs, strict=True))
        (got,) = torch.autograd.grad(op.liger(a, b), a if needs[0] else b, case.go)
        name = "gate" if needs[0] else "up"
        p.guard(
            f"{op.name}: {name} alone wants a gradient",
            worst([got], [want[0 if needs[0] else 1]]),
            limit,
            reference=FP64,
        )
    a, b = (t.clone().requires_grad_() for t in held)
    out = op.liger(a, b)
    with torch.no_grad():
        a.mul_(2)
    try:
        off = worst(list(torch.autograd.grad(out, (a, b), case.go)), want)
    except RuntimeError as refused:
        if "inplace" not in str(refused):
            raise
        off = 0.0  # autograd sees that what the backward needs is gone
    p.guard(f"{op.name}: gate changed before the backward", off, limit, reference=FP64)


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


def cost(p: probe.Probe, op: Op, case: Case) -> None:
    """A backward makes two gradients at most, and a forward its result."""
    a, b = (t.detach().requires_grad_() for t in (case.x @ case.gate, case.x @ case.up))
    product = "multipliers" in op.name  # out of place, by torch
    for name, times in (("forward", 1 + product), ("backward", 2 + product)):
        with Made(a.numel()) as made:
            if name == "forward":
                out = op.liger(a, b)
            else:
                torch.autograd.grad(out, (a, b), case.go)
        most = times * a.nbytes
        p.guard(f"{op.name}: bytes of a {name}", made.bytes, most, reference="what it returns", unit="bytes")


def tiles(p: probe.Probe, case: Case, limit: float) -> None:
    """The kernels for wide rows on Blackwell, which run anywhere when they are asked."""
    swiglu = p.upstream("liger_kernel.ops.swiglu")
    if not hasattr(swiglu, "_should_tile"):
        return
    chosen, swiglu._should_tile = swiglu._should_tile, lambda columns: True
    width, swiglu._SWIGLU_TILE = swiglu._SWIGLU_TILE, 16
    try:
        op = next(operators(p))
        layers(p, op, case, limit, "in tiles: ")
    finally:
        swiglu._should_tile, swiglu._SWIGLU_TILE = chosen, width


def modules(p: probe.Probe, device: str, limit: float) -> None:
    """The MLPs that are patched into models, under a loss on the gate as a hook adds it."""
    config = SimpleNamespace(hidden_size=12, intermediate_size=20, hidden_act="silu")
    tanh = SimpleNamespace(hidden_size=12, intermediate_size=20, hidden_act="gelu_pytorch_tanh")
    kinds = {
        "LigerSwiGLUMLP": (p.upstream("liger_kernel.transformers.swiglu").LigerSwiGLUMLP(config), silu),
        "LigerGEGLUMLP": (p.upstream("liger_kernel.transformers.geglu").LigerGEGLUMLP(tanh), gelu),
    }
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(p.seed)).to(device)
    for name, (mlp, act) in kinds.items():
        mlp = mlp.to(device)
        losses: Leaves = []
        mlp.gate_proj.register_forward_hook(lambda module, args, out, losses=losses: losses.append(out.square().sum()))
        out = mlp(x)
        leaves = list(mlp.parameters())
        got = torch.autograd.grad(out.square().sum() + losses[0], leaves)
        gate, up, down = (t.detach().double().requires_grad_() for t in leaves)
        a = x.double() @ gate.t()
        loss = (act(a, x.double() @ up.t()) @ down.t()).square().sum() + a.square().sum()
        want = torch.autograd.grad(loss, (gate, up, down))
        p.error(f"{name}, a loss on the gate", worst(list(got), list(want)), limit, reference=FP64, bug_above=BUG)


def drawn(p: probe.Probe, device: str) -> None:
    """Any size, way and layer."""

    def measure(tokens: int, hidden: int, inner: int, which: int, layer: str, seed: int) -> float:
        found = list(operators(p))
        op, case = found[which % len(found)], Case.make((tokens, hidden, inner), device, torch.float32, seed)
        return worst(case.gradients(op.liger, SHARED[layer], False), case.gradients(op.eager, SHARED[layer], True))

    sizes = {"tokens": st.integers(1, 6), "hidden": st.integers(1, 9), "inner": st.integers(1, 40)}
    space = {
        **sizes,
        "which": st.integers(0, 4),
        "layer": st.sampled_from(sorted(SHARED)),
        "seed": st.integers(0, 9999),
    }
    # fp32: gradients of few terms that cancel
    p.drawn("drawn layers", measure, 1e-3, space=space, count=16, reference=FP64, bug_above=BUG)


def measured(p: probe.Probe) -> None:
    """Memory and time at a model's size, as notes."""
    for op in list(operators(p))[:2]:
        a, b, go = (torch.randn(8192, 14336, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        a.requires_grad_(), b.requires_grad_()

        def step(op: Op = op, a: Tensor = a, b: Tensor = b, go: Tensor = go) -> Any:
            return torch.autograd.grad(op.liger(a.tanh(), b.tanh()), (a, b), go)

        step()
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = (torch.cuda.max_memory_allocated() - base) / 2**20
        p.note(f"{op.name}: peak of forward and backward", peak, unit="MiB", detail="8192 x 14336, bf16")
        p.note(f"{op.name}: forward and backward", p.milliseconds(step, 20, 3), unit="ms")


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
    case = Case.make((6, 24, 40), device, torch.float32, p.seed)
    for op in operators(p):
        layers(p, op, case, FP32)
        later(p, op, case, FP32)
        cost(p, op, case)
    tiles(p, case, FP32)
    modules(p, device, FP32)
    drawn(p, device)
    if p.lane == "cuda":
        for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, BF16)):  # sums of 1024 terms
            wide = Case.make((512, 256, 1024), device, dtype, p.seed)
            for op in operators(p):
                layers(p, op, wide, limit, f"512 x 1024, {dtype}: ".replace("torch.", ""))
        measured(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=23, package="liger_kernel", minimal=minimal, prepare=prepare)
