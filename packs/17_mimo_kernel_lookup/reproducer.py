# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
#     "hypothesis",
# ]
# ///
"""Mamba-3 MIMO traces each of its TileLang kernels anew at every call and keeps every trace.

The wrappers pass fresh ``T.dynamic`` symbols to their ``tilelang.jit`` factories, whose caches compare symbols by
identity. CPU lane: the real wrappers, factories and tracing; compilation and launch are stood in for, and counted.
CUDA lane: a real ``Mamba3`` layer at a training width, wall clock against device time.

Upstream is a checkout: ``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--tree mamba``.
"""

import contextlib
import copy
import itertools
import os
import statistics
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from reproducers import probe


def minimal():
    """Counts the kernels that four identical calls leave behind; needs a GPU."""
    import torch
    from mamba_ssm.modules.mamba3 import Mamba3
    from mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_fwd import mamba_mimo_fwd

    options = {"is_mimo": True, "mimo_rank": 4, "chunk_size": 16}
    layer = Mamba3(128, **options, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 64, 128, device="cuda", dtype=torch.bfloat16)
    for _ in range(4):
        layer(x)
    kept = len(mamba_mimo_fwd._kernel_cache)
    print(f"entries in tilelang.jit's cache after 4 equal calls: {kept}; 1 is enough")
    assert kept <= 1


FOLDER = "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_"
SPECIALIZE = "MAMBA3_MIMO_SPECIALIZE"  # the fix's switch: how many shapes get kernels of their own


@contextlib.contextmanager
def specialising(shapes):
    """The fix's switch, on; other trees do not know it."""
    with mock.patch.dict(os.environ, {SPECIALIZE: str(shapes)}):
        yield


# ---- CPU lane: the real wrappers, factories and traces; no compiler and no launch ----

NAMES = ("mamba_mimo_fwd", "mamba_mimo_bwd_fwd", "mamba_mimo_bwd_bwd")  # of factories
WRITTEN = ("O", "DMIMO_O", "DZ", "DMIMO_Z", "DK", "DV", "DMIMO_V", "DQ", "DD")  # by the kernels, and returned
launched = threading.local()  # .kernels: this thread's, in order


class OnCpu(TorchFunctionMode):
    """The forward wrappers allocate on "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        named = dict(kwargs or {})
        return function(*args, **named | ({"device": "cpu"} if str(named.get("device")).startswith("cuda") else {}))


class Kernel:
    """A compiled kernel's stand-in, made of a trace or of its factory's arguments alone."""

    def __init__(self, func=None, arguments=None, edition=None, **_):
        self.text = func.script(show_meta=True).encode() if func else b""
        self.names = [func.buffer_map[param].name for param in func.params] if func else []
        self.arguments, self.edition = arguments, edition

    def __call__(self, *tensors):
        """A launch writes seeded random numbers where the real kernel writes results."""
        generator = torch.Generator().manual_seed(len(self.text))
        for name, tensor in zip(self.names, tensors, strict=False):
            if name in WRITTEN and tensor is not None:
                tensor.normal_(generator=generator)
        launched.kernels.append(self)

    def fixed(self):
        """Whether it is of fixed shape."""
        return self.arguments is not None and isinstance(self.arguments["B"], int)

    def unlike(self, call):
        """How many of its arguments are neither the call's nor left open; all, if it was made of an earlier trace."""
        if self.arguments is None:
            return len(call)
        mine = {name: value for name, value in self.arguments.items() if isinstance(value, (int, str))}
        return sum(mine.get(name, value) != value for name, value in call.items())


def call(
    module,
    batch=1,
    length=16,
    heads=2,
    *,
    rank=2,
    n=16,
    width=8,
    chunk=8,
    dtype=torch.float32,
    rotary=4,
    own=False,
    sequences=2,
    gate=True,
    skip=True,
    reduce=True,
    place=torch.Tensor,
    **options,
):
    """The module's forward or backward wrapper on small random tensors: (results, kernels, what each is made of).

    ``own``: heads have B and C of their own. ``options`` are the wrapper's: state, threads, stages.
    """
    kind, varlen = ("forward" if "_fwd" in module.__name__ else "bwd_combined"), module.__name__.endswith("varlen")
    chunks, generator = length // chunk + sequences * varlen, torch.Generator().manual_seed(0)
    groups = heads if own else 1

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    q, k = (random(batch, length, rank, groups, n, dtype=dtype).as_subclass(place) for _ in range(2))  # [B, S, R, G, N]
    v, z, dout = (random(batch, length, heads, width, dtype=dtype) for _ in range(3))  # [B, S, H, P]
    bias = [random(heads, rank, n) for _ in range(2)]  # [H, R, N]
    mimo_v, mimo_o, mimo_z = (random(heads, rank, width) for _ in range(3))  # [H, R, P]
    angles, segsum = random(batch, length, heads, n // rotary), -random(batch, heads, chunks, chunk, chunk).abs()
    steps = [-random(batch, heads, length).abs() for _ in range(4)]  # decay, its reverse, dt, trap: [B, H, S]
    mimo_o, z, d = mimo_o if reduce else None, z if gate else None, random(heads) if skip else None
    if kind == "forward":
        args = (q, k, v, *bias, mimo_v, mimo_o, z, d, mimo_z, angles, *steps, segsum, chunk, rotary, dtype)
        tuned = [("", 128)]
    else:
        args = (dout, q, k, v, *bias, mimo_v, mimo_o, z, mimo_z, angles, *steps, d, segsum, chunk, rotary, dtype)
        tuned = [("bf_", 128), ("bb_", 256)]
    cuts = [length * number // sequences for number in range(sequences + 1)]
    packed = {"cu_seqlens": torch.tensor(cuts, dtype=torch.int32)} if varlen else {}
    launched.kernels = []
    with OnCpu():
        results = getattr(module, f"mamba_mimo_{kind}" + "_varlen" * varlen)(*args, **packed, **options)
    names = "B S H G NS N P R hasZ hasD reduceO isVarlen chunk_size rotary_dim_divisor dtype return_final_state"
    made = (batch, length, heads, groups, sequences, n, width, rank, gate, skip, reduce, varlen, chunk, rotary)
    made = dict(zip(names.split(), (*made, str(dtype)[6:], options.get("return_state", False)), strict=True))
    default = {prefix: {"threads": threads, "num_stages": 0} for prefix, threads in tuned}
    tuned = [{name: options.get(pre + name, value) for name, value in default[pre].items()} for pre in default]
    return results, launched.kernels, [made | more for more in tuned]


def unlike(found):
    """How many arguments of the kernels that ``found`` calls launched are neither the call's nor left open."""
    pairs = [pair for _, kernels, made in found for pair in zip(kernels, made, strict=True)]
    return sum(kernel.unlike(made) for kernel, made in pairs)


def without_compiler():
    """Trace and look up as ever, but compile nothing."""
    import tilelang.cache.kernel_cache as cache

    os.environ["TILELANG_TARGET"] = "cuda -arch=sm_90a"  # "auto" asks for nvcc
    cache.JITKernel = Kernel
    cache.KernelCache._load_kernel_from_disk = cache.KernelCache._save_kernel_to_disk = lambda *_, **__: None


def traces(p, layouts):
    """Two calls of every wrapper that differ in each open dimension: the second needs no new trace."""
    from tilelang.jit import JITImpl

    without_compiler()
    real, traced = JITImpl.get_tir, []
    JITImpl.get_tir = lambda factory, *a, **k: (traced.append(id(factory)), real(factory, *a, **k))[1]
    for layout, (fwd, bwd) in layouts.items():
        factories = {"fwd": fwd.mamba_mimo_fwd, "bwd_fwd": bwd.mamba_mimo_bwd_fwd, "bwd_bwd": bwd.mamba_mimo_bwd_bwd}
        kept = []
        other = {"batch": 2 if layout == "dense" else 1, "length": 24, "heads": 3, "own": True, "sequences": 3}
        for number, shape in enumerate([{}, other], 1):
            traced.clear()
            start = time.perf_counter()
            found = [call(module, **shape, rank=1) for module in (fwd, bwd)]
            p.note(f"{layout} call {number}: host time", (time.perf_counter() - start) * 1e3, unit="ms")
            p.digest(f"{layout} call {number}: results", *(t for f in found for t in f[0] if t is not None))
            p.digest(f"{layout} call {number}: kernels launched", *(kernel.text for f in found for kernel in f[1]))
            kept.append(sum(len(f._kernel_cache) + len(f.func.p1_cache) for f in factories.values()))
        for name, factory in factories.items():
            # the kernel of call 1 leaves batch, length, heads, groups and sequences open
            count = traced.count(id(factory))
            p.error(f"{layout} {name}: traces in call 2", count, 0, bug_above=1, reference="call 1's kernel serves it")
        # one kernel looked up anew leaves its trace and itself
        p.error(f"{layout}: traces and kernels kept by call 2", kept[1] - kept[0], 0, bug_above=2, reference="none new")
    JITImpl.get_tir = real


def replaced(module, names, editions):
    """Launches of a kernel that a factory no longer there has made. Each edition's factories are new objects, as after
    a reload; of many, one is taken whose id an earlier one had, if there is such a one."""
    wrong, ids, real = 0, set(), {name: getattr(module, name) for name in names}
    for edition in range(editions):
        made = {}
        for name in names:
            spares = [copy.copy(real[name]) for _ in range(100)]
            made[name] = next((factory for factory in spares if id(factory) in ids), spares[0])
            made[name]._kernel_cache, made[name].edition = {}, edition
            ids.add(id(made[name]))
        with mock.patch.multiple(module, **made):
            wrong += sum(kernel.edition != edition for kernel in call(module)[1])
        del made, spares
    return wrong


# {argument of ``call``: strategy}
SPACE = {"batch": st.integers(1, 3), "length": st.integers(8, 24), "heads": st.integers(1, 4), "own": st.booleans()}
SPACE |= {"sequences": st.integers(1, 4), "rank": st.integers(1, 4), "width": st.sampled_from([8, 16, 24])}
SPACE |= {"n": st.sampled_from([16, 32]), "chunk": st.sampled_from([8, 16]), "rotary": st.sampled_from([2, 4])}
SPACE |= {"dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16])}
SPACE |= dict.fromkeys(("gate", "skip", "reduce"), st.booleans())
OPEN = ("batch", "length", "heads", "own", "sequences")  # of which a fixed shape is made
STAGES, THREADS = st.integers(0, 2), st.sampled_from([64, 128, 256])
TUNED = {"forward": {"threads": THREADS, "num_stages": STAGES, "return_state": st.booleans()}}
TUNED["backward"] = {"bf_threads": THREADS, "bf_num_stages": STAGES, "bb_threads": THREADS, "bb_num_stages": STAGES}


class Compiler:
    """Stands in for ``JITImpl.compile``: no trace; it knows what was asked, how often, and what is still held."""

    def __init__(self):
        self.built, self.held, self.meanwhile = [], weakref.WeakSet(), lambda: None

    def compile(self, factory, *args, **kwargs):
        bound = factory.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.built.append(bound.arguments["num_stages"])
        self.meanwhile()
        kernel = Kernel(arguments=dict(bound.arguments), edition=getattr(factory, "edition", None))
        self.held.add(kernel)
        return kernel

    def threads(self, meanwhile, module, numbers):
        """Kernels built by as many threads as ``numbers``, each asking for one; ``meanwhile`` runs in each build."""
        self.built.clear()
        self.meanwhile = meanwhile
        try:
            with ThreadPoolExecutor(len(numbers)) as pool:
                list(pool.map(lambda number: call(module, num_stages=number), numbers))
        finally:
            self.meanwhile = lambda: None
        return len(self.built)


def lookups(p, layouts):
    """What the look-up must tell apart, and that it is shared, bounded and safe in threads."""
    from tilelang.jit import JITImpl

    compiler = Compiler()
    JITImpl.compile = lambda factory, *a, **k: compiler.compile(factory, *a, **k)
    for _, bwd in layouts.values():  # interpreted, the Triton tails take long, and no kernel is looked up in them
        for name in [name for name in vars(bwd) if name.startswith("bwd_dadt_fused_triton")]:
            setattr(bwd, name, lambda dssda, segsum, dda, *_: dda)
        for name in [name for name in vars(bwd) if name.startswith("bwd_dtrap_ddt_triton")]:
            setattr(bwd, name, lambda trap, dt, *_: (dt, trap))
    wrappers = [module for pair in layouts.values() for module in pair]
    both = [{}, {"chunk": 16}, {"dtype": torch.bfloat16}, {"gate": False, "heads": 1}, {"heads": 3, "sequences": 3}]
    more = [{"rank": 4}, {"n": 32}, {"width": 16}, {"heads": 4}, {"length": 32}, {"batch": 3}, {"rotary": 2}]
    more += [{"threads": 64}, {"num_stages": 1}, {"skip": False}, {"reduce": False}, {"return_state": True}, {}]
    found = [call(fwd, **change) for fwd, _ in layouts.values() for change in both + more]
    found += [call(bwd, **change) for _, bwd in layouts.values() for change in both]
    p.guard("launches: arguments unlike the call's", unlike(found), 0, reference="the call's own")
    with specialising(9):
        alone = [{"length": 24}, {"own": True}, {"heads": 3}, {"sequences": 3}, {"batch": 2}]
        found = [call(module, **change) for module in wrappers for change in both + alone]
    p.guard("launches of fixed shape: arguments unlike the call's", unlike(found), 0, reference="the call's own")

    def drawn(wrapper, switch, calls):
        with specialising(switch):
            return unlike([call(layouts[wrapper[0]][wrapper[1] == "backward"], **change) for change in calls])

    def reshaped(wrapper, switch, same, shapes):
        return drawn(wrapper, switch, [same | shape for shape in shapes])

    for wrapper in itertools.product(layouts, TUNED):
        change = st.fixed_dictionaries({}, optional=SPACE | TUNED[wrapper[1]])
        space = {"switch": st.integers(0, 3), "calls": st.lists(change, min_size=2, max_size=4)}
        name = f"{' '.join(wrapper)}, drawn calls: arguments unlike the call's"
        p.drawn(name, partial(drawn, wrapper), 0, space=space, count=10, reference="the call's own")
        # calls that differ in their shape alone, of which each forgotten dimension would mix two
        same, shape = ({key: SPACE[key] for key in SPACE if (key in OPEN) == opened} for opened in (False, True))
        space = {"switch": st.integers(1, 4), "same": st.fixed_dictionaries({}, optional=same)}
        space |= {"shapes": st.lists(st.fixed_dictionaries({}, optional=shape), min_size=3, max_size=6)}
        name = f"{' '.join(wrapper)}, drawn shapes of one configuration: arguments unlike the call's"
        p.drawn(name, partial(reshaped, wrapper), 0, space=space, count=10, reference="the call's own")
    fwd = layouts["dense"][0]
    places = [type("OnGpu", (torch.Tensor,), {"device": torch.device("cuda", index)}) for index in (0, 1)]
    for fixed in (0, 9):
        with specialising(fixed):
            found = [call(module, place=place) for module in wrappers for place in places]
        kernels = [kernel for _, launches, _ in found for kernel in launches]
        shared = len(kernels) - len({id(kernel) for kernel in kernels})
        name = f"kernels{' of fixed shape' * bool(fixed)} shared by two GPUs"
        p.guard(name, shared, 0, reference="one for each")
    wrong = sum(replaced(module, [name for name in vars(module) if name in NAMES], 16) for module in wrappers)
    p.guard("kernels of a factory that is gone", wrong, 0, reference="its own factory's")
    # a build lasts long enough for every thread to ask meanwhile
    for fixed in (0, 9):
        with specialising(fixed):
            built = compiler.threads(partial(time.sleep, 0.2), fwd, [10 + number % 4 for number in range(32)])
        name = f"kernels{' of fixed shape' * bool(fixed)} built by 32 threads that ask for 4"
        p.error(name, built, 4, bug_above=32, reference="one build each")
    for fixed, first in ((0, 20), (9, 24)):
        beside = partial(compiler.threads, threading.Barrier(4, timeout=20).wait, fwd, range(first, first + 4))
        with specialising(fixed):
            p.guard_attempt(f"4 threads build 4 kernels{' of fixed shape' * bool(fixed)} at the same time", beside)
    with contextlib.suppress(ZeroDivisionError):
        compiler.threads(lambda: 1 // 0, fwd, [30])
    p.guard_attempt("a build that failed is tried again", partial(call, fwd, num_stages=30))
    compiler.built.clear()
    for number in range(100, 1100):
        call(fwd, num_stages=number)
        if number > 300 and number % 8 == 0:  # the cache is full by then
            call(fwd, num_stages=7)
    p.error("kernels held after 1000 configurations", len(compiler.held), 256, bug_above=1000, reference="a bound")
    p.error("builds of one used 100 times between", compiler.built.count(7), 1, bug_above=100, reference="one build")
    compiler.built.clear()
    found, rows = [], []
    for module, fixed in itertools.product(wrappers, (1, 2)):
        with specialising(fixed):
            calls = [call(module, batch=1 + number % 10, rank=2 + fixed) for number in range(20)]
        last = call(module, rank=2 + fixed)  # the switch is off again
        found += [*calls, last]
        for launches in zip(*(kernels for _, kernels, _ in calls), last[1], strict=True):  # of one factory
            shapes = [kernel.fixed() for kernel in {id(one): one for one in launches}.values()]
            rows.append((fixed, sum(shapes), len(shapes) - sum(shapes), launches[-1].fixed()))
    switched = any(own for _, own, _, _ in rows)  # a tree without the switch owes no kernel of fixed shape
    off = sum(abs(own - fixed * switched) + abs(opened - 1) + last for fixed, own, opened, last in rows)
    # in a released tree each of 6 factories makes 21 open kernels, none fixed: 20 too many, twice
    name = "kernels of 6 factories for 10 shapes: other than 1 open, and 1 or 2 fixed where the switch is known"
    p.error(name, off, 0, bug_above=2 * 6 * 20, reference="the first shapes' own, and 1 for all others")
    p.guard("their launches: arguments unlike the call's", unlike(found), 0, reference="the call's own")


def cpu_lane(p):
    """Dense and packed wrappers."""
    p.triton_interpreter()
    layouts = {"dense": [p.upstream(FOLDER + kind) for kind in ("fwd", "bwd")]}
    layouts["varlen"] = [p.upstream(FOLDER + kind + "_varlen") for kind in ("fwd", "bwd")]
    traces(p, layouts)
    lookups(p, layouts)


# ---- CUDA lane: a real layer at a training width ----

WIDTH, LENGTH, HEADS, STATE, HEAD, RANK, CHUNK = 3584, 4096, 112, 128, 64, 4, 16
FIXED = (1, 4)  # micro-batches that also get kernels of their own
FACTORIES = (("fwd", "mamba_mimo_fwd"), ("bwd", "mamba_mimo_bwd_fwd"), ("bwd", "mamba_mimo_bwd_bwd"))


def compile_kernel(p, jobs, rank):
    """One rank compiles one kernel into TileLang's cache on disk, so that no timed call waits for a compiler."""
    (file, name), end, batch = jobs[rank]
    factory = getattr(p.upstream(FOLDER + file + end), name)
    if not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    import tilelang.language as T

    shape = [T.dynamic(dim) for dim in "BSHG"] if batch is None else [batch, LENGTH, HEADS, 1]
    static = {"chunk_size": CHUNK, "rotary_dim_divisor": 4, "dtype": "bfloat16", "num_stages": 0}
    static |= {"NS": T.dynamic("NS"), "isVarlen": True} if end else {}
    start = time.perf_counter()
    factory(*shape, STATE, HEAD, RANK, True, True, True, **static, threads=256 if name.endswith("bwd_bwd") else 128)
    case = f"{name}{end}, " + ("open shape" if batch is None else f"micro-batch {batch}")
    p.note(f"{case}: compiled or loaded", time.perf_counter() - start, unit="s")


def layer(p, batch, cuts=None):
    """A step of upstream's Mamba3 layer in bf16: forward and backward, returns the output and all gradients."""
    torch.manual_seed(p.seed)
    options = {"d_state": STATE, "headdim": HEAD, "is_mimo": True, "mimo_rank": RANK, "chunk_size": CHUNK}
    module = p.upstream("mamba_ssm.modules.mamba3").Mamba3(WIDTH, **options, device="cuda", dtype=torch.bfloat16)
    u = torch.randn(batch, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)  # [B, S, width]
    dout, leaves = torch.randn_like(u), [u, *module.parameters()]
    bounds = None if cuts is None else torch.tensor(cuts, dtype=torch.int32, device="cuda")

    def step():
        out = module(u, cu_seqlens=bounds)
        return [out, *torch.autograd.grad(out, leaves, dout)]

    return step


def host_and_wall(step):
    """Seconds until the last launch returned, and until the GPU was done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    return host, time.perf_counter() - start


def device_time(step, host):
    """Seconds of GPU time: the step is queued behind a sleep that outlasts the ``host``, so the GPU never waits."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for factor in (1.2, 2, 4, 8):
        torch.cuda.synchronize()
        torch.cuda._sleep(int((host + 0.005) * factor * 2e9))  # cycles, at about 2 GHz
        begin.record()
        step()
        end.record()
        queued = not begin.query()  # all was launched while the GPU still slept
        torch.cuda.synchronize()
        if queued:
            return begin.elapsed_time(end) / 1e3
    raise RuntimeError("somewhere in the step the host waits for the GPU")


def resident():
    """MiB of host memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def timed(p, case, step):
    """Medians of 5 (host, wall) and 3 (device) after 2 to warm up; wall clock over device time."""
    for _ in range(2):
        step()
    before = resident()
    with p.unwatched():
        times = [host_and_wall(step) for _ in range(5)]
        kept = resident() - before
        host, wall = (statistics.median(column) for column in zip(*times, strict=True))
        device = statistics.median(device_time(step, host) for _ in range(3))
    p.note(f"{case}: host memory kept by a step", kept / len(times), unit="MiB")
    for name, seconds in (("host", host), ("wall", wall), ("device", device)):
        p.note(f"{case}: {name} time", seconds * 1e3, unit="ms")
    return wall / device


def shares(p, case, step):
    """Where the device time goes, by kind of kernel."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    kinds = {"mamba_mimo_fwd": 0.0, "mamba_mimo_bwd_fwd": 0.0, "mamba_mimo_bwd_bwd": 0.0, "matmul": 0.0, "other": 0.0}
    for event in seen.key_averages():
        matmul = any(word in event.key.casefold() for word in ("gemm", "nvjet", "cutlass", "cublas"))
        kind = next((kind for kind in kinds if kind in event.key), "matmul" if matmul else "other")
        kinds[kind] += event.self_device_time_total / 1e3
    if not kinds["mamba_mimo_fwd"]:
        return p.skip(f"{case}: device time by kernel", "the profiler saw no kernels")
    for kind, milliseconds in kinds.items():
        p.note(f"{case}: device time in {kind}", milliseconds, unit="ms")


def results(p, case, step):
    """The bits of the output and of all gradients, and whether a second step repeats them; returns them."""
    first, again = step(), step()
    changed = sum(not torch.equal(*pair) for pair in zip(first, again, strict=True))
    p.guard(f"{case}: tensors that a second step changes", changed, 0, reference="the first step")
    p.digest(f"{case}: output and all gradients", *first)
    return first


def specialised(p, step, opened):
    """How kernels of fixed shape compare with those that leave it open."""
    fixed = [(one.double(), other.double()) for one, other in zip(step(), opened, strict=True)]
    p.note("tensors that kernels of fixed shape change", sum(not torch.equal(*pair) for pair in fixed))
    error = max(((one - other).norm() / other.norm().clamp_min(1e-30)).item() for one, other in fixed)
    # other code may add and round in another order: a few bf16 roundings (2**-9 each), never a wrong term
    p.guard("fixed shape, worst relative error norm", error, 1e-2, reference="kernels of open shape")


def cuda_lane(p):
    """Results first, then times."""
    os.environ.pop(SPECIALIZE, None)
    jobs = [*itertools.product(FACTORIES, ("", "_varlen"), (None,)), *itertools.product(FACTORIES, ("",), FIXED)]
    p.ranks(len(jobs), partial(compile_kernel, p, jobs))
    from triton.runtime.autotuner import Autotuner

    # the autotuner picks by time and its choice may reorder sums: for the results take the first configuration
    real = Autotuner.run
    Autotuner.run = lambda self, *a, **k: self.fn.run(*a, **{**k, **self.configs[0].all_kwargs()})
    packed = layer(p, 1, [0, 1000, 2500, LENGTH])  # lengths that are no multiples of the chunk
    results(p, "packed", packed)
    step = layer(p, 1)
    opened = results(p, "dense", step)
    with specialising(len(FIXED)):
        specialised(p, step, opened)
    Autotuner.run = real
    for batch in (1, 2, 4):
        ratio = timed(p, f"micro-batch {batch}", layer(p, batch))
        if batch == 1:
            # launches hide behind a busy GPU, but for the share of a slow host
            p.error("wall over device time, micro-batch 1", ratio, 1.6, bug_above=10, reference="device time")
    with p.unwatched():
        wall = statistics.median(host_and_wall(packed)[1] for _ in range(3))
    p.note("packed, 3 sequences: wall time", wall * 1e3, unit="ms", detail="its set-up waits for the GPU by itself")
    with specialising(len(FIXED)):
        for batch in FIXED:
            timed(p, f"fixed shape, micro-batch {batch}", layer(p, batch))
    for batch in FIXED:
        shares(p, f"micro-batch {batch}", layer(p, batch))


def prepare(p):
    """For ``minimal``: on a CPU nothing is compiled, Triton runs interpreted and "cuda" is the CPU."""
    p.namespace()
    if p.lane == "cuda":
        return
    p.triton_interpreter()
    without_compiler()
    public = p.upstream(FOLDER.removesuffix("_"))  # its angles are computed in PTX, which the interpreter has not
    public.angle_dt_fwd = lambda angle, dt, **_: (angle, None)
    launched.kernels = []
    OnCpu().__enter__()


def reproduce(p):
    """By lane."""
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    cpu_lane(p) if p.lane == "cpu" else cuda_lane(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=17, package="mamba_ssm", minimal=minimal, prepare=prepare)
