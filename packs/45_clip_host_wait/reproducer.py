# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""Without a kernel that scales by a tensor, Megatron's gradient clipping has the host wait for the total norm.

Transformer Engine has such a kernel since 2.14; Apex and Megatron's own fallback have none. There
``get_grad_norm_fp32`` reads the norm on the host, and ``clip_grad_by_total_norm_fp32`` refuses one that is a tensor.
Kernels in torch stand in for those of Apex and of Transformer Engine, one operator for a list as theirs, so that
neither has to be installed.
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """The norm of a gradient, beside Apex, a Transformer Engine before 2.14 or neither; as it stands on a GPU."""
    import torch
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32, get_grad_norm_fp32

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
    weight.grad = torch.ones(4, device="cuda")
    norm = get_grad_norm_fp32([weight.grad], 2, torch.distributed.group.WORLD)
    print("the host has read" if isinstance(norm, float) else "on the device:", norm)
    clip_grad_by_total_norm_fp32([weight], 1.0, norm)
    assert isinstance(norm, torch.Tensor) and weight.grad.norm() < 1.0001


CLIP = "megatron.core.optimizer.clip_grads"
FILE = "megatron/core/optimizer/clip_grads.py"
REFUSED = probe.Signature("AssertionError", "multi_tensor_scale_tensor not available", FILE)
ENGINE = "transformer_engine.pytorch.optimizers"
LACKING = ("neither", "Apex", "Transformer Engine before 2.14")
HALF = torch.bfloat16
FEW, MANY = 16, 256  # gradients
FP32 = 1e-6  # the factor is rounded three times, and each product once: 4 * 2**-24
EPS = 1.0e-6  # what upstream adds to the norm


def l2norm(chunk: int, flag: Tensor, lists: list[list[Tensor]], each: bool) -> tuple[Tensor, None]:
    """As Apex's and Transformer Engine's kernel: the norm [1] of a list in fp32."""
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in lists[0]]
    return torch.stack(norms).norm().view(1), None


def scale(chunk: int, flag: Tensor, lists: list[list[Tensor]], factor: float) -> None:
    """As their kernel that scales by a number: products in fp32, rounded once."""
    if isinstance(factor, Tensor):
        raise TypeError("the kernel takes a number")
    if others := [target for target in lists[1] if target.dtype != HALF]:
        torch._foreach_mul_(others, factor)
    for target in lists[1]:  # torch on a CPU would round the factor as well
        if target.dtype == HALF:
            target.copy_(target.float() * factor)


class Scale:
    """As Transformer Engine's kernel that scales by a tensor; ``seen``: by which."""

    def __init__(self) -> None:
        self.seen = list[Tensor]()

    def __call__(self, chunk: int, flag: Tensor, lists: list[list[Tensor]], factor: Tensor) -> None:
        self.seen.append(factor)
        for source, target in zip(*lists, strict=True):
            target.copy_(source.float() * factor.view(()))


def applier(op: Any, flag: Tensor, lists: list[list[Tensor]], *args: Any) -> Any:
    return op(2048 * 32, flag, lists, *args)


def beside(p: probe.Probe, found: str, by_tensor: Scale | None = None) -> Any:
    """Upstream's module, imported anew beside these packages; ``by_tensor``: a Transformer Engine has this as well."""
    names = ("transformer_engine", "transformer_engine.pytorch", ENGINE, "amp_C", "apex", "apex.multi_tensor_apply")
    made: dict[str, Any] = dict.fromkeys(names)  # None: it cannot be imported
    kernels: dict[str, Any] = {
        "multi_tensor_applier": applier,
        "multi_tensor_l2norm": l2norm,
        "multi_tensor_scale": scale,
    }
    if by_tensor:
        kernels["multi_tensor_scale_tensor"] = by_tensor
    present = {"neither": (), "Apex": names[3:]}.get(found, names[:3])
    for name in present:
        module = made[name] = ModuleType(name)
        vars(module).update(kernels, __path__=[])
        if (parent := name.rpartition(".")[0]) in made:
            setattr(made[parent], name.rpartition(".")[2], module)
    p.upstream(CLIP)  # with what is installed, so that its package is there
    with mock.patch.dict(sys.modules, made), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the packages are not installed
        del sys.modules[CLIP]
        return p.upstream(CLIP)


def parameters(grads: list[Tensor], decoupled: bool) -> list[Any]:
    """Parameters with these gradients, and one without any."""
    made: list[Any] = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in grads]
    for param, grad in zip(made, grads, strict=True):
        setattr(param, "decoupled_grad" if decoupled else "grad", grad)
    return [*made, torch.nn.Parameter(torch.zeros(3, device=torch.cuda.current_device()))]


class Step:
    """Gradients, their norm by upstream, and clipping; ``value``: the norm is of this alone, as of other parameters."""

    def __init__(
        self,
        clip: Any,
        grads: list[Tensor],
        *,
        most: float,
        value: float | None = None,
        kind: float = 2.0,
        decoupled: bool = False,
    ) -> None:
        self.clip, self.most, self.kind = clip, most, kind
        self.decoupled = decoupled or any(grad.dtype == HALF for grad in grads)
        device = torch.cuda.current_device()
        self.grads = [grad.to(device) for grad in grads]
        self.before = [grad.clone() for grad in self.grads]
        self.params = parameters(self.grads, self.decoupled)
        self.of = self.grads if value is None else [torch.full((1,), value, device=device)]
        self.norm: Any = None

    def read(self) -> None:
        self.norm = self.clip.get_grad_norm_fp32(self.of, self.kind, torch.distributed.group.WORLD)

    def scale(self) -> None:
        self.clip.clip_grad_by_total_norm_fp32(self.params, self.most, self.norm, self.decoupled)

    def __call__(self) -> None:
        self.read()
        self.scale()


def laid_out(count: int, seed: int, half: str) -> list[Tensor]:
    """Gradients of many layouts; at least 64 elements of each dtype that there is."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 40, (count, 2), generator=draw).tolist()
    made = [torch.randn(a, b, generator=draw) for a, b in sizes]
    made = [grad.t() if at % 3 == 1 else grad[:, ::2] if at % 3 == 2 else grad for at, grad in enumerate(made)]
    made = [*made, torch.randn(64, generator=draw), torch.randn((), generator=draw), torch.zeros(0)]
    if half == "no":
        return made
    others = [grad.to(HALF) for grad in made]
    return (
        others
        if half == "all"
        else [pair[at % 2] for at, pair in enumerate(zip(made, others, strict=True))]
        + [torch.randn(64, generator=draw).to(HALF)]
    )


def error(grads: list[Tensor], before: list[Tensor], factor: float) -> float:
    """The largest relative error of fp32 gradients, or 1 where one of 16 in bf16 is not rounded as it should be."""
    worst, off, halves = 0.0, 0, 0
    for grad, old in zip(grads, before, strict=True):
        right = old.double() * factor
        if grad.dtype != HALF:
            away = ((grad.double() - right).abs() / right.abs().clamp(min=1e-30)).max() if grad.numel() else 0.0
            worst = max(worst, float(away))
        else:
            off, halves = off + int((grad != right.to(HALF)).sum()), halves + grad.numel()
    # a factor that is off by 2**-23 moves one in thousands to the next number
    return math.nan if math.isnan(worst) else max(worst, float(off * 16 > halves))


def check_values(p: probe.Probe, modules: dict[str, Any]) -> None:
    def clipped(found: str, count: int, seed: int, half: str, part: float) -> float:
        grads = laid_out(count, p.seed + seed, half)
        exact = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        step = Step(modules[found], grads, most=exact * part)
        step()
        norm = float(step.norm)
        off = error(step.grads, step.before, min(1.0, step.most / (norm + EPS)))
        step()  # of what is clipped
        wide = abs(norm - exact) / exact > (2**-7 if found != "Apex" and half != "no" else 1e-5)
        return math.inf if wide else off

    space = {
        "found": st.sampled_from(LACKING),
        "count": st.integers(0, 12),
        "seed": st.integers(0, 9999),
        "half": st.sampled_from(["no", "all", "some"]),
        "part": st.sampled_from([2.0**-9, 0.3, 0.999, 1.0, 7.0]),
    }
    p.drawn("drawn gradients: clipped", clipped, FP32, space=space, count=32, reference="fp64 products")

    for given, factor in {"inf": 0.0, "nan": 1.0, "0": 1.0, "0.5": 1.0, "4": 0.25, "1e15": 1e-15}.items():
        wrong = 0
        for found in LACKING:
            for half in (torch.float32, HALF):
                strange = torch.tensor([1.5, -0.0, 0.0, math.inf, -math.inf, math.nan, 1e-40, -3e38, 2**-126])
                step = Step(
                    modules[found], [strange.to(half), strange.to(half).clone()[:1]], most=1.0, value=float(given)
                )
                step()
                for grad, old in zip(step.grads, step.before, strict=True):
                    right = old if factor == 1.0 else (old.double() * factor).to(half)
                    near = torch.isclose(grad.double(), right.double(), rtol=2**-8, atol=1e-37, equal_nan=True)
                    same = (grad == right) & (grad.signbit() == right.signbit()) | grad.isnan() & right.isnan()
                    wrong += int((~(same if factor in (0.0, 1.0) else near)).sum())
        p.guard(f"total norm {given}: gradients wrong", wrong, 0, reference="scaled where the factor is less than 1")

    step = Step(modules["Apex"], [torch.ones(70)], most=2.0**-9, value=2.0**-9)  # so small that what is added shows
    step.read()
    kept = float(step.norm)
    step.scale()
    p.guard("the norm after clipping", abs(float(step.norm) - kept), 0, reference="as it was returned")
    owned = [p.data_ptr() for p in step.grads]
    again = [param.grad.data_ptr() for param in step.params[:-1]]
    p.guard(
        "gradients that are others", sum(a != b for a, b in zip(owned, again, strict=True)), 0, reference="in place"
    )


def check_others(p: probe.Probe, modules: dict[str, Any]) -> None:
    """A number as the norm, other attributes, nothing to clip, and a kernel that is there."""
    for found in LACKING:
        for half in ("no", "all"):
            made = list[Tensor]()
            for number in (1.1, 3.3, 7.7, 123.456, 1e9 / 7, math.inf):
                step = Step(modules[found], laid_out(4, p.seed, half), most=0.7)
                step.norm = number
                step.scale()
                made += step.grads
            p.digest(f"{found}: clipped by a number, {half} bf16", *made)
    for decoupled in (False, True):
        step = Step(modules["Apex"], [torch.ones(70)], most=1.0, value=4.0, decoupled=decoupled)
        other = torch.ones(70, device=torch.cuda.current_device())
        setattr(step.params[0], "grad" if decoupled else "decoupled_grad", other)
        step()
        off = (step.grads[0] - 0.25).abs().max() + (other - 1).abs().max()
        p.guard(f"use_decoupled_grad {decoupled}: the wrong gradient", float(off), 1e-5, reference="one of the two")
    for found in LACKING:
        for name, grads in {"no gradient": [], "an empty one": [torch.zeros(0)]}.items():
            step = Step(modules[found], grads, most=1.0)
            p.guard_attempt(f"{found}: {name}", step)
            p.guard(f"{found}: the norm of {name}", float(step.norm), 0, reference="0")
    by_tensor = Scale()
    clip = beside(p, "Transformer Engine", by_tensor)
    step = Step(clip, [torch.ones(70)], most=1.0, value=4.0)
    step()
    p.guard("calls beside the kernel that takes a tensor", abs(len(by_tensor.seen) - 1), 0, reference="it is called")
    p.guard("clipped by that kernel", float((step.grads[0] - 0.25).abs().max()), 1e-5, reference="1 / 4")


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)


def check_forms(p: probe.Probe, modules: dict[str, Any]) -> None:
    """Other norms, parameters by an iterator, gradients that want gradients, and other default dtypes."""

    def off(step: Step, exact: float) -> float:
        """How far the norm and the gradients are from fp64's."""
        away = abs(float(step.norm) - exact) / exact
        return max(away / 10, error(step.grads, step.before, step.most / (float(step.norm) + EPS)))

    for found in LACKING:
        for kind in (1.0, 3.0):
            grads = laid_out(6, p.seed, "no")
            exact = sum(float(grad.double().abs().pow(kind).sum()) for grad in grads) ** (1 / kind)
            step = Step(modules[found], grads, most=exact / 2, kind=kind)
            step()
            p.guard(f"{found}: norm {kind:g} and what it clips", off(step, exact), FP32, reference="fp64")
        step = Step(modules[found], laid_out(4, p.seed, "no"), most=1.0, value=4.0)
        step.read()
        step.params = iter(step.params)  # type: ignore[assignment]
        step.scale()
        p.guard(f"{found}: parameters by an iterator", off(step, 4.0), FP32, reference="fp64")
        step = Step(modules[found], laid_out(4, p.seed, "no"), most=1.0, value=4.0)
        step.read()
        for grad in step.grads:
            grad.requires_grad_()
        p.guard_attempt(f"{found}: gradients that want gradients", step.scale)
        joined = sum(param.grad.grad_fn is not None for param in step.params if param.grad is not None)
        for grad in step.grads:
            grad.requires_grad_(False)
        p.guard(f"{found}: how they are clipped", off(step, 4.0) + joined, FP32, reference="fp64, no graph of it")
        for dtype in (torch.float64, HALF):
            step = Step(modules[found], laid_out(4, p.seed, "no"), most=1.0, value=4.0)
            with default_dtype(dtype):
                p.guard_attempt(f"{found}: {dtype} by default", step)
            p.guard(f"{found}: clipped where {dtype} is the default", off(step, 4.0), FP32, reference="fp64")
    clip = beside(p, "Transformer Engine", Scale())
    step = Step(clip, [torch.ones(70)], most=1.0, value=math.nan)
    step()
    p.guard(
        "a norm that is no number, beside the kernel that takes a tensor: finite gradients",
        int(step.grads[0].isfinite().sum()),
        0,
        reference="the kernel is given it",
    )


def check_optimizer(p: probe.Probe) -> None:
    """An optimizer of Megatron's, as it is made beside what is installed."""
    transformer, optim = p.upstream("megatron.core.transformer"), p.upstream("megatron.core.optimizer")
    ddp, device = p.upstream("megatron.core.distributed"), torch.cuda.current_device()
    config = transformer.TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
    model = transformer.MegatronModule(config)
    model.register_parameter("a", torch.nn.Parameter(torch.ones(30, device=device)))
    chunk = ddp.DistributedDataParallel(config, ddp.DistributedDataParallelConfig(), model)
    made = optim.get_megatron_optimizer(optim.OptimizerConfig(lr=1e-3, clip_grad=0.5, weight_decay=0.0), [chunk])
    chunk.zero_grad_buffer()
    model.a.main_grad.fill_(2.0)
    updated, norm, _ = made.step()
    exact = 2 * math.sqrt(30)
    p.guard("the optimizer's norm", abs(float(norm) - exact) / exact, 1e-5, reference="fp64 norm")
    away = abs(float(model.a.main_grad.double().norm()) - 0.5) + (not updated)
    p.guard("norm of what the optimizer clipped", away, 1e-5, reference="clip_grad")
    p.guard(
        "the update",
        float((model.a.detach() - (1 - 1e-3)).abs().max()),
        1e-5,
        reference="the rate, by Adam's first step",
    )
    before = model.a.detach().clone()
    made.config.grad_norm_skip_threshold = exact / 2
    for part in getattr(made, "chained_optimizers", [made]):
        part.config.grad_norm_skip_threshold = exact / 2
    model.a.main_grad.fill_(2.0)
    updated, norm, _ = made.step()
    taken = int((model.a.detach() != before).sum()) + bool(updated)
    p.guard("steps of a norm above grad_norm_skip_threshold", taken, 0, reference="the step is skipped")


def waited(p: probe.Probe, step: Step, beside_apex: bool) -> int:
    """Waits of a second step, but for the group's own; those of the fallback's norm kernel are not of this file."""
    step()
    places = p.waits(step)
    return sum(
        times
        for place, times in places.items()
        if place.startswith("clip_grads.py") or (beside_apex and not place.startswith("distributed_c10d.py"))
    )


def check_waits(p: probe.Probe, modules: dict[str, Any]) -> None:
    for found in LACKING:
        for kind, half in ((2.0, "no"), (2.0, "all"), (1.0, "no"), (3.0, "no")):
            # decoupled: of grad the type's name is asked, which the mode that counts spoils on the CPU
            step = Step(modules[found], laid_out(4, p.seed, half), most=0.5, kind=kind, decoupled=True)
            p.error(
                f"{found}: waits with norm {kind:g}, {half} bf16",
                waited(p, step, found == "Apex"),
                0,
                reference="nothing here needs the value",
                bug_above=1,
            )
    device = torch.cuda.current_device()
    for found in LACKING:
        step = Step(modules[found], [torch.ones(64)], most=2.0)
        step.norm = torch.full((1,), 8.0, device=device)
        p.attempt(f"{found}: the norm as a tensor", step.scale, REFUSED)
        off = (step.grads[0] - 0.25).abs().max()
        p.error(f"{found}: clipped by a tensor", float(off), 1e-6, reference="2 / 8", bug_above=0.7)


def check_work(p: probe.Probe, modules: dict[str, Any]) -> None:
    """What clipping costs beside Apex: no more than its kernel for a number."""
    costs, launched = {}, {}
    for half in (torch.float32, HALF):
        for count in (FEW, MANY):
            step = Step(modules["Apex"], [torch.ones(1000, dtype=half)] * count, most=0.5)
            step()
            done = p.operators(step.scale)
            costs[half, count] = done.count
            name = str(half).removeprefix("torch.")
            written = done.written / (1000 * count)
            # of bf16 an fp32 copy and a product may be made as well, as the fallback does
            most = 3.1 if half == HALF else 1.1
            p.guard(f"{count} {name} gradients: written", written, most, reference="each element once", unit="elements")
    more = MANY - FEW
    ops = (costs[torch.float32, MANY] - costs[torch.float32, FEW]) / more
    p.guard("operators for each further gradient", ops, 1 + 1 / 16, reference="a view of it, and one for a list")
    if p.lane == "cpu":
        return p.skip("launches for each further gradient, and times", "needs a GPU")
    for count in (FEW, FEW, MANY):  # the first profile starts the profiler
        step = Step(modules["Apex"], [torch.ones(1000)] * count, most=0.5)
        step()
        launched[count], _ = p.launches(step.scale)
    if launched[FEW]:
        per = (launched[MANY] - launched[FEW]) / more
        p.guard("launches for each further gradient", per, 1 / 16, reference="a kernel takes a list")
    for count in (FEW, MANY):
        step = Step(modules["Apex"], [torch.ones(1 << 18)] * count, most=0.5)
        p.note(f"norm and clipping of {count} gradients", p.milliseconds(step, 11, 3), unit="ms")
    step = Step(modules["Apex"], [torch.ones(64)], most=2.0)
    step.norm = torch.full((1,), 8.0, device="cuda")
    p.attempt("clipping in a CUDA graph", lambda: p.graph(step.scale), REFUSED)
    return None


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts its group by itself."""
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    modules = {found: beside(p, found) for found in LACKING}
    check_waits(p, modules)
    check_values(p, modules)
    check_others(p, modules)
    check_forms(p, modules)
    check_optimizer(p)
    check_work(p, modules)


if __name__ == "__main__":
    probe.main(reproduce, pack=45, package="megatron", minimal=minimal, prepare=prepare)
