# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9", "hypothesis",
# ]
# ///
"""Mamba-3's MIMO backward has one program for a head of a sequence, which goes through all its tokens chunk by chunk.

Both TileLang kernels of ``mamba_mimo_bwd_combined`` are launched for (heads, batch), so that few heads and rows leave
most of a GPU idle, and a long row takes as long however idle it is. Counted are the programs of each kernel of the
backward pass that multiplies matrices: TileLang's as the traced kernel has them, Triton's as they are launched. CPU
lane: TileLang's launches write drawn numbers in place of results, and so are not compared; what the backward computes
without them, by Triton's interpreter, is, with fp64. CUDA lane: the real kernels, and times.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

from __future__ import annotations

import ast
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, silu
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reproducers import probe


def minimal():
    """Looks which kernel the backward of a layer with 8 heads asks for; needs a GPU."""
    import torch
    from mamba_ssm.modules.mamba3 import Mamba3
    from mamba_ssm.ops.tilelang.mamba3 import mamba3_mimo_bwd as module

    kernel, asked = module.mamba_mimo_bwd_bwd, []
    module.mamba_mimo_bwd_bwd = lambda *sizes: asked.append(sizes) or kernel(*sizes)
    sizes = {"d_model": 128, "d_state": 32, "headdim": 32, "mimo_rank": 2, "chunk_size": 16}
    layer = Mamba3(**sizes, is_mimo=True, device="cuda", dtype=torch.float16)
    layer(torch.randn(1, 64, 128, device="cuda", dtype=torch.float16)).sum().backward()
    print("one program a head, for all chunks:", bool(asked))
    assert not asked


TILELANG, TRITON = "mamba_ssm.ops.tilelang.mamba3.", "mamba_ssm.ops.triton.mamba3."
FACTORIES = {"fwd": ("mamba_mimo_fwd",), "bwd": ("mamba_mimo_bwd_fwd", "mamba_mimo_bwd_bwd")}
WRITTEN = {"O", "FINAL_STATE", "FINAL_K", "DMIMO_O", "STATES", "DZ", "DMIMO_Z", "QK_DOT", "DK", "DV", "DMIMO_V", "DQ"}
WRITTEN |= {"DFACTOR", "DGAMMA_DIAG", "DANGLES", "DD", "DDA", "DSSDA", "DDA_CS_REV", "DDA_CS"}
NAMES = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "d", "z")
LOW = ("q", "k", "v", "z", "trap")  # in the dtype of the kernels; the rest is fp32
EXACT = "fp64 quadratic form"
# Norms. A gradient goes through some ten roundings, of 2^-12 each in fp16 and 2^-9 in bf16; sums of terms of both
# signs lose a few times as much. A term that is missing or belongs to another token is of order 1
LIMITS = {torch.float16: 4e-3, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Case:
    """``cuts``: bounds of packed sequences; ``without``: z, d or mimo_o; ``reset``: a decay that leaves (next to) 0;
    ``real``: TileLang's kernels run, on a GPU."""

    batch: int = 1
    length: int = 32
    heads: int = 8
    groups: int = 1
    rank: int = 2
    n: int = 32
    width: int = 16
    chunk: int = 8
    divisor: int = 2
    dtype: torch.dtype = torch.float16
    cuts: tuple[int, ...] = ()
    without: str = ""
    reset: float = 0.0
    seed: int = 0
    real: bool = False


def drawn(p: probe.Probe, case: Case) -> dict[str, Tensor]:
    """The arguments of mamba3_mimo by NAMES, and dout, in fp64 with values that their dtypes hold."""
    generator = torch.Generator().manual_seed(p.seed + case.seed)
    tokens, per_head = (case.batch, case.length), (case.batch, case.heads, case.length)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype).double()

    x = {name: random(*tokens, case.rank, case.groups, case.n) for name in "qk"}
    x |= {name: random(*tokens, case.heads, case.width) for name in ("v", "z", "dout")}
    x |= {name: random(case.heads, case.rank, case.n) for name in ("q_bias", "k_bias")}
    x |= {name: random(case.heads, case.rank, case.width) for name in ("mimo_v", "mimo_z", "mimo_o")}
    x |= {"dt": random(*per_head).abs() / 2, "adt": -random(*per_head).abs() / 4, "trap": random(*per_head)}
    x |= {"angles": random(*tokens, case.heads, case.n // case.divisor), "d": random(case.heads)}
    if case.reset:
        x["adt"][..., 5::7] = -case.reset
    if case.without == "mimo_o":
        x["dout"] = random(*tokens, case.rank, case.heads, case.width)
    return {name: value.to("cuda" if case.real or torch.cuda.is_available() else "cpu") for name, value in x.items()}


def given(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """The leaves as upstream gets them."""
    without = {"z": ("z", "mimo_z"), "": ()}.get(case.without, (case.without,))
    leaves = {name: x[name].to(case.dtype if name in LOW else torch.float32) for name in NAMES if name not in without}
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


def quadratic(case: Case, x: dict[str, Tensor]) -> Tensor:
    """[B, S, H, P]: decayed causal attention over all ranks, and what a token adds to its own output."""
    q, k = (x[n].repeat_interleave(case.heads // case.groups, 3) + x[n + "_bias"].transpose(0, 1) for n in "qk")
    v, z = (x[n][:, :, None] * x["mimo_" + n].transpose(0, 1) for n in "vz")  # [B, T, R, H, P]; q, k [B, T, R, H, N]
    theta = (math.pi * x["angles"].tanh() * x["dt"].transpose(1, 2)[..., None]).cumsum(1)[:, :, None]
    turning = case.n // case.divisor

    def rotate(t: Tensor) -> Tensor:
        a, b, c, d = t.split([turning, case.n // 2 - turning] * 2, dim=-1)
        return torch.cat([theta.cos() * a - theta.sin() * c, b, theta.sin() * a + theta.cos() * c, d], dim=-1)

    gamma = x["dt"] * x["trap"].sigmoid()  # this token's share; below, that of the next one's step
    factor = gamma + pad(x["dt"][..., 1:] * (-x["trap"][..., 1:]).sigmoid(), (0, 1))
    total = x["adt"].cumsum(-1)
    causal = torch.ones(total.shape[-1:] * 2, dtype=torch.bool, device=total.device).tril(-1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~causal, -math.inf).exp() * factor[:, :, None]
    past = torch.einsum("btrhn,buihn->bhtrui", rotate(q), rotate(k)) * decay[:, :, :, None, :, None]
    same = torch.einsum("btrhn,btihn->bhtri", q, k) * gamma[..., None, None]
    y = torch.einsum("bhtrui,buihp->btrhp", past, v) + torch.einsum("bhtri,btihp->btrhp", same, v)
    return ((y + x["d"][:, None] * v) * silu(z) * x["mimo_o"].transpose(0, 1)).sum(2)


# ---- what is launched ----


class Seen:
    """Of the backward passes under ``watched``: TileLang's launches; programs of kernels that multiply, by name; tokens
    that the gradient of the angles takes at a time."""

    tilelang = angles = 0

    def __init__(self) -> None:
        self.programs = Counter[str]()

    def launched(self, name: str, grid: Any, options: dict[str, Any], multiplies: bool) -> None:
        """A kernel of Triton's."""
        if name == "angle_dt_bwd_kernel":
            self.angles = options["CHUNK_SIZE"]
        if multiplies:
            self.programs[name] += math.prod(grid(options) if callable(grid) else grid)

    def tokens(self, case: Case) -> float:
        """Of a head of a row, for the programs of the kernel that has the fewest."""
        return case.batch * case.heads * case.length / min(self.programs.values(), default=0.1)


class Kernels:
    """Stands between upstream's host code and its TileLang factories: counts programs, and launches, or draws."""

    def __init__(self, p: probe.Probe) -> None:
        self.p, self.seen, self.real, self.traced = p, Seen(), False, dict[Any, Any]()
        self.generator, self.asked = torch.Generator(), dict[Any, partial[Any]]()
        self.built, self.counting = dict[Any, Any](), False
        for kind, layout in itertools.product(FACTORIES, ("", "_varlen")):
            module = p.upstream(f"{TILELANG}mamba3_mimo_{kind}{layout}")
            tree = ast.parse(Path(str(module.__file__)).read_text())
            functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            for name in FACTORIES[kind]:
                names = [argument.arg for argument in functions[name + "_kernel"].args.args]
                setattr(module, name, partial(self.make, getattr(module, name), kind, names, name + layout))

    def make(self, factory: Any, kind: str, names: list[str], name: str, *sizes: Any, **options: Any) -> Any:
        static = [size for size in (*sizes, *options.items()) if isinstance(size, (int, str, tuple))]
        key = (name, *map(str, static))
        self.asked[key] = partial(factory, *sizes, **options)
        return partial(self.launch, key, kind, names)

    def programs(self, key: Any, shape: torch.Size) -> int:
        """Of a launch, as the factory traces the kernel; ``shape``: [batch, heads, tokens]."""
        if key not in self.traced:
            asked = self.asked[key]
            with self.p.unwatched():
                self.traced[key] = asked.func.get_tir(*asked.args, **asked.keywords).script()
        lines = [line for line in self.traced[key].splitlines() if 'T.launch_thread("blockIdx.' in line]
        sizes = dict(zip("BHS", shape, strict=True))
        return math.prod(int(eval(line.rpartition(", ")[2].rstrip(") "), {}, sizes)) for line in lines)

    def launch(self, key: Any, kind: str, names: list[str], *tensors: Tensor) -> None:
        if kind == "bwd":
            self.seen.tilelang += 1
            if self.counting:
                self.seen.programs[key[0]] += self.programs(key, tensors[names.index("DA_CS")].shape)
        if self.real:
            self.build([key])
            self.built[key](*tensors)
            return
        for name, tensor in zip(names, tensors, strict=True):
            if name in WRITTEN and tensor is not None:
                tensor.copy_(torch.randn(tensor.shape, generator=self.generator) / 8)

    def build(self, keys: list[Any]) -> None:
        """All at once: the compiler lets go of the interpreter's lock."""
        with ThreadPoolExecutor() as pool:
            jobs = {key: pool.submit(self.asked[key]) for key in keys if key not in self.built}
            self.built |= {key: job.result() for key, job in jobs.items()}

    @contextmanager
    def watched(self) -> Iterator[Seen]:
        """Count what is launched within; Triton's kernels that multiply by the interpreter, or as they are compiled."""
        seen = self.seen = Seen()
        if self.p.lane == "cuda":
            from triton.runtime.jit import JITFunction

            run = JITFunction.run

            def launched(this: Any, *args: Any, grid: Any, **options: Any) -> Any:
                kernel = run(this, *args, grid=grid, **options)
                seen.launched(this.fn.__name__, grid, options, "dot" in kernel.asm["ttgir"])
                return kernel

            JITFunction.run = launched
            yield seen
            JITFunction.run = run
            return
        from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

        call, dot, dots = GridExecutor.__call__, InterpreterBuilder.create_dot, [0]

        def multiplied(*args: Any) -> Any:
            dots[0] += 1
            return dot(*args)

        def executed(this: Any, *args: Any, **options: Any) -> None:
            dots[0] = 0
            call(this, *args, **options)
            seen.launched(this.fn.__name__, this.grid, options, dots[0] > 0)

        GridExecutor.__call__, InterpreterBuilder.create_dot = executed, multiplied
        yield seen
        GridExecutor.__call__, InterpreterBuilder.create_dot = call, dot


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Upstream's forward allocates on "cuda" by name."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        return function(*args, **named | ({"device": "cpu"} if str(named.get("device")).startswith("cuda") else {}))


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of storages made under this mode and not yet freed, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak, self.known = 0, 0, set[int]()

    def _free(self, key: int, size: int) -> None:
        self.live, self.known = self.live - size, self.known - {key}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("empty", "zeros", "empty_like", "zeros_like", "new_empty", "add", "sum"):
            for tensor in [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]:
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known:
                    self.known.add(storage._cdata)
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out


# ---- one forward and backward ----


class Step:
    """Upstream's own call on a case's inputs, and what its backward launches."""

    def __init__(self, p: probe.Probe, kernels: Kernels, case: Case) -> None:
        self.p, self.kernels, self.case, self.x = p, kernels, case, drawn(p, case)
        self.mimo = p.upstream(TILELANG + "mamba3_mimo").mamba3_mimo
        self.dout = self.x["dout"].to(case.dtype)
        self.error, self.seen = math.nan, Seen()

    def forward(self, leaves: dict[str, Tensor]) -> Tensor:
        self.kernels.real = self.case.real
        self.kernels.generator.manual_seed(self.p.seed + self.case.seed)
        device = self.dout.device
        bounds = torch.tensor(self.case.cuts, dtype=torch.int32, device=device) if self.case.cuts else None
        arguments = [leaves.get(name) for name in NAMES]
        out: Tensor = self.mimo(*arguments, self.case.chunk, self.case.divisor, self.case.dtype, cu_seqlens=bounds)
        return out

    def backward(self, out: Tensor, leaves: dict[str, Tensor], kept: bool = False) -> dict[str, Tensor]:
        self.kernels.generator.manual_seed(self.p.seed + self.case.seed)
        wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        with self.kernels.watched() as self.seen:
            found = torch.autograd.grad(out, list(wanted.values()), self.dout, retain_graph=kept)
        return dict(zip(wanted, found, strict=True))

    def run(self, leaves: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        leaves = leaves or given(self.case, self.x)
        return self.backward(self.forward(leaves), leaves)

    def compared(self) -> float:
        """The largest error of a gradient, 0 where TileLang's were drawn or upstream has none for these groups."""
        self.kernels.counting = True
        try:
            found = self.run()
        except ValueError as error:
            if "is not currently supported" not in str(error):  # between one group and a group a head; see #967
                raise
            return 0.0
        finally:
            self.kernels.counting = False
        if self.seen.tilelang and not self.case.real:
            return 0.0
        leaves = {name: self.x[name].detach().requires_grad_() for name in NAMES}
        true = torch.autograd.grad(quadratic(self.case, leaves), list(leaves.values()), self.x["dout"])
        errors = {}
        for name, right in zip(NAMES, true, strict=True):
            left = found[name].double()
            errors[name] = ((left - right).norm() / right.norm()).item() if left.shape == right.shape else math.inf
        self.told = " ".join(f"{name} {error:.1e}" for name, error in errors.items())
        return max(errors.values(), key=lambda error: math.inf if math.isnan(error) else error)


def check_counted(p: probe.Probe, kernels: Kernels, name: str, case: Case) -> None:
    """The bug: a program has a whole row of a head."""
    step = Step(p, kernels, case)
    error = step.compared()
    p.error(
        f"{name}: tokens of a row for a program",
        step.seen.tokens(case),
        case.length / 2,
        reference=f"of {case.length}, in chunks of {case.chunk} that know of each other by two states",
        bug_above=case.length,
    )
    if case.length >= 4 * case.chunk and step.seen.angles:
        p.error(
            f"{name}: steps of the angles' gradient",
            math.ceil(case.length / step.seen.angles),
            case.length / case.chunk / 2,
            reference="one after the other, of at least two chunks",
            bug_above=case.length / case.chunk,
        )
    p.guard(f"{name}: worst gradient", error, LIMITS[case.dtype], reference=EXACT)
    if hasattr(step, "told"):
        p.note(f"{name}: gradients", step.told)


GROUPS = ((8, 1), (12, 4), (8, 8), (6, 1), (10, 2))  # heads, groups


def check_drawn(p: probe.Probe, kernels: Kernels, count: int) -> None:
    """Sizes that nobody can foresee."""
    from hypothesis import strategies as st

    def share(pairs: int, heads: tuple[int, int], rank: int, half: int, **sizes: Any) -> float:
        chunk = max(sizes.pop("chunk"), 16 // rank)
        case = Case(
            heads=heads[0], groups=heads[1], rank=rank, n=2 * half, chunk=chunk, length=2 * chunk * pairs, **sizes
        )
        step = Step(p, kernels, case)
        error = step.compared()
        return step.seen.tokens(case) / case.length if error <= LIMITS[case.dtype] else math.inf

    space = {
        "pairs": st.integers(1, 2),
        "heads": st.sampled_from(GROUPS),
        "rank": st.sampled_from([2, 1, 4]),
        "half": st.sampled_from([16, 32]),
        "width": st.sampled_from([16, 32]),
        "chunk": st.sampled_from([8, 16]),
        "divisor": st.sampled_from([2, 4]),
        "reset": st.sampled_from([0.0, 40.0, 1e6]),
        "seed": st.integers(0, 99),
    }
    p.drawn(
        "drawn: share of a row for a program",
        share,
        0.5,
        space=space,
        count=count,
        reference=f"two chunks, or one; gradients as {EXACT}",
        bug_above=1,
    )


SHORT = Case(length=16)
ALONE = {  # what keeps TileLang's kernels
    "packed": replace(SHORT, cuts=(0, 12, 16)),
    "no z": replace(SHORT, without="z"),
    "no D": replace(SHORT, without="d"),
    "no mimo_o": replace(SHORT, without="mimo_o"),
    "three chunks": Case(length=24),
    "fp32": replace(SHORT, dtype=torch.float32),
    "a state of 48": replace(SHORT, n=48),
    "a width of 24": replace(SHORT, width=24),
    "rank 3": replace(SHORT, rank=3),
    "rank 1 in chunks of 8": replace(SHORT, rank=1),
    "a width of 8": replace(SHORT, width=8),
    "a state of 16": replace(SHORT, n=16),
    "two heads": replace(SHORT, heads=2),
    "17 heads": replace(SHORT, heads=17),
    "a state of 256": replace(SHORT, n=256),
    "128 by 128": replace(SHORT, n=128, width=128),
    "128 rows of a chunk": replace(SHORT, rank=16),
}


def check_alone(p: probe.Probe, kernels: Kernels) -> None:
    """Elsewhere the TileLang kernels run as they did, and what is made of their results is the same."""
    for name, case in ALONE.items():
        step = Step(p, kernels, case)
        found = p.guard_attempt(f"{name}: returns", step.run)
        p.guard(f"{name}: TileLang's launches that are missing", 2 - step.seen.tilelang, 0, reference="both kernels")
        p.digest(f"{name}: gradients", *(found or {"": step.dout}).values())
    step = Step(p, kernels, SHORT)
    step.dout = step.dout.transpose(1, 2).contiguous().transpose(1, 2)
    p.guard("a gradient of another layout: worst gradient", step.compared(), LIMITS[SHORT.dtype], reference=EXACT)


def different(found: dict[str, Tensor], other: dict[str, Tensor]) -> int:
    return sum(not torch.equal(value, other[name]) for name, value in found.items())


def scattered(leaf: Tensor) -> Tensor:
    """The same values with gaps between."""
    wide = leaf.detach().new_zeros(*leaf.shape, 2)
    wide[..., 0] = leaf.detach()
    return wide[..., 0].requires_grad_()


def check_neighbours(p: probe.Probe, kernels: Kernels, case: Case) -> None:
    """What the call promises besides: inputs, calls that overlap, gradients wanted, host waits, memory."""
    step, other = Step(p, kernels, case), Step(p, kernels, replace(case, seed=1))
    leaves, rng = given(case, step.x), torch.get_rng_state()
    copies = {name: leaf.detach().clone() for name, leaf in leaves.items()} | {"dout": step.dout.clone()}
    out = step.forward(leaves)
    p.digest("output", out.detach())
    with torch.no_grad():
        p.guard("output without gradients", not torch.equal(step.forward(leaves), out), 0, reference="the same bits")
    first = step.backward(out, leaves, kept=True)
    p.guard("inputs that changed", different(copies, {**leaves, "dout": step.dout}), 0, reference="none")
    changed = not torch.equal(rng, torch.get_rng_state())
    p.guard("state of the random generator that changed", changed, 0, reference="none")
    p.guard("a second backward", different(step.backward(out, leaves), first), 0, reference="the same bits")
    later = given(case, other.x)
    one, two = step.forward(leaves), other.forward(later)
    second = other.backward(two, later)
    p.guard("two forwards first", different(step.backward(one, leaves), first), 0, reference="the same bits")
    p.guard("gradients of another batch that are the same", len(NAMES) - different(second, first), 0, reference="none")
    spread = {name: scattered(leaf) for name, leaf in leaves.items()}
    p.guard("inputs with gaps", different(step.run(spread), first), 0, reference="the same bits")
    for name in ("k",) if p.lane == "cpu" else ("k", "adt", "mimo_o"):
        alone = {n: leaf.detach().requires_grad_(n == name) for n, leaf in leaves.items()}
        p.guard(f"{name} alone wants a gradient", different(step.run(alone), first), 0, reference="the same bits")
    for name, leaf in leaves.items():
        leaf.data.copy_(later[name].data)
    p.guard("other numbers in the same tensors", different(other.run(leaves), second), 0, reference="the same bits")
    out = step.forward(leaves)
    waits = p.waits(partial(step.backward, out, leaves, True))
    p.guard("host waits of a backward", waits.total(), 0, reference="none")
    gone = weakref.ref(leaves["q"])
    del out, one, two, leaves, alone, first, second, leaf
    p.guard("queries that are kept after all is done", gone() is not None, 0, reference="none")


def check_memory(p: probe.Probe, kernels: Kernels, name: str, case: Case) -> None:
    """At most what the TileLang kernels and what follows them write; a GPU's memory that did is still enough."""
    step = Step(p, kernels, case)
    leaves = given(case, step.x)
    out = step.forward(leaves)
    if p.lane == "cpu":
        with LiveBytes() as mode:
            step.backward(out, leaves)
        peak = float(mode.peak)
    else:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step.backward(out, leaves)
        peak = float(torch.cuda.max_memory_allocated() - before)
    r, n, width, chunk, angles = case.rank, case.n, case.width, case.chunk, case.n // case.divisor
    low = 2 * r * n + n * width // chunk + 2 * width + r * r + 1  # dq, dk, states, dv, dz, products of q and k, dtrap
    full = 2 * chunk + 2 * angles + 12  # decays between tokens and their gradients, angles', one number a token
    tables = 4 * case.heads * r * (n + width)
    limit = case.batch * (case.length * case.heads * (2 * low + 4 * full) + 4 * tables)
    limit += 2**27 * (p.lane == "cuda")  # what the blocks of torch's sums over tokens have for each other
    p.guard(f"{name}: peak of the backward", peak / 2**20, limit / 2**20, reference="TileLang's tensors", unit="MiB")


def note_times(p: probe.Probe, kernels: Kernels) -> None:
    """Backward passes of upstream's own call; its kernels are kept from one call to the next."""
    for batch, heads, length in ((1, 8, 4096), (1, 32, 2048), (1, 128, 4096), (3, 128, 4096)):
        case = replace(LARGE, batch=batch, heads=heads, length=length)
        step = Step(p, kernels, case)
        leaves = given(case, step.x)
        out = step.forward(leaves)
        took = p.milliseconds(partial(torch.autograd.grad, out, list(leaves.values()), step.dout, True), 9, 3)
        p.note(f"backward, {batch} x {length} tokens, {heads} heads", took, unit="ms")
        del step, leaves, out


LARGE = Case(rank=4, n=128, width=64, chunk=16, divisor=4, dtype=torch.bfloat16, real=True)
SHORTEST = {  # of a group a part, one or several at once
    "16 heads in 4 groups": Case(heads=16, groups=4, length=16),
    "two rows, a group a head": Case(batch=2, groups=8, length=16, divisor=4),
}
COUNTED = {
    "8 heads": Case(length=64),
    "16 heads in 8 groups": Case(heads=16, groups=8, rank=1, chunk=16),
    "decays that leave nothing": Case(length=48, reset=1e6),
}


def without_ptx(p: probe.Probe) -> None:
    """PTX of upstream's Triton kernels, which the interpreter has not, said in Triton; before these are imported."""
    from triton import language as tl

    utils: Any = p.upstream(TRITON + "utils")
    utils.cos_approx, utils.sin_approx = lambda x: tl.cos(x), lambda x: tl.sin(x)
    utils.tanh_approx = lambda x: 2 * tl.sigmoid(2 * x) - 1
    utils.sech2_approx = lambda x: 4 * tl.sigmoid(2 * x) * tl.sigmoid(-2 * x)


def reproduce(p: probe.Probe) -> None:
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    if p.lane == "cpu":
        p.triton_interpreter()
        without_ptx(p)
        OnCpu().__enter__()
    kernels = Kernels(p)
    if p.lane == "cpu":
        check_alone(p, kernels)
        for name, case in SHORTEST.items():
            check_counted(p, kernels, name, case)
        with p.unwatched():  # following the interpreter's lines costs several times as much as they do
            for name, case in COUNTED.items():
                check_counted(p, kernels, name, case)
            check_drawn(p, kernels, 2)
            check_neighbours(p, kernels, replace(SHORT, reset=200))
            check_memory(p, kernels, "8 heads", SHORT)
            check_memory(p, kernels, "a group a head", replace(SHORT, groups=8))
        return
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    from triton.runtime.autotuner import Autotuner

    # an autotuner picks by time, and its choice may reorder sums
    Autotuner.run = lambda self, *args, **named: self.fn.run(*args, **{**named, **self.configs[0].all_kwargs()})
    Step(p, kernels, replace(LARGE, heads=16, real=False)).run()  # to know which kernels there are
    kernels.build(list(kernels.asked))
    for groups in (1, 16, 4):
        check_counted(
            p, kernels, f"16 heads in {groups} groups", replace(LARGE, batch=2, length=192, heads=16, groups=groups)
        )
    check_counted(p, kernels, "8 heads, fp16", Case(length=256, rank=4, n=128, width=64, chunk=16, divisor=4))
    check_drawn(p, kernels, 6)
    check_alone(p, kernels)
    check_neighbours(p, kernels, replace(LARGE, length=192, heads=16))
    for batch, heads, groups in ((1, 32, 1), (3, 128, 1), (1, 64, 64)):
        case = replace(LARGE, batch=batch, length=2048, heads=heads, groups=groups)
        check_memory(p, kernels, f"{batch} x 2048 tokens, {heads} heads in {groups} groups", case)
    note_times(p, kernels)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``: on a CPU nothing of TileLang is launched, Triton runs interpreted and "cuda" is the CPU."""
    p.namespace()
    if p.lane == "cpu":
        p.triton_interpreter()
        without_ptx(p)
        Kernels(p)
        OnCpu().__enter__()


if __name__ == "__main__":
    probe.main(reproduce, pack=53, package="mamba_ssm", minimal=minimal, prepare=prepare)
