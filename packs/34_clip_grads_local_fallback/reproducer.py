# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine[pytorch]==2.13.0", "torch>=2.8", "triton==3.6.0", "numpy", "einops",
#     "hypothesis",
# ]
# ///
"""Beside a Transformer Engine before 2.14, Megatron clips gradients one by one and waits for the GPU at each of them.

``clip_grads.py`` imports four names at once, and ``multi_tensor_scale_tensor`` is new in 2.14. Without it all four are
given up for a fallback in Python, although the callers do without that one. The fallback reads every gradient's norm on
the host, launches kernels gradient by gradient, and rounds the norms of bf16 gradients to bf16. A warning says that
Transformer Engine is not installed. Needs a GPU, a built Transformer Engine, and no Apex, which would stand in.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """The norm of gradients that are all ones; needs a GPU and a Transformer Engine before 2.14, without Apex."""
    import torch
    import transformer_engine.pytorch
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    gradients = [torch.ones(65998, device="cuda", dtype=torch.bfloat16) for _ in range(16)]
    norm = float(get_grad_norm_fp32(gradients, 2, torch.distributed.group.WORLD))
    exact = (16 * 65998) ** 0.5
    print(f"with {transformer_engine.__version__}: norm {norm:.2f}, should be {exact:.2f}")
    assert abs(norm / exact - 1) < 1e-5  # it is summed in fp32


CLIP = "megatron.core.optimizer.clip_grads"
NAMES = ("multi_tensor_applier", "multi_tensor_l2norm", "multi_tensor_scale")  # all that the callers cannot do without
FEW, MANY = 16, 256  # gradients
SIZES = (1, 1000, 65537, 2**18)  # elements, in turn: the kernels take chunks of 65,536, four elements at a time
MAX_NORM = 1.0
# Squares are summed in fp32: at most some hundred roundings of 2**-24 in a row, halved by the root
FP32 = 1e-5


class Gradients:
    """``count`` parameters, whose sizes are taken in turn, with seeded gradients."""

    def __init__(
        self, p: probe.Probe, count: int, dtype: torch.dtype = torch.float32, of: Sequence[int] = SIZES, seed: int = 0
    ) -> None:
        generator = torch.Generator("cuda").manual_seed(p.seed + seed)
        sizes = [of[i % len(of)] for i in range(count)]
        self.before = [torch.randn(n, generator=generator, device="cuda").to(dtype) for n in sizes]
        self.params = [torch.nn.Parameter(torch.zeros_like(g)) for g in self.before]
        self.attribute = "grad" if dtype == torch.float32 else "decoupled_grad"  # as the precision-aware optimizer has
        self.reset()
        self.exact = math.sqrt(sum(g.double().square().sum().item() for g in self.before))
        self.upstream = p.upstream(CLIP)

    def reset(self) -> None:
        for param, grad in zip(self.params, self.before, strict=True):
            setattr(param, self.attribute, grad.clone())

    @property
    def grads(self) -> list[Tensor]:
        return [getattr(param, self.attribute) for param in self.params]

    def clip(self, max_norm: float, total: Any) -> None:
        decoupled = self.attribute == "decoupled_grad"
        self.upstream.clip_grad_by_total_norm_fp32(self.params, max_norm, total, use_decoupled_grad=decoupled)

    def step(self) -> None:
        """What an optimizer does between backward and its step."""
        self.clip(MAX_NORM, norm(self.upstream, self.grads))

    def wrong(self, limit: float = MAX_NORM) -> float:
        """Worst relative error of a gradient that was clipped to ``limit``."""
        scale = min(1.0, limit / (self.exact + 1e-6))  # Megatron's coefficient
        exact = [g.double() * scale for g in self.before]
        pairs = zip(self.grads, exact, strict=True)
        return max(((found.double() - true).norm() / true.norm()).item() for found, true in pairs)


def norm(upstream: Any, grads: list[Tensor], kind: float = 2.0) -> Any:
    """Upstream's: a number, or a tensor of one element."""
    with torch.no_grad():
        return upstream.get_grad_norm_fp32(grads, kind, torch.distributed.group.WORLD)


def check_values(p: probe.Probe, upstream: Any) -> None:
    """Norms and clipped gradients, by whatever they are computed."""
    for count in (FEW, MANY):
        given = Gradients(p, count)
        total = norm(upstream, given.grads)
        p.guard(f"norm of {count} fp32 gradients", abs(float(total) / given.exact - 1), FP32, reference="fp64 norm")
        given.clip(2 * given.exact, total)
        changed = sum(int((a != b).sum()) for a, b in zip(given.grads, given.before, strict=True))
        p.guard(
            f"elements of {count} fp32 gradients that are clipped below the limit",
            changed,
            0,
            reference="a limit of twice the norm changes nothing",
        )
        given.clip(MAX_NORM, total)
        p.guard(f"{count} fp32 gradients after clipping", given.wrong(), FP32, reference="fp64 product")
    half = Gradients(p, FEW, torch.bfloat16)
    half.clip(MAX_NORM, half.exact)
    p.guard(
        f"{FEW} bf16 gradients after clipping by a given norm",
        half.wrong(),
        2**-7,  # a product rounds to 2**-8
        reference="fp64 product",
    )
    few = Gradients(p, FEW)
    one = sum(g.double().abs().sum().item() for g in few.before)
    p.guard("1-norm", abs(float(norm(upstream, few.grads, 1)) / one - 1), FP32, reference="fp64 sum")
    largest = max(g.abs().max().item() for g in few.before)
    p.guard("inf-norm", abs(norm(upstream, few.grads, math.inf) - largest), 0, reference="largest element")
    p.guard("norm of no gradients", float(norm(upstream, [])), 0, reference="0")
    scaled = hasattr(importlib.import_module("transformer_engine.pytorch.optimizers"), "multi_tensor_scale_tensor")
    p.guard(
        "kind of the norm",
        isinstance(norm(upstream, few.grads), Tensor) != scaled,
        0,
        reference="a tensor where Transformer Engine scales by one, else a number",
    )
    for value in (math.inf, math.nan):
        few.grads[2][-1] = value
        p.guard(f"norm with one {value} is finite", math.isfinite(norm(upstream, few.grads)), 0, reference="it is not")


def check_bf16(p: probe.Probe, upstream: Any) -> None:
    """Gradients of ones, each of norm 256.9: bf16 has 256 and 258 there."""
    ones = torch.ones(65998, device="cuda", dtype=torch.bfloat16)
    total = float(norm(upstream, [ones] * MANY))
    p.error(
        f"norm of {MANY} bf16 gradients",
        abs(total / math.sqrt(MANY * ones.numel()) - 1),
        FP32,
        reference="fp64 norm",
        bug_above=1e-3,
    )


def check_drawn(p: probe.Probe, upstream: Any) -> None:
    """Any number of gradients of any sizes, clipped to any part of their norm."""
    from hypothesis import strategies as st

    def values(sizes: list[int], part: float, seed: int) -> float:
        given = Gradients(p, len(sizes), of=sizes, seed=seed)
        total = norm(upstream, given.grads)
        given.clip(part * given.exact, total)
        return max(abs(float(total) / given.exact - 1), given.wrong(part * given.exact))

    def halves(sizes: list[int], seed: int) -> float:
        given = Gradients(p, len(sizes), torch.bfloat16, sizes, seed)
        return abs(float(norm(upstream, given.grads)) / given.exact - 1)

    sizes, seed = st.lists(st.integers(1, 2**17), min_size=1, max_size=120), st.integers(0, 9999)
    space = {"sizes": sizes, "part": st.sampled_from([2.0**-10, 0.3, 0.99, 3.0]), "seed": seed}
    p.drawn("drawn fp32 gradients: norm and clipped", values, FP32, space=space, count=24, reference="fp64")
    # half a unit of bf16 is up to 2**-8 of the norm; of two dozen norms one is off by a tenth of that, or more
    p.drawn(
        "norm of drawn bf16 gradients",
        halves,
        FP32,
        space={"sizes": sizes, "seed": seed},
        count=24,
        reference="fp64 norm",
        bug_above=2**-12,
    )


def fresh(given: Gradients, measure: Callable[[Callable[[], None]], Any]) -> Any:
    """Measure a step from the gradients as they were, after one that warms up."""
    given.step()
    given.reset()
    return measure(given.step)


def check_work(p: probe.Probe) -> None:
    """A step with MANY gradients against one with FEW."""
    few, many = Gradients(p, FEW), Gradients(p, MANY)
    waited = [fresh(given, p.waits) for given in (few, many)]
    for count, places in zip((FEW, MANY), waited, strict=True):
        p.note(f"waits in a step of {count} gradients", places.total(), detail=str(places))
    more, one = MANY - FEW, "the norm is one number, however many gradients"
    p.error(
        "waits for each further gradient",
        (waited[1].total() - waited[0].total()) / more,
        0,
        reference=one,
        bug_above=0.5,
    )
    fresh(few, p.launches)  # the first profile of a process starts the profiler
    counts = [fresh(given, p.launches) for given in (few, many)]
    if not counts[0][0]:
        return p.skip("launches and copies for each further gradient", "the profiler saw nothing on the GPU")
    for count, (found, copies) in zip((FEW, MANY), counts, strict=True):
        p.note(f"launches in a step of {count} gradients", found, detail=f"{copies} of them copies to the host")
    p.error(
        "copies to the host for each further gradient",
        (counts[1][1] - counts[0][1]) / more,
        0,
        reference=one,
        bug_above=0.5,
    )
    # The norm's kernel takes up to 110 gradients a launch, the scaling one up to 64: 5 launches for 240 gradients
    p.error(
        "launches for each further gradient",
        (counts[1][0] - counts[0][0]) / more,
        1 / 16,
        reference="a kernel takes a list of gradients",
        bug_above=2,
    )
    return None


def check_times(p: probe.Probe) -> None:
    """Host and GPU together, from idle to idle."""
    for count in (FEW, MANY):
        given, times = Gradients(p, count), list[float]()
        with p.unwatched():
            for _ in range(14):
                given.reset()
                torch.cuda.synchronize()
                start = time.perf_counter()
                given.step()
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - start))
        p.note(f"norm and clipping of {count} gradients", median(times[3:]), unit="ms")


def transformer_engine(p: probe.Probe) -> None:
    """CannotTest where what Megatron should have used cannot be had, or something else would be used."""
    try:
        p.transformer_engine()
        optimizers = importlib.import_module("transformer_engine.pytorch.optimizers")
    except (ImportError, OSError) as error:
        raise probe.CannotTest(f"Transformer Engine cannot be imported: {error}") from error
    absent = [name for name in NAMES if not hasattr(optimizers, name)]
    if absent:
        raise probe.CannotTest(f"this Transformer Engine has no {', '.join(absent)}", "pass --needs DIR of another")
    if importlib.util.find_spec("amp_C") is not None:
        raise probe.CannotTest("Apex is installed, which Megatron asks next", "use an environment without it")
    p.note("Transformer Engine has multi_tensor_scale_tensor", str(hasattr(optimizers, "multi_tensor_scale_tensor")))


def prepare(p: probe.Probe) -> None:
    """What minimal() needs beside upstream."""
    transformer_engine(p)
    p.megatron_cpu()


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        raise probe.CannotTest("Transformer Engine's multi-tensor kernels need a GPU", "pass --lane cuda there")
    transformer_engine(p)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        p.megatron_cpu()
        upstream = p.upstream(CLIP)
    own = [str(w.message) for w in said if w.filename == upstream.__file__]
    p.note("warning of the import", "; ".join(own) or "none")
    check_values(p, upstream)
    check_bf16(p, upstream)
    check_drawn(p, upstream)
    check_work(p)
    check_times(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=34, package="megatron", minimal=minimal, prepare=prepare)
