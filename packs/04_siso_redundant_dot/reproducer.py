# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "hypothesis"]
# ///
"""Mamba-3's SISO backward kernel writes the same masked product V dO^T three times; once is bit for bit enough.

``mamba3_siso_bwd_kernel_dqkv`` forms M = (V dO^T) o L^T for dADT, again for dK and again for dQ, from the same blocks
and the same mask. CPU lane: the real kernel under Triton's interpreter, where each product is really computed, against
autograd of the closed recurrence in fp64, and compiled for sm_90 without a GPU. CUDA lane: the real bf16 kernels, alone
and through the public autograd entry. Every gradient is hashed; both arms' hashes must be equal.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import os
import random
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reproducers import probe


def minimal() -> None:
    """Counts how often the kernel's source writes the product out; no GPU needed."""
    import inspect

    from mamba_ssm.ops.triton.mamba3 import mamba3_siso_bwd

    count = inspect.getsource(mamba3_siso_bwd).count("tl.dot(v_block, tl.trans(do_block))")
    print(f"V dO^T is written {count} times; once is enough")
    assert count == 1


FOLDER = "mamba_ssm.ops.triton.mamba3."
KERNEL = "mamba3_siso_bwd_kernel_dqkv"
OUTPUTS = ("dQ", "dK", "dV", "dADT", "dQK", "dD", "d_state")
PRODUCT = "tl.dot(v_block, tl.trans(do_block))"


class Case(NamedTuple):
    """Sizes of one launch; ``cuts`` packs sequences into a batch of one, else ``batch`` of them have ``length``."""

    batch: int
    length: int
    groups: int
    heads: int
    n: int
    p: int
    chunk: int
    cuts: tuple[int, ...] = ()

    def sequences(self) -> list[tuple[int, slice, int]]:
        """(batch index, tokens, number of its first chunk) of each sequence, as the kernel numbers chunks."""
        if not self.cuts:
            return [(b, slice(0, self.length), 0) for b in range(self.batch)]
        return [(0, slice(a, b), i + a // self.chunk) for i, (a, b) in enumerate(itertools.pairwise(self.cuts))]

    def product(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of V and dO^T as the kernel multiplies them: P padded to a power of two."""
        padded = 1 << (self.p - 1).bit_length()
        return (self.chunk, padded), (padded, self.chunk)

    def alone(self) -> bool:
        """Whether no other product of the kernel has these shapes."""
        return len({1 << (self.n - 1).bit_length(), 1 << (self.p - 1).bit_length(), self.chunk}) == 3

    def programs(self) -> int:
        """Chunks of all heads: each needs the product once."""
        return sum(-(-(at.stop - at.start) // self.chunk) for _, at, _ in self.sequences()) * self.heads

    def layout(self) -> str:
        return f"packed {'+'.join(str(b - a) for a, b in itertools.pairwise(self.cuts))}" if self.cuts else "batched"

    def name(self, dtype: torch.dtype) -> str:
        sizes = f"B{self.batch} S{self.length} G{self.groups} H{self.heads} C{self.chunk}"
        return f"{self.layout()} {sizes} {str(dtype)[6:]}"


SMALL = (  # head widths differ from each other and from the chunk; lengths are ragged but for the first
    Case(1, 64, 1, 2, 32, 16, 8),
    Case(2, 50, 2, 4, 16, 32, 8),
    Case(1, 37, 1, 1, 64, 32, 16),
    Case(1, 64, 1, 2, 32, 16, 8, (0, 21, 26, 64)),
    Case(1, 37, 2, 2, 16, 32, 8, (0, 12, 17, 37)),
)
LARGE = (Case(2, 300, 1, 8, 128, 64, 64), Case(1, 300, 2, 8, 128, 64, 64, (0, 100, 163, 300)))
# (chunks, widths) that are drawn; a width of N or P that is no power of two is padded to the next
DRAWN = (128, 8, 64, 16, 32), (8, 16, 24, 32, 48, 64, 80, 128, 192, 256)
DRAWN_ON_GPU = (16, 32, 64), (16, 32, 48, 64, 80, 128)  # a GPU's products start at 16, and its shared memory ends
TRAINING = Case(1, 4096, 1, 112, 128, 64, 64)  # d_model 3584, expand 2


def problem(case: Case, dtype: torch.dtype, seed: int, device: str) -> dict[str, Tensor]:
    """Random inputs; values of q, k, v and dO are such that ``dtype`` holds them."""
    random = partial(torch.randn, generator=torch.Generator(device).manual_seed(seed), device=device)
    tokens, count = (case.batch, case.length), len(case.sequences())
    x = {name: random(*tokens, case.groups, case.n).to(dtype) / 4 for name in ("q", "k")}  # [B, S, G, N]
    x |= {name: random(*tokens, case.heads, case.p).to(dtype) for name in ("v", "do")}  # [B, S, H, P]
    x |= {"adt": -random(case.batch, case.heads, case.length).abs() / 8}  # [B, H, S]
    x |= {"qk": random(case.batch, case.heads, case.length), "d": random(case.heads)}  # [B, H, S], [H]
    return x | {name: random(count, case.heads, case.p, case.n) for name in ("first", "dlast")}  # [sequence, H, P, N]


def state(x: dict[str, Tensor], total: Tensor, steps: int) -> Tensor:
    """[H, P, N]: one sequence's recurrent state after ``steps`` tokens; k [T, H, N], v [T, H, P], total [H, 1 + T]."""
    left = (total[:, steps, None] - total[:, 1 : steps + 1]).exp()  # [H, steps]
    new = torch.einsum("hs,shp,shn->hpn", left, x["v"][:steps], x["k"][:steps])
    return total[:, steps, None, None].exp() * x["first"] + new


def exact(case: Case, x: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(gradients by autograd of the closed recurrence, the forward's saved tensors), all in fp64.

    y_t = sum_{s<t} (q_t k_s) e^{A_t-A_s} v_s + e^{A_t} S_0 q_t + (D + qk_t) v_t with A the running sum of ADT.
    """
    x = {name: value.double() for name, value in x.items()}
    x |= {name: x[name].repeat_interleave(case.heads // case.groups, 2) for name in "qk"}  # dQ, dK: per value head
    leaves = {name: x[name].clone().requires_grad_() for name in ("q", "k", "v", "adt", "qk", "d", "first")}
    chunks = len(case.cuts) - 1 + case.length // case.chunk if case.cuts else -(-case.length // case.chunk)
    saved = {"sum": x["adt"].new_zeros(case.batch, case.heads, chunks), "local": torch.zeros_like(x["adt"])}
    saved["states"] = x["v"].new_full((case.batch, case.heads, case.p, chunks, case.n), math.nan)  # gaps stay NaN
    loss = x["v"].new_zeros(())
    for number, (b, at, first) in enumerate(case.sequences()):
        one = {name: leaves[name][b, at] for name in ("q", "k", "v")} | {"first": leaves["first"][number]}
        total = torch.nn.functional.pad(leaves["adt"][b, :, at].cumsum(-1), (1, 0))  # [H, 1 + T]
        length = total.shape[1] - 1
        future = torch.ones(length, length, dtype=torch.bool, device=total.device).triu()
        decay = (total[:, 1:, None] - total[:, None, 1:]).masked_fill(future, -math.inf).exp()  # [H, T, T]
        y = torch.einsum("thn,shn,hts,shp->thp", one["q"], one["k"], decay, one["v"])
        y = y + torch.einsum("ht,thn,hpn->thp", total[:, 1:].exp(), one["q"], one["first"])
        y = y + (leaves["d"][:, None] + leaves["qk"][b, :, at]).T[..., None] * one["v"]
        loss = loss + (y * x["do"][b, at]).sum() + (state(one, total, length) * x["dlast"][number]).sum()
        for chunk, low in enumerate(range(0, length, case.chunk), first):
            part = x["adt"][b, :, at][:, low : low + case.chunk].cumsum(-1)
            saved["local"][b, :, at][:, low : low + case.chunk] = part
            saved["sum"][b, :, chunk] = part[:, -1]
            saved["states"][b, :, :, chunk] = state(one, total, low).detach()
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(OUTPUTS, found, strict=True)), saved


def arguments(case: Case, x: dict[str, Tensor], saved: dict[str, Tensor]) -> tuple[Any, ...]:
    """What upstream's compute_dqkv takes; decays in powers of two."""
    local, total = ((saved[name] / math.log(2)).float() for name in ("local", "sum"))
    bounds = torch.tensor(case.cuts, dtype=torch.int32, device=x["q"].device) if case.cuts else None
    kept = saved["states"].flatten(3).to(x["v"].dtype)  # [B, H, P, chunks * N]
    inputs = (x["q"], x["k"], x["v"], local, total, x["qk"], kept, x["do"], x["dlast"])
    return (*inputs, None, x["d"], case.chunk, True, bounds)


def check(p: probe.Probe, siso: Any, case: Case, dtype: torch.dtype, device: str, limit: float, kind: str = "") -> None:
    """One case: hash every gradient, and hold it to fp64 so that equal hashes cannot be equally wrong."""
    x = problem(case, dtype, p.seed, device)
    want, saved = exact(case, x)
    got = dict(zip(OUTPUTS, siso.compute_dqkv(*arguments(case, x, saved)), strict=True))
    errors = {name: ((got[name] - want[name]).norm() / want[name].norm()).item() for name in OUTPUTS}
    worst = math.nan if any(map(math.isnan, errors.values())) else max(errors.values())
    p.guard(
        f"{kind}{case.name(dtype)}: worst of 7 gradients", worst, limit, reference="fp64 autograd of the recurrence"
    )
    p.digest(f"{kind}{case.name(dtype)}: {', '.join(OUTPUTS)}", *got.values())


@contextlib.contextmanager
def masked_anew(siso: Any) -> Iterator[None]:
    """The kernel's other way to mask, which compute_dqkv switches off."""
    kernel = getattr(siso, KERNEL)

    class Switched:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **named: kernel[grid](*args, **named | {"RECOMPUTE_MASK": True})

    setattr(siso, KERNEL, Switched())
    try:
        yield
    finally:
        setattr(siso, KERNEL, kernel)


def recomputed(p: probe.Probe, siso: Any, case: Case, dtype: torch.dtype, device: str, limit: float) -> None:
    """The other way to mask; and decays that grow, of which it makes 1."""
    with masked_anew(siso):
        check(p, siso, case, dtype, device, limit, "mask recomputed, ")
        x = problem(case, dtype, p.seed, device)
        x["adt"][..., ::3] *= -1
        got = siso.compute_dqkv(*arguments(case, x, exact(case, x)[1]))
        p.digest(f"mask recomputed, growing decays, {case.name(dtype)}", *got)


def check_drawn(
    p: probe.Probe,
    siso: Any,
    dtype: torch.dtype,
    device: str,
    limit: float,
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    count: int,
    after: Callable[[Case], None] = lambda case: None,
) -> None:
    """Sizes and options that nobody foresees, either way to mask; ``sizes``: (chunks, widths); ``after`` a launch."""
    from hypothesis import strategies as st

    kept = list[Tensor]()

    def measure(
        chunk: int,
        width: tuple[int, int],
        tokens: list[tuple[int, float]],
        packed: bool,
        batch: int,
        groups: int,
        share: int,
        absent: set[str],
        anew: bool,
        strided: bool,
    ) -> float:
        lengths = [full * chunk + math.ceil(rest * chunk) for full, rest in tokens]  # the last chunk may be ragged
        cuts = tuple(itertools.accumulate(lengths, initial=0)) if packed else ()
        case = Case(1 if packed else batch, sum(lengths), groups, groups * share, *width, chunk, cuts)
        x = problem(case, dtype, p.seed, device)
        if strided:  # as a part of a fused projection; the rest is never to be read
            for name in ("q", "k", "v", "do"):
                x[name] = torch.cat([x[name], torch.full_like(x[name], math.nan)], -1)[..., : x[name].shape[-1]]
        x |= {name: torch.zeros_like(x[name]) for name in absent & {"d", "dlast"}}
        want, saved = exact(case, x)
        given = list(arguments(case, x, saved))
        for at, name in ((8, "dlast"), (10, "d")):
            given[at] = None if name in absent else given[at]
        given[12] = "d_state" not in absent
        with masked_anew(siso) if anew else contextlib.nullcontext():
            got = dict(zip(OUTPUTS, siso.compute_dqkv(*given), strict=True))
        after(case)
        missing = {"d": "dD", "d_state": "d_state"}
        left = [name for name in OUTPUTS if name not in [missing.get(option) for option in absent]]
        kept.extend(got[name] for name in left)
        # large terms may leave little of each other, a single token's dADT above all: not by its own norm alone
        least = max(want[name].norm() for name in left) / 8
        off = [(got[name] - want[name]).norm() / want[name].norm().clamp(min=least) for name in left]
        return math.nan if any(t is not None for name, t in got.items() if name not in left) else torch.stack(off).max()

    space = {
        "chunk": st.sampled_from(sizes[0]),
        "width": st.tuples(st.sampled_from(sizes[1]), st.sampled_from(sizes[1])),
        "tokens": st.lists(st.tuples(st.integers(0, 2), st.floats(2**-7, 1)), min_size=1, max_size=3),
        "packed": st.booleans(),
        "batch": st.integers(1, 2),
        "groups": st.integers(1, 2),
        "share": st.integers(1, 3),
        "absent": st.sets(st.sampled_from(["d", "dlast", "d_state"])),
        "anew": st.booleans(),
        "strided": st.booleans(),
    }
    p.drawn(
        f"{str(dtype)[6:]}, drawn: worst of 7 gradients",
        measure,
        limit,
        space=space,
        count=count,
        reference="fp64 autograd of the recurrence",
    )
    p.digest(f"{str(dtype)[6:]}, drawn: {', '.join(OUTPUTS)}", *kept)


def written(p: probe.Probe, siso: Any) -> None:
    """How often the source spells the product out; only this kernel has these names."""
    tree = ast.parse(Path(siso.__file__).read_text())
    count = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)].count(PRODUCT)
    p.error(
        "V dO^T products written in the kernel",
        count or math.nan,
        1,
        reference="one block that dADT, dK and dQ share",
        bug_above=2,
    )


def interpreted(p: probe.Probe) -> None:
    """CPU lane: the kernel as its source says, product by product."""
    p.triton_interpreter()
    siso = p.upstream(FOLDER + "mamba3_siso_bwd")
    written(p, siso)
    builder = p.upstream("triton.runtime.interpreter").InterpreterBuilder
    create_dot, shapes = builder.create_dot, []

    def counted(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        shapes.append((a.data.shape, b.data.shape))
        return create_dot(self, a, b, *rest)

    builder.create_dot = counted
    for case, dtype in itertools.product(SMALL, (torch.float32, torch.float16)):
        # fp32: sums of at most 64 products; fp16: 2**-11 a rounding, a handful in a row
        check(p, siso, case, dtype, "cpu", 1e-5 if dtype == torch.float32 else 2**-9)
        ran = shapes.count(case.product()) / case.programs()
        p.error(
            f"{case.name(dtype)}: V dO^T products a chunk", ran, 1, reference="one for each head and chunk", bug_above=2
        )
        shapes.clear()
    recomputed(p, siso, SMALL[1], torch.float32, "cpu", 1e-5)
    shapes.clear()
    most = list[float]()

    def count(case: Case) -> None:
        if case.alone():
            most.append(abs(shapes.count(case.product()) / case.programs() - 1) + 1)
        shapes.clear()

    for dtype in (torch.float32, torch.float16):
        limit = 1e-5 if dtype == torch.float32 else 2**-9
        check_drawn(p, siso, dtype, "cpu", limit, DRAWN, 10, count)
    p.error("drawn: V dO^T products a chunk", max(most), 1, reference="one for each head and chunk", bug_above=2)


def compiled(p: probe.Probe, device: str) -> None:
    """Machine code for sm_90 of the launches that compute_dqkv makes at training's sizes; needs no GPU."""
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # line numbers are all that may differ
    compiler = p.upstream("triton.compiler")
    target = p.upstream("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    siso = p.upstream(FOLDER + "mamba3_siso_bwd")
    tuner, launches = getattr(siso, KERNEL), []

    class Recorder:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **named: launches.append(dict(zip(tuner.fn.arg_names, args, strict=False)) | named)

    setattr(siso, KERNEL, Recorder())
    draw = random.Random(p.seed)
    cases = [
        *LARGE,
        *(Case(1, 3 * chunk - 5, 1, 2, *draw.sample(DRAWN_ON_GPU[1], 2), chunk) for chunk in (16, 32, 128)),
    ]
    for case in cases:
        x = problem(case, torch.bfloat16, p.seed, device)
        given = list(arguments(case, x, exact(case, x)[1]))
        for at in (8, 10):  # dlast and D
            given[at] = None if case not in LARGE and draw.random() < 0.5 else given[at]
        siso.compute_dqkv(*given)
    setattr(siso, KERNEL, tuner)
    options = {"num_warps": 4, "num_stages": 2}  # one of upstream's 27 configurations
    types = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32"}
    for case, call in zip(cases, launches, strict=True):
        signature, constants, attributes = {}, {}, {}
        for index, (name, value) in enumerate(call.items()):
            if isinstance(value, Tensor) or (type(value) is int and value != 1 and not name.isupper()):
                signature[name] = types[value.dtype] if isinstance(value, Tensor) else "i32"
                if isinstance(value, Tensor) or value % 16 == 0:  # as Triton's launcher specialises arguments
                    attributes[index,] = [["tt.divisibility", 16]]
            else:
                signature[name], constants[index,] = "constexpr", value
        source = compiler.ASTSource(tuner.fn, signature, constants, attributes)
        asm = compiler.compile(source, target=target, options=options).asm
        name = f"sm_90 {case.layout()}" if case in LARGE else f"sm_90, drawn, chunk {case.chunk}"
        p.digest(f"{name}: PTX and cubin", asm["ptx"].encode(), asm["cubin"])
        p.note(f"{name}: dots left in Triton's first IR", asm["ttir"].count("tt.dot "))


def autograd(combined: Any, case: Case, seed: int) -> dict[str, Tensor]:
    """Gradients of all eleven inputs of the public entry, bf16 as in training."""
    x, generator = problem(case, torch.bfloat16, seed, "cuda"), torch.Generator("cuda").manual_seed(seed + 1)
    random = partial(torch.randn, generator=generator, device="cuda")
    leaves = {"Q": x["q"], "K": x["k"], "V": x["v"], "ADT": x["adt"], "DT": softplus(random(*x["adt"].shape) - 3)}
    leaves |= {"Trap": random(*x["adt"].shape).bfloat16(), "D": x["d"], "Z": random(*x["v"].shape).bfloat16()}
    leaves |= {name: random(case.heads, case.n) / 4 for name in ("Q_bias", "K_bias")}
    leaves |= {"Angles": random(*x["v"].shape[:3], case.n // 4).bfloat16()}  # [B, S, H, N / 4]
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    bounds = torch.tensor(case.cuts, dtype=torch.int32, device="cuda") if case.cuts else None
    out = combined.mamba3_siso_combined(**leaves, chunk_size=case.chunk, cu_seqlens=bounds)
    found = torch.autograd.grad(out, list(leaves.values()), x["do"].to(out.dtype))
    torch.cuda.synchronize()
    return dict(zip(leaves, found, strict=True))


def timed(p: probe.Probe, siso: Any) -> None:
    """Median of nine timings after three untimed runs; the ratio of the arms' notes is the refactor's effect."""
    x, chunks = problem(TRAINING, torch.bfloat16, p.seed, "cuda"), TRAINING.length // TRAINING.chunk
    local = x["adt"].unflatten(2, (chunks, -1)).cumsum(-1)  # [B, H, chunks, C]
    saved = {"local": local.flatten(2), "sum": local[..., -1].contiguous()}
    saved["states"] = torch.randn(1, TRAINING.heads, TRAINING.p, chunks, TRAINING.n, device="cuda")
    inputs, tuner = arguments(TRAINING, x, saved), getattr(siso, KERNEL)
    times: list[float] = []
    tuner.configs = [c for c in tuner.configs if (c.num_warps, c.num_stages, c.maxnreg) == (4, 2, None)]
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        siso.compute_dqkv(*inputs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    p.note(f"compute_dqkv, {TRAINING.name(torch.bfloat16)}", statistics.median(times[3:]), unit="ms")


def cuda_lane(p: probe.Probe) -> None:
    """bf16, one pinned configuration a kernel; the public entry twice, for a hash of what varies would say nothing."""
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    siso, combined = p.upstream(FOLDER + "mamba3_siso_bwd"), p.upstream(FOLDER + "mamba3_siso_combined")
    written(p, siso)
    compiled(p, "cuda")
    timed(p, siso)
    modules = (siso, p.upstream(FOLDER + "mamba3_siso_fwd"), p.upstream(FOLDER + "angle_dt"))
    tuner = p.upstream("triton.runtime.autotuner").Autotuner
    for value in [value for module in modules for value in vars(module).values() if isinstance(value, tuner)]:
        value.configs = [next(c for c in value.configs if c.num_warps == 4)]  # arms must not tune differently
    recomputed(p, siso, LARGE[0], torch.bfloat16, "cuda", 2e-2)
    check_drawn(p, siso, torch.bfloat16, "cuda", 2e-2, DRAWN_ON_GPU, 6)  # each may have to compile
    for case in LARGE:
        # bf16 rounds by 2**-9 a handful of times in a row: states, masked products, outputs
        check(p, siso, case, torch.bfloat16, "cuda", 2e-2)
        grads, again = autograd(combined, case, p.seed), autograd(combined, case, p.seed)
        unlike = sum(not torch.equal(grad, again[name]) for name, grad in grads.items())
        p.guard(f"{case.layout()}: gradients that a second run changes", unlike, 0, reference="first run, no NaN")
        for name, grad in grads.items():
            p.digest(f"{case.layout()}: gradient of {name}", grad)


def reproduce(p: probe.Probe) -> None:
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    if p.lane == "cuda":
        return cuda_lane(p)

    def work(rank: int) -> None:  # a process either interprets Triton or compiles with it
        if rank == 0:
            return interpreted(p)
        torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment,misc,method-assign]
        return compiled(p, "cpu")

    return p.ranks(2, work)


if __name__ == "__main__":
    probe.main(reproduce, pack=4, package="mamba_ssm", minimal=minimal, prepare=lambda p: p.namespace())
