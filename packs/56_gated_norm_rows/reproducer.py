# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.8", "triton==3.6.0", "numpy<2.4", "einops", "hypothesis"]
# ///
"""mamba-ssm's gated norm takes one row at a time, however short: Mamba-3's norms of B and C have rows of 128 numbers.

Its forward kernel is launched once for each row, and its backward kernel goes through rows one by one. CPU lane: the
real kernels by Triton's interpreter, whose loads are counted. CUDA lane: programs that are launched, and times.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu
from torch.utils._pytree import tree_leaves

from reproducers import probe


def minimal():
    """Counts the programs that the norm of 4096 rows of 128 numbers is launched for; needs no GPU."""
    import torch
    from mamba_ssm.ops.triton import layernorm_gated

    class Kernel:
        def __getitem__(self, grid):
            print("programs:", grid, "for 4096 rows")
            assert grid[0] < 4096
            return lambda *args, **kwargs: None

    layernorm_gated._layer_norm_fwd_1pass_kernel = Kernel()
    layernorm_gated.rmsnorm_fn(torch.randn(4096, 128), torch.ones(128), None)


MODULE = "mamba_ssm.ops.triton.layernorm_gated"
# Sums of up to 8,192 terms in fp32. Halves are rounded once as they are stored (2^-9, 2^-12 at most), and a gradient of
# weights, summed in fp32, again; the interpreter cuts bf16 off, which errs twice as far.
FP32, HALVES = 1e-5, {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
EPS = 1e-5
SMS = 3  # of the GPU that the cpu lane pretends to have: a program of the backward pass has many rows


@dataclass(frozen=True)
class Case:
    """One norm of rows of ``groups`` of ``size`` numbers; ``shape`` is that of the rows."""

    shape: tuple[int, ...] = (37,)
    size: int = 128
    groups: int = 1
    gate: str = ""  # or "after": norm(x) * silu(z), or "before": norm(x * silu(z))
    rms: bool = True
    bias: bool = False
    dtype: torch.dtype = torch.float32
    weights: torch.dtype = torch.float32
    layout: str = ""  # or another of LAYOUTS
    frozen: int = 4  # which of x, weight, bias, z wants no gradient; 4 is none
    scale: float = 1.0
    mean: float = 0.0

    @property
    def channels(self) -> int:
        return self.size * self.groups

    @property
    def rows(self) -> int:
        return math.prod(self.shape)


# contiguous; rows of a wider tensor that is NaN elsewhere; every other channel of such; rows lie across in memory
LAYOUTS = ("", "part", "strided", "transposed")


class Given:
    """A case's tensors: x, weight, bias, z and the gradient of the result."""

    def __init__(self, p: probe.Probe, case: Case, seed: int = 0) -> None:
        self.p, self.case, self.module = p, case, p.upstream(MODULE)
        self.device = "cuda" if p.lane == "cuda" else "cpu"
        self.random = torch.Generator(device=self.device).manual_seed(p.seed + seed)
        shape = (*case.shape, case.channels)
        self.x = self.make(*shape, scale=case.scale, mean=case.mean)
        self.z = self.make(*shape) if case.gate else None
        self.grad = self.make(*shape)
        self.weight = (1 + self.draw(case.channels) / 4).to(case.weights)
        self.bias = (self.draw(case.channels) / 4).to(case.weights) if case.bias or not case.rms else None

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, device=self.device)

    def make(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        made, n = (self.draw(*shape) * scale + mean).to(self.case.dtype), shape[-1]
        if self.case.layout == "transposed" and len(shape) > 1:
            return made.transpose(0, -1).contiguous().transpose(0, -1)
        if self.case.layout in ("part", "strided"):
            wide = made.new_full((*shape[:-1], 2 * n + 3), math.nan)
            view = wide[..., 1 : n + 1] if self.case.layout == "part" else wide[..., 1 : 2 * n + 1 : 2]
            view.copy_(made)
            return view
        return made

    def tensors(self) -> list[Tensor | None]:
        return [self.x, self.weight, self.bias, self.z]

    def options(self) -> dict[str, Any]:
        case = self.case
        size = case.size if case.groups > 1 else None
        return {"eps": EPS, "group_size": size, "norm_before_gate": case.gate != "before"}

    def leaves(self) -> list[Tensor | None]:
        """x, weight, bias, z as they lie in memory, each wanting a gradient but the frozen one."""
        found = [
            None if t is None else t.detach().requires_grad_(n != self.case.frozen)
            for n, t in enumerate(self.tensors())
        ]
        return found

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, z: Tensor | None) -> Tensor:
        call = self.module.rmsnorm_fn if self.case.rms else self.module.layernorm_fn
        return call(x, weight, bias, z=z, **self.options())  # type: ignore[no-any-return]

    def run(self) -> list[Tensor]:
        """The result, and the gradients that are wanted, of x, weight, bias and z."""
        leaves = self.leaves()
        out = self.norm(*leaves)  # type: ignore[arg-type]
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        return [out.detach(), *torch.autograd.grad(out, wanted, self.grad)]

    def exact(self) -> list[Tensor]:
        """The same by its definition in fp64."""
        case = self.case
        x, weight, bias, z = leaves = [
            None if t is None else t.detach().double().requires_grad_(n != case.frozen)
            for n, t in enumerate(self.tensors())
        ]
        assert x is not None and weight is not None
        t = x * silu(z) if z is not None and case.gate == "before" else x
        t = t.unflatten(-1, (case.groups, case.size))
        if not case.rms:
            t = t - t.mean(-1, keepdim=True)
        t = (t / (t.square().mean(-1, keepdim=True) + EPS).sqrt()).flatten(-2) * weight
        t = t if bias is None else t + bias
        out = t * silu(z) if z is not None and case.gate == "after" else t
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        return [out.detach(), *torch.autograd.grad(out, wanted, self.grad.double())]

    def dtypes(self) -> list[torch.dtype]:
        found = [t.dtype for n, t in enumerate(self.tensors()) if t is not None and n != self.case.frozen]
        return [self.case.dtype, *found]

    def over(self, found: Sequence[Tensor]) -> float:
        """The largest error over its limit; infinite for another number, shape or dtype of tensors."""
        exact = self.exact()
        form = [t.dtype for t in found] == self.dtypes() and [t.shape for t in found] == [t.shape for t in exact]
        if not form:
            return math.inf
        return max((far(*pair, self.p.lane) for pair in zip(found, exact, strict=True)), default=0.0)


def far(found: Tensor, exact: Tensor, lane: str) -> float:
    """Distance by norm, relative to the reference, over the limit of its dtype; rows of zeros have to be zeros."""
    if not found.numel():
        return 0.0
    limit = HALVES.get(found.dtype, 0.0) * (2 if lane == "cpu" else 1) + FP32
    size = float(exact.norm())
    off = float((found.double() - exact).norm()) / max(size, 1e-3 * found.numel() ** 0.5)
    return math.inf if math.isnan(off) else off / limit


class Counted:
    """Programs that Triton launches and, of its interpreter, blocks of numbers that they load."""

    def __init__(self, lane: str) -> None:
        self.lane, self.programs, self.loads, self.outside = lane, 0, 0, 0
        self.across = self.handed = 0  # programs on other axes than the first; numbers of the tensors that kernels get
        self.ends: set[tuple[int, int]] = set()

    def __enter__(self) -> Counted:
        self.within = contextlib.ExitStack()
        if self.lane == "cuda":
            from triton.runtime.jit import JITFunction

            self.replace(JITFunction, "run", self.launch)
        else:
            from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

            self.replace(GridExecutor, "__call__", self.launch)
            self.replace(GridExecutor, "_init_args_hst", self.given)
            self.replace(InterpreterBuilder, "create_masked_load", self.load)
        return self

    def __exit__(self, *_: Any) -> None:
        self.within.close()

    def replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        method = getattr(owner, name)
        stand_in = lambda one, *args, **named: by(method, one, *args, **named)  # noqa: E731
        self.within.enter_context(mock.patch.object(owner, name, stand_in))

    def launch(self, run: Any, kernel: Any, *args: Any, **named: Any) -> Any:
        grid = named["grid"] if self.lane == "cuda" else kernel.grid
        if not named.get("warmup"):
            known = dict(zip(kernel.arg_names, args, strict=False)) | named
            axes = grid(known) if callable(grid) else grid
            self.programs += math.prod(axes)
            self.across = max(self.across, *axes[1:], 0)
            self.handed += sum(t.numel() for t in known.values() if isinstance(t, Tensor))
        return run(kernel, *args, **named)

    def given(self, take: Any, kernel: Any, *args: Any) -> Any:
        """Where the tensors lie that the kernel is given, in the interpreter's own copies."""
        made = take(kernel, *args)
        storages = [t.untyped_storage() for t in tree_leaves(made) if isinstance(t, Tensor)]
        self.ends = {(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in storages}
        return made

    def load(self, load: Any, builder: Any, places: Any, mask: Any, *rest: Any) -> Any:
        self.loads += 1
        asked = places.data[mask.data]
        if asked.size and not any(low <= asked.min() and asked.max() < high for low, high in self.ends):
            self.outside += 1
        return load(builder, places, mask, *rest)


def counted(given: Given) -> tuple[list[Tensor], Counted, Counted]:
    """What a step makes, and what its forward and its backward pass take."""
    leaves = given.leaves()
    if given.p.lane == "cuda":
        given.run()  # compiles
    with Counted(given.p.lane) as forward:
        out = given.norm(*leaves)  # type: ignore[arg-type]
    wanted = [t for t in leaves if t is not None and t.requires_grad]
    with Counted(given.p.lane) as backward:
        grads = torch.autograd.grad(out, wanted, given.grad)
    return [out.detach(), *grads], forward, backward


def check_growth(p: probe.Probe, what: str, given: Given, before: Sequence[Counted]) -> None:
    """With four times the rows: other axes of a grid end at 65,535, and partial sums are a GPU's programs'."""
    case = given.case
    more = Given(p, replace(case, shape=(4 * case.shape[0], *case.shape[1:])))
    _, *after = counted(more)
    across = max(new.across - old.across for new, old in zip(after, before, strict=True))
    p.guard(f"{what}: programs on other axes than the first, with rows", across, 0, reference="no more")
    numbers = (more.case.rows - case.rows) * case.channels
    handed = (after[1].handed - before[1].handed) / numbers
    whole = round(handed)
    statistics = (1 if case.rms else 2) / case.size
    p.guard(
        f"{what}: numbers backward beside those of rows, for each of these",
        abs(handed - whole - statistics),
        0.01,
        reference="none",
    )


def check_counted(p: probe.Probe) -> None:
    """Programs, and on the cpu lane loads, for a row of few numbers."""
    rows, worst = 49152 if p.lane == "cuda" else 240, list[float]()
    for what, case in {
        "Mamba-3's norm of B": Case((rows // 16, 4, 4)),
        "a gated norm by heads": Case((rows // 12,), size=64, groups=12, gate="after"),
        "LayerNorm of 100 numbers, gated before": Case((rows,), size=100, gate="before", rms=False),
    }.items():
        given = Given(p, case)
        found, forward, backward = counted(given)
        worst.append(given.over(found))
        p.guard(f"{what}: a second time, bit for bit", unlike(given.run(), found), 0, reference="the same")
        check_growth(p, what, given, (forward, backward))
        each = case.rows * case.groups
        p.error(
            f"{what}: programs for a row, forward",
            forward.programs / each,
            0.3,
            reference="several rows a program",
            bug_above=0.99,
        )
        if p.lane == "cuda":
            continue
        # x and weights, and statistics of a row; a gate, biases and a mean where there are such
        for name, pass_, most in (("forward", forward, 2), ("backward", backward, 3)):
            loads = pass_.loads / each
            p.error(f"{what}: loads for a row, {name}", loads, 1, reference="several rows a load", bug_above=most)
        p.guard(f"{what}: loads outside of tensors", forward.outside + backward.outside, 0, reference="none")
    if p.lane == "cuda":
        p.skip("loads for a row", "counted by Triton's interpreter: a GPU does not tell them")
    p.guard("errors over their limits where work is counted", max(worst), 1, reference="fp64")
    worst.clear()

    def over(size: int, groups: int, extra: int) -> float:
        given = Given(p, Case((48 + extra,), size=size, groups=groups), size)
        found, forward, backward = counted(given)
        worst.append(given.over(found))
        each = given.case.rows * groups
        return max(forward.programs / each, *(one.loads / each / 2 for one in (forward, backward)))

    p.drawn(
        "programs, and half of the loads, for a row of drawn size",
        over,
        0.6,
        space={"size": st.integers(5, 256), "groups": st.sampled_from((1, 3)), "extra": st.integers(0, 20)},
        count=3 if p.lane == "cpu" else 10,
        reference="several rows a program",
        bug_above=0.99,
    )
    p.guard("errors over their limits where drawn sizes are counted", max(worst), 1, reference="fp64")


BF16, FP16 = torch.bfloat16, torch.float16
FIXED = {
    "one row": Case((1,)),
    "rows that fill no program": Case((3, 17)),
    "rows of 64 of 5 groups": Case((20,), size=64, groups=5, gate="after"),
    "groups of 100, gated before": Case((2, 33), size=100, groups=3, gate="before", layout="part"),
    "LayerNorm": Case((50,), size=96, rms=False),
    "LayerNorm of rows far from zero": Case((33,), rms=False, mean=1000.0),
    "LayerNorm in groups, gated": Case((50,), size=96, groups=2, rms=False, gate="after", layout="strided"),
    "LayerNorm in groups, gated before": Case((20,), size=24, groups=4, rms=False, gate="before"),
    "biases": Case((50,), size=48, groups=2, bias=True, gate="after"),
    "bf16": Case((9, 4, 5), dtype=BF16, weights=BF16),
    "bf16, gated, weights in fp32": Case((70,), size=64, groups=2, gate="after", dtype=BF16, layout="transposed"),
    "fp16, gated before": Case((70,), size=200, gate="before", dtype=FP16, weights=FP16),
    "rows of 2048": Case((7,), size=2048, gate="after"),
    "rows of 5000": Case((5,), size=5000, rms=False),
    "two rows of 1024 a program": Case((9,), size=1000, gate="before"),
    "many rows": Case((250,), size=200, gate="after"),
}
SPACE = {
    "shape": st.one_of(st.tuples(st.integers(1, 90)), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    **{
        name: st.sampled_from(values)
        for name, values in {
            "size": (5, 16, 31, 100, 128, 200, 640, 2050),
            "groups": (1, 2, 3),
            "gate": ("", "after", "before"),
            "rms": (True, False),
            "bias": (False, True),
            "dtype": (torch.float32, BF16, FP16),
            "weights": (torch.float32, BF16),
            "layout": LAYOUTS,
            "frozen": (0, 1, 2, 3, 4),
            "scale": (1.0, 30.0, 0.01),
        }.items()
    },
}


def check_values(p: probe.Probe) -> None:
    """Results and gradients against fp64."""
    for name, case in FIXED.items():
        given = Given(p, case)
        found = p.guard_attempt(f"{name}: forward and backward return", given.run)
        if found is not None:  # of a thousand the mean is rounded by 6e-5
            p.guard(f"{name}: errors over their limits", given.over(found), 100 if case.mean else 1, reference="fp64")


def check_drawn(p: probe.Probe) -> None:
    """The same of what nobody chose."""

    def over(**drawn: Any) -> float:
        case = Case(**drawn)
        if case.frozen == 0 and not (case.gate or case.bias or not case.rms):
            case = replace(case, frozen=4)
        given = Given(p, case, case.rows)
        try:
            return given.over(given.run())
        except Exception:  # then this check fails, and tells the simplest case that does it
            return math.inf

    count = 12 if p.lane == "cpu" else 24
    p.drawn("drawn: errors over their limits", over, 1, space=SPACE, count=count, reference="fp64")


def unlike(found: Sequence[Tensor], other: Sequence[Tensor]) -> int:
    """Tensors that are not the same bit for bit."""
    return abs(len(found) - len(other)) + sum(not torch.equal(*pair) for pair in zip(found, other, strict=False))


def check_neighbours(p: probe.Probe) -> None:
    """What a norm promises besides: its inputs, calls that overlap, no gradients, no rows, modules."""
    case = Case((2, 21), size=64, groups=2, gate="after", bias=True)
    given, other = Given(p, case), Given(p, replace(case, shape=(55,)), 1)
    tensors = [t for t in (*given.tensors(), given.grad) if t is not None]
    copies = [t.clone() for t in tensors]
    first, second = given.run(), other.run()
    p.guard("inputs that are changed", unlike(tensors, copies), 0, reference="none")
    leaves, others = given.leaves(), other.leaves()
    one, two = given.norm(*leaves), other.norm(*others)  # type: ignore[arg-type]
    p.guard(
        "two forwards before a backward",
        unlike(torch.autograd.grad(two, others, other.grad), second[1:]),
        0,
        reference="one by one",
    )  # type: ignore[arg-type]
    for name in ("the earlier forward's backward", "a second backward"):
        grads = torch.autograd.grad(one, leaves, given.grad, retain_graph=True)  # type: ignore[arg-type]
        p.guard(name, unlike(grads, first[1:]), 0, reference="as alone")
    for what, mode in {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.items():
        with mode():
            p.guard(f"{what}: result", unlike([given.norm(*given.tensors())], first[:1]), 0, reference="with gradients")  # type: ignore[arg-type]
    few = Given(p, replace(case, shape=(3,)))
    p.guard("host waits", p.waits(few.run).total(), 0, reference="none")
    for name, empty in {
        "no rows": Case((0,)),
        "no rows in a batch": Case((3, 0), gate="after", size=64, groups=2),
    }.items():
        without = Given(p, empty)
        found = p.guard_attempt(f"{name}: forward and backward return", without.run)
        if found is not None:
            p.guard(f"{name}: numbers that are not 0", sum(int(t.count_nonzero()) for t in found), 0, reference="none")
    x = given.make(6, 5, 128)
    for kind in (given.module.RMSNorm, given.module.LayerNorm):
        module = kind(128).to(given.device)
        result = module(x)
        exact = x.double() - (0 if kind is given.module.RMSNorm else x.double().mean(-1, keepdim=True))
        exact = exact / (exact.square().mean(-1, keepdim=True) + EPS).sqrt()
        p.guard(
            f"module {kind.__name__}: error over its limit", far(result.detach(), exact, p.lane), 1, reference="fp64"
        )
        again = [copy.deepcopy(module)(x), pickle.loads(pickle.dumps(module))(x)]
        p.guard(f"module {kind.__name__}: copied or pickled", unlike(again, [result, result]), 0, reference="the same")
        with torch.autocast(given.device, torch.bfloat16):
            p.guard(f"module {kind.__name__}: under autocast", unlike([module(x)], [result]), 0, reference="the same")


def check_outputs(p: probe.Probe) -> None:
    """Results that are written where the caller says, and made again backward, as Mamba-2's fused layer asks."""
    for gate, rms in (("after", True), ("before", True), ("after", False), ("before", False)):
        given = Given(p, Case((203,), size=48, groups=2, gate=gate, rms=rms, bias=not rms, layout="part"))
        case, rest = given.case, {"group_size": 48, "norm_before_gate": gate == "after", "is_rms_norm": rms}
        wide = given.x.new_full((3, 205, 2 * case.channels), math.nan)
        out, dz, again = (one[1:-1, 5 : 5 + case.channels] for one in wide)
        given_out, mean, rstd = given.module._layer_norm_fwd(
            given.x, given.weight, given.bias, EPS, z=given.z, out=out, **rest
        )
        dx, dw, db, given_dz, given_again = given.module._layer_norm_bwd(
            given.grad,
            given.x,
            given.weight,
            given.bias,
            EPS,
            mean,
            rstd,
            z=given.z,
            recompute_output=True,
            dz=dz,
            out=again,
            **rest,
        )
        grads = [dx, dw, *([] if db is None else [db]), dz]
        name = f"{'RMS' if rms else 'Layer'}Norm, gated {gate}, given outputs"
        moved = [a.data_ptr() != b.data_ptr() for a, b in ((given_out, out), (given_dz, dz), (given_again, again))]
        p.guard(f"{name}: errors over their limits", given.over([out, *grads]), 1, reference="fp64")
        p.guard(f"{name}: made again", far(again, given.exact()[0], p.lane), 1, reference="fp64")
        outside = wide.isfinite().sum() - 3 * out.numel()
        p.guard(f"{name}: numbers written elsewhere", abs(int(outside)) + sum(moved), 0, reference="none")


def note_times(p: probe.Probe) -> None:
    """Captured in CUDA graphs, so that the host does not count: Mamba-3's norms of B and heads, and longer rows."""
    for what, case in {
        "12,288 tokens, B of 8 groups and rank 4, 128 numbers": Case((12288, 4, 8), dtype=BF16),
        "12,288 tokens, 112 heads of 64, gated": Case((12288,), size=64, groups=112, gate="after", dtype=BF16),
        "12,288 tokens, rows of 1,024, gated": Case((12288,), size=1024, groups=7, gate="after", dtype=BF16),
        "12,288 tokens, rows of 8,192, gated": Case((12288,), size=8192, gate="after", dtype=BF16),
    }.items():
        given = Given(p, case)
        with torch.no_grad():
            graph, out = p.graph(lambda given=given: given.norm(*given.tensors()))
            p.note(f"{what}: forward", p.milliseconds(graph.replay, 30, 5), unit="ms")
        step, found = p.graph(given.run)
        p.note(f"{what}: forward and backward", p.milliseconds(step.replay, 30, 5), unit="ms")
        if case.size < 8192:
            p.guard(f"{what}: errors over their limits, replayed", given.over([out, *found[1:]]), 1, reference="fp64")
        del graph, step, out, found
        torch.cuda.empty_cache()


def prepare(p: probe.Probe) -> None:
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    if p.lane == "cpu":
        p.triton_interpreter()
        torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=SMS)  # type: ignore


def reproduce(p: probe.Probe) -> None:
    prepare(p)
    check_values(p)
    check_outputs(p)
    with p.unwatched():  # following the interpreter's lines costs four times as much as they do
        check_counted(p)
        check_drawn(p)
        check_neighbours(p)
    if p.lane == "cuda":
        note_times(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=56, package="mamba_ssm", minimal=minimal, prepare=prepare)
