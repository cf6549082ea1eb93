# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9", "hypothesis",
# ]
# ///
"""Mamba-3's MIMO backward kernels load Q and K through rank-3 shared-memory views, so TMA cannot be enabled for them.

Both kernels of ``mamba3_mimo_bwd`` and of its varlen twin copy [chunk, R, N] of Q and K into a rank-3 view of a 2-D
swizzled buffer (or element by element); with TMA on, the pinned TileLang refuses that. The same rows are one 2-D block
[chunk * R, N] of Q declared as [B, S * R, G, N]. CPU lane: the real host code traces the real kernels; which element
goes where is read off the traced text; one kernel is lowered with TMA. CUDA lane: every gradient as released, bit for
bit, then with TMA and warp specialisation, compared and timed.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reproducers import probe


def minimal() -> None:
    """Lowers bwd_fwd for sm_90a with TMA on; no GPU needed."""
    import tilelang
    from mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd import mamba_mimo_bwd_fwd

    sizes = {"B": 1, "S": 32, "H": 2, "G": 1, "N": 64, "P": 64, "R": 4, "chunk_size": 16}
    options = {"hasZ": True, "hasD": True, "reduceO": True, "rotary_dim_divisor": 4}
    kernel = mamba_mimo_bwd_fwd.get_tir(**sizes, **options, dtype="bfloat16")
    tma = {"tl.disable_tma_lower": False, "tl.disable_warp_specialized": False}
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with tilelang.tvm.transform.PassContext(config=tma), target:
        source = tilelang.lower(kernel, target=target).kernel_source  # InternalError
    print("TMA loads of Q and K:", [source.count(f"tma_load({name}_desc") for name in "QK"])


TILELANG, TRITON = "mamba_ssm.ops.tilelang.mamba3.", "mamba_ssm.ops.triton.mamba3.mamba3_mimo_utils"
FILES = {"dense": "mamba3_mimo_bwd", "varlen": "mamba3_mimo_bwd_varlen"}
KERNELS, MODES = ("bwd_fwd", "bwd_bwd"), ("released", "TMA")
TMA = {"tl.disable_tma_lower": False, "tl.disable_warp_specialized": False}  # what 0.1.8 emits for TMA needs both
RANK, WIDTH, CHUNK = 4, 64, 16  # R, P and the chunk that mamba recommends for them
LEAVES = ("q", "k", "v", "adt", "dt", "trap", "q_bias", "k_bias", "mimo_v", "mimo_z", "mimo_o", "angles", "D", "z")


class Case(NamedTuple):
    """Sizes of one backward; ``cuts`` bounds the sequences, of which the dense layout has one for each batch entry."""

    layout: str
    batch: int
    heads: int
    state: int
    cuts: tuple[int, ...]
    groups: int = 1


# whole chunks for the dense layout, which takes no other
SMALL = (Case("dense", 2, 16, 128, (0, 96)), Case("varlen", 1, 16, 128, (0, 32, 96)))
RAGGED = Case("varlen", 1, 16, 128, (0, 40, 96))
LARGE = (Case("dense", 1, 112, 128, (0, 4096)), Case("varlen", 1, 112, 128, (0, 1024, 2048, 3072, 4096)))  # d 3584


def problem(p: probe.Probe, case: Case, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What the autograd entry hands to the backward; the decays come from upstream's own kernels."""
    random = partial(torch.randn, generator=torch.Generator(device).manual_seed(p.seed), device=device)
    batch, length, heads, n = case.batch, case.cuts[-1], case.heads, case.state
    x = {name: random(batch, length, heads, WIDTH).to(dtype) for name in ("dout", "v", "z")}  # [B, S, H, P]
    x |= {name: random(batch, length, RANK, case.groups, n).to(dtype) for name in "qk"}  # [B, S, R, G, N]
    x |= {name: random(heads, RANK, n) for name in ("q_bias", "k_bias")}  # [H, R, N]
    x |= {name: random(heads, RANK, WIDTH) / RANK for name in ("mimo_v", "mimo_o", "mimo_z")}  # [H, R, P]
    x |= {"angles": random(batch, length, heads, n // 4), "D": random(heads)}  # [B, S, H, N / 4], [H]
    x |= {"dt": softplus(random(batch, heads, length) - 3), "trap": random(batch, heads, length).to(dtype)}  # [B, H, S]
    return x | {"adt": -x["dt"] * random(batch, heads, length).sigmoid()}


def combined(p: probe.Probe, case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Upstream's combined backward for bf16 kernels: {leaf: gradient}."""
    varlen, inputs = "_varlen" * (case.layout == "varlen"), {name: value for name, value in x.items() if name != "adt"}
    packed = {"cu_seqlens": torch.tensor(case.cuts, dtype=torch.int32, device=x["q"].device)} if varlen else {}
    decays = getattr(p.upstream(TRITON), f"compute_dacs_segsum_triton{varlen}")(x["adt"], CHUNK, **packed)
    inputs |= dict(zip(("dA_cs", "dA_cs_rev", "segsum"), decays, strict=True)) | packed
    function = getattr(p.upstream(TILELANG + FILES[case.layout]), f"mamba_mimo_bwd_combined{varlen}")
    found = function(**inputs, chunk_size=CHUNK, rotary_dim_divisor=4, dtype=torch.bfloat16)
    return dict(zip(LEAVES, found, strict=True))


class Launches:
    """Stands between one module's host code and its two kernel factories: sees what is asked for and what is passed.

    Each kernel is traced once by the real factory; it runs only once ``kernels`` holds it compiled.
    """

    def __init__(self, module: Any) -> None:
        self.kernels: dict[str, Any] = {}
        self.traced: dict[str, Any] = {}
        self.asked: dict[str, dict[str, Any]] = {}
        self.passed: dict[str, tuple[Tensor, ...]] = {}
        self.factories = {name: getattr(module, f"mamba_mimo_{name}") for name in KERNELS}
        for name in KERNELS:
            setattr(module, f"mamba_mimo_{name}", partial(self._make, name))

    def _make(self, name: str, *args: Any) -> Any:
        if name not in self.traced:
            self.traced[name] = self.factories[name].get_tir(*args)
            self.asked[name] = dict(self.factories[name].signature.bind(*args).arguments)
        return partial(self._launch, name)

    def _launch(self, name: str, *tensors: Tensor) -> None:
        self.passed[name] = tensors
        if name in self.kernels:
            self.kernels[name](*tensors)

    def configs(self, name: str, tma: bool) -> dict[str, Any]:
        """The factory's own pass configurations, or these with TMA on."""
        own = self.factories[name].pass_configs.items()
        return {str(getattr(k, "value", k)): v for k, v in own} | (TMA if tma else {})

    def misfits(self, name: str, sizes: dict[str, int]) -> int:
        """How many tensors were passed in another shape than the traced kernel declares."""
        shapes = [self.traced[name].buffer_map[parameter].shape for parameter in self.traced[name].params]
        wanted = [tuple(eval(str(size), {}, sizes) for size in shape) for shape in shapes]
        return sum(tuple(t.shape) != shape for t, shape in zip(self.passed[name], wanted, strict=True))

    def strangers(self, name: str, x: dict[str, Tensor]) -> list[str]:
        """Tensors of the kernel that are named as one of the caller's and do not hold the same; shapes may be alike."""
        declared = [self.traced[name].buffer_map[parameter].name for parameter in self.traced[name].params]
        named = {given.lower(): t for given, t in x.items()}
        pairs = [
            (n, t, named[n.lower()]) for n, t in zip(declared, self.passed[name], strict=True) if n.lower() in named
        ]
        assert {"Q", "K", "V", "Q_BIAS", "K_BIAS", "MIMO_V", "MIMO_O"} <= {n for n, _, _ in pairs}
        return [n for n, t, true in pairs if not torch.equal(t.flatten(), true.flatten())]

    def copies(self, name: str, x: dict[str, Tensor]) -> int:
        """Of Q and K, how many lie elsewhere than where the caller has them."""
        declared = [self.traced[name].buffer_map[parameter].name for parameter in self.traced[name].params]
        passed = {n: t.data_ptr() for n, t in zip(declared, self.passed[name], strict=True)}
        return sum(passed[n.upper()] != x[n].data_ptr() for n in "qk")


def views(traced: Any) -> dict[str, str]:
    """{buffer: whose memory it is} of those by which a traced kernel gives memory another shape."""
    return dict(re.findall(r"(\w+) = T\.Buffer\(.*\bdata=(\w+)\.data\b", traced.script()))


def loads(traced: Any, names: dict[str, int]) -> Iterator[tuple[str, bool, Tensor]]:
    """Each load of Q and K: (name, is it a copy into a 2-D buffer, per element of that buffer its offset in Q or K).


    Read off the traced kernel's text. ``names``: sizes, block indices and the first token; offset -1 is out of bounds.
    """
    nodes: list[Any] = [*ast.walk(ast.parse(traced.script()))]
    parents: Any = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    lets: Any = {ast.unparse(node.target): node.value for node in nodes if isinstance(node, ast.AnnAssign)}
    buffers: Any = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
    memory = views(traced)

    def value(node: ast.AST, **loops: Any) -> Any:
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        known = {name: (names | loops)[name] if name in names | loops else value(lets[name]) for name in used}
        return eval(ast.unparse(node), {}, known)

    def offsets(name: str, index: list[Any]) -> Tensor:
        flat, inside = torch.zeros((), dtype=torch.long), torch.ones((), dtype=torch.bool)
        sizes = value(buffers[name].args[name not in memory])  # T.match_buffer has its parameter before them
        (strides,) = (word.value for word in buffers[name].keywords if word.arg == "strides")
        for i, size, stride in zip(index, sizes, value(strides), strict=True):
            flat, inside = flat + i * stride, inside & torch.as_tensor(i < size)
        return torch.where(inside, flat, -1).flatten()

    for node in nodes:
        copy = isinstance(node, ast.Call) and ast.unparse(node.func) == "T.copy"
        source: Any = node.args[0].args[0] if copy else node.value if isinstance(node, ast.Assign) else None
        name = ast.unparse(source.value) if isinstance(source, ast.Subscript) else ""
        given = memory.get(name, name)
        if given in ("Q", "K") and copy:  # T.copy(T.region(Q[first...], 1, extents...), T.region(shared[0...], 2, ...))
            grid = torch.meshgrid(*(torch.arange(value(extent)) for extent in node.args[0].args[2:]), indexing="ij")
            index = [value(first) + step for first, step in zip(source.slice.elts, grid, strict=True)]
            yield given, len(node.args[1].args[0].slice.elts) == 2, offsets(name, index)
        elif given in ("Q", "K"):  # shared[row, column] = Q[...] in nested parallel loops
            loops, above = dict[str, Tensor](), parents[node]
            while ast.unparse(getattr(above, "iter", node)).startswith("T.parallel("):
                loops, above = {above.target.id: torch.arange(value(above.iter.args[0]))} | loops, parents[above]
            at = dict(zip(loops, torch.meshgrid(*loops.values(), indexing="ij"), strict=True))
            row, column = (value(i, **at) for i in node.targets[0].slice.elts)
            found = offsets(name, [value(i, **at) for i in source.slice.elts])
            yield given, False, found[(row * (column.max() + 1) + column).flatten().argsort()]


def misloaded(
    launches: Launches,
    batch: int,
    tokens: int,
    groups: int,
    share: int,
    head: int,
    start: float,
    n: int,
    rank: int = RANK,
    chunk: int = CHUNK,
    options: dict[str, bool] | None = None,
) -> float:
    """Elements of Q and K that either kernel loads from elsewhere than where the last batch entry has them.

    With ``options`` the kernels are traced anew, for these and the sizes.
    """
    heads, first = groups * share, int(start * tokens)
    head, at, wrong = head % heads, batch - 1, 0.0
    names = {"B": batch, "S": tokens, "H": heads, "G": groups, "NS": batch, "bx": head, "by": at, "bz": at}
    token = torch.arange(first, first + chunk)[:, None, None]
    row = (at * tokens + token) * rank + torch.arange(rank)[:, None]
    offset = (row * groups + head // share) * n + torch.arange(n)  # [chunk, R, N]
    true = torch.where(token < tokens, offset, -1).flatten()
    names |= {"chunk_start": first} | ({"fused_chunk_start": first} if rank == 1 else {})  # rank 1: one name for both
    for name in KERNELS:
        kernel = launches.traced[name]
        if options is not None:
            sizes = launches.asked[name] | {"N": n, "R": rank, "chunk_size": chunk} | options
            kernel = launches.factories[name].get_tir(**sizes)
        for _, _, found in loads(kernel, names):
            wrong += int((found != true).sum()) if found.shape == true.shape else math.inf
    return wrong


def traced(p: probe.Probe, case: Case, device: str, dtype: torch.dtype) -> Launches | None:
    """Let the host code trace and "launch" both kernels, and check what it asks for and hands over."""
    launches = Launches(p.upstream(TILELANG + FILES[case.layout]))
    x = problem(p, case, device, dtype)
    call = partial(combined, p, case, x)
    if p.guard_attempt(f"{case.layout}: both kernels traced", call) is None:
        return None
    sizes = {"B": case.batch, "S": case.cuts[-1], "H": case.heads, "G": 1, "NS": len(case.cuts) - 1}
    for name in KERNELS:
        label = f"{case.layout} {name}"
        p.guard(
            f"{label}: tensors that do not fit the kernel",
            launches.misfits(name, sizes),
            0,
            reference="shapes that the traced kernel declares",
        )
        strangers = launches.strangers(name, x)
        p.guard(
            f"{label}: tensors that are not the caller's",
            len(strangers),
            0,
            reference=f"what the backward was given, by name {strangers}",
        )
        p.guard(f"{label}: copies of Q and K", launches.copies(name, x), 0, reference="the caller's memory")
        # two groups of two heads, the last head of the last batch entry; 24 tokens are a chunk and a ragged one
        some = {"B": 2, "S": 24, "H": 4, "G": 2, "NS": 2, "bx": 3, "by": 1, "bz": 1}
        found = [sorted(loads(launches.traced[name], some | {"chunk_start": start})) for start in (0, 16)]
        p.guard(f"{label}: loads of Q and K", abs(len(found[0]) - 2), 0, reference="one each")
        p.digest(f"{label}: which elements of Q and K are loaded where", *(load[2] for at in found for load in at))
        p.digest(f"{label}: Q and K as passed", *(tensor.flatten() for tensor in launches.passed[name][1:3]))
        p.error(
            f"{label}: loads of Q and K that TMA cannot take",
            sum(not load[1] for load in found[0]),
            0,
            reference="copies into a 2-D buffer",
            bug_above=1,
        )
    many = case._replace(groups=case.heads)  # with one group an exchange of ranks and groups would not show
    x = problem(p, many, device, dtype)
    p.guard_attempt(f"{case.layout}, a group a head: launched", partial(combined, p, many, x))
    for name in KERNELS:
        off = launches.misfits(name, sizes | {"G": case.heads}) + len(launches.strangers(name, x))
        p.guard(
            f"{case.layout} {name}, a group a head: tensors that do not fit or are not the caller's",
            off,
            0,
            reference="the caller's, in the shapes that the traced kernel declares",
        )
    from hypothesis import strategies as st

    space = {
        "batch": st.integers(1, 3),
        "tokens": st.integers(1, 70),
        "groups": st.integers(1, 3),
        "share": st.integers(1, 3),
        "head": st.integers(0, 8),
        "start": st.floats(0, 0.99),  # any token: packed sequences start anywhere
    }
    name, measure = "elements of Q and K loaded from elsewhere", partial(misloaded, launches)
    p.drawn(
        f"{case.layout} drawn: {name}",
        partial(measure, n=case.state),
        0,
        space=space,
        count=6,
        reference="row-major [B, S, R, G, N], -1 past the end",
    )
    space |= {
        "n": st.sampled_from([32, 64, 128]),
        "rank": st.sampled_from([2, 1, 3, 8]),
        "tokens": st.integers(8, 70),  # never the first token: at 0 a wrong stride does not show
        "start": st.floats(0.2, 0.99),
        "chunk": st.sampled_from([8, 16, 32]),
        "options": st.fixed_dictionaries(dict.fromkeys(("hasZ", "hasD", "reduceO"), st.booleans())),
    }
    p.drawn(
        f"{case.layout} drawn, traced anew: {name}",
        measure,
        0,
        space=space,
        count=3,
        reference="row-major [B, S, R, G, N], -1 past the end",
    )
    return launches


def refused() -> probe.Signature:
    """How TileLang refuses a rank-3 view with TMA on."""
    message = r"InputDim\(\) == 2.*Cannot detect TMA layout"
    return probe.Signature("InternalError", message, "tilelang/engine/phase.py")


def check_source(p: probe.Probe, label: str, source: str, traced: Any) -> None:
    """The CUDA of a kernel that was built with TMA on."""
    memory = {"Q": "Q", "K": "K"} | views(traced)
    loaded = {memory.get(name) for name in re.findall(r"\btl::tma_load\((\w+)_desc,", source)}
    missing = len({"Q", "K"} - loaded)
    p.error(f"{label}: of Q and K, not loaded by TMA", missing, 0, reference="the generated CUDA")


def cpu_lane(p: probe.Probe) -> None:
    """Structure of all four kernels; one lowered with TMA on, for the other three take minutes of compiler time."""
    p.triton_interpreter()
    launches = traced(p, Case("dense", 1, 2, 64, (0, 32)), "cpu", torch.float32)
    traced(p, Case("varlen", 1, 2, 64, (0, 8, 24)), "cpu", torch.float32)
    if launches is not None:
        label, configs = "dense bwd_fwd", launches.configs("bwd_fwd", True)
        lower = partial(p.lower, launches.traced["bwd_fwd"], **configs)
        source = p.attempt(f"{label}: lowered with TMA", lower, refused())
        if source is not None:
            check_source(p, label, source, launches.traced["bwd_fwd"])
    p.skip("dense bwd_bwd and varlen, lowered with TMA", "minutes of compiler time; the cuda lane builds them")


def kernels(p: probe.Probe, found: dict[str, Launches]) -> dict[tuple[str, str], dict[str, Any]]:
    """{(layout, mode): {name: kernel}}; all are built at once, for the compiler lets go of the interpreter's lock."""

    tilelang = p.upstream("tilelang")

    def build(mode: str, layout: str, name: str) -> tuple[Any, str, str]:
        configs = found[layout].configs(name, mode == "TMA")
        kernel = tilelang.compile(found[layout].traced[name], out_idx=[], pass_configs=configs)
        return kernel, kernel.get_kernel_source(), str(p.nvcc(kernel.get_kernel_source()))

    result: dict[tuple[str, str], dict[str, Any]] = {key: {} for key in itertools.product(found, MODES)}
    with ThreadPoolExecutor() as pool:
        jobs = {key: pool.submit(build, *key) for key in itertools.product(MODES, found, KERNELS)}
    for (mode, layout, name), job in jobs.items():
        label = f"{layout} {name}"
        got = p.attempt(f"{label}: built with TMA", job.result, refused()) if mode == "TMA" else job.result()
        if got is not None:
            result[layout, mode][name] = got[0]
            p.note(f"{label}: nvcc, {mode}", got[2])
            if mode == "TMA":
                check_source(p, label, got[1], found[layout].traced[name])
    return result


def milliseconds(launches: Launches, name: str) -> float:
    """Median of nine launches of one kernel on the tensors last passed to it, after three untimed ones."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(12)]
    for start, end in events:
        start.record()
        launches.kernels[name](*launches.passed[name])
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(end) for start, end in events[3:]))


def cuda_lane(p: probe.Probe) -> None:
    """Every gradient with the kernels as released; then TMA's on the same inputs; then the time of either."""
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    tuner = p.upstream("triton.runtime.autotuner").Autotuner
    for value in [value for value in vars(p.upstream(TRITON)).values() if isinstance(value, tuner)]:
        value.configs = value.configs[:1]  # arms that tune differently may round differently
    found = {case.layout: seen for case in SMALL if (seen := traced(p, case, "cuda", torch.bfloat16))}
    built = kernels(p, found)

    def gradients(case: Case, mode: str) -> dict[str, Tensor]:
        """Nothing where this mode's kernels could not be built."""
        found[case.layout].kernels = built[case.layout, mode]
        whole = len(built[case.layout, mode]) == len(KERNELS)
        return combined(p, case, problem(p, case, "cuda", torch.bfloat16)) if whole else {}

    torch.use_deterministic_algorithms(True, warn_only=True)  # torch.empty then holds NaN: all must be written
    for case in (*SMALL, RAGGED):
        label = f"{case.layout} {'+'.join(str(b - a) for a, b in itertools.pairwise(case.cuts))}"
        grads, again = gradients(case, "released"), gradients(case, "released")
        bad = [name for name, grad in grads.items() if not torch.equal(grad, again[name])]
        p.guard(f"{label}: gradients that a second run changes", len(bad), 0, reference=f"no NaN, first run {bad}")
        for name, grad in grads.items():
            p.digest(f"{label}: gradient of {name}", grad)
        # with TMA, a bulk load of QK_DOT's last rows would pass the end of a ragged tensor
        if case in SMALL and (fast := gradients(case, "TMA")):
            errors = [((fast[k].double() - g.double()).norm() / g.double().norm()).item() for k, g in grads.items()]
            # the same arithmetic in the same order: at most nvcc contracts otherwise, a bf16 rounding here and there
            worst = math.nan if any(map(math.isnan, errors)) else max(errors)
            p.error(f"{label}: worst of 14 gradients with TMA", worst, 2**-8, reference="TMA off")
            p.note(f"{label}: gradients that TMA changes", sum(not torch.equal(g, fast[k]) for k, g in grads.items()))
    torch.use_deterministic_algorithms(False)
    for case, mode in itertools.product(LARGE, MODES):
        if gradients(case, mode):
            for name in KERNELS:
                took = milliseconds(found[case.layout], name)
                p.note(f"{case.layout} {name}, S 4096, H 112: {mode}", took, unit="ms")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which needs no compiled extension and launches nothing."""
    p.namespace()
    if p.lane == "cpu":
        p.triton_interpreter()


def reproduce(p: probe.Probe) -> None:
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    cpu_lane(p) if p.lane == "cpu" else cuda_lane(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=7, package="mamba_ssm", minimal=minimal, prepare=prepare)
