# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy<2.4", "einops", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
#     "mamba-ssm==2.3.2.post1",
# ]
# ///
"""Mamba-3 MIMO traces each of its TileLang kernels anew at every call and keeps every trace.

The wrappers pass fresh ``T.dynamic`` symbols to their ``tilelang.jit`` factories, whose caches compare symbols by
identity. CPU lane: the real wrappers, factories and tracing; compilation and launch are stood in for, and counted.
CUDA lane: a real ``Mamba3`` layer at the training width, wall clock against device time.
"""

import contextlib
import os
import statistics
import threading
import time
import weakref
from functools import partial

import torch
from torch.overrides import TorchFunctionMode

from reproducers import probe

FOLDER = "mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_"
SPECIALIZE = "MAMBA3_MIMO_SPECIALIZE"

# ---- CPU lane: the real wrappers, factories and traces; no compiler and no launch ----

WRITTEN = ("O", "DMIMO_O", "DZ", "DMIMO_Z", "DK", "DV", "DMIMO_V", "DQ", "DD")  # by the kernels, returned by the wrappers
launched = threading.local()  # .kernels: those of this thread, in order


class OnCpu(TorchFunctionMode):
    """The forward wrappers allocate on "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **{**(kwargs or {}), **({"device": "cpu"} if (kwargs or {}).get("device") == "cuda" else {})})


class Traced:
    """Stands in for the compiled kernel of a trace; a launch fills what the real one writes with seeded numbers."""

    def __init__(self, func, **_):
        self.text = func.script(show_meta=True).encode()
        self.names = [func.buffer_map[param].name for param in func.params]

    def __call__(self, *tensors):
        generator = torch.Generator().manual_seed(len(self.text))
        for name, tensor in zip(self.names, tensors, strict=True):
            if name in WRITTEN and tensor is not None:
                tensor.normal_(generator=generator)
        launched.kernels.append(self)


class Asked:
    """Stands in for a compiled kernel where only the look-up is tested; knows the arguments it was made of."""

    def __init__(self, arguments):
        self.arguments = arguments

    def __call__(self, *tensors):
        launched.kernels.append(self)

    def unlike(self, **wanted):
        """How many arguments are neither as wanted nor left open."""
        return sum(self.arguments[n] != v for n, v in wanted.items() if isinstance(self.arguments[n], (int, str)))


def packing(module, kind, length):
    """(upstream's wrapper, the bounds of two sequences where it takes them)."""
    dense = getattr(module, "mamba_mimo_" + kind, None)
    if not module.__name__.endswith("varlen"):
        return dense, {}
    bounds = torch.tensor([0, length // 2, length], dtype=torch.int32)
    return getattr(module, f"mamba_mimo_{kind}_varlen"), {"cu_seqlens": bounds}


def forward(module, batch=1, length=16, heads=2, *, rank=2, n=16, width=8, chunk=8, dtype=torch.float32, rotary=4,
            gate=True, skip=True, project=True, state=True, device="cpu", **options):  # fmt: skip
    """Upstream's forward wrapper on tensors that no kernel reads: (output, kernel, arguments unlike the call's)."""
    function, packed = packing(module, "forward", length)
    empty = partial(torch.empty, device=device)
    q, v = empty(batch, length, rank, 1, n, dtype=dtype), empty(batch, length, heads, width, dtype=dtype)
    z, d, mimo_o = v if gate else None, empty(heads) if skip else None, empty(heads, rank, width) if project else None
    launched.kernels = []
    with OnCpu():
        args = (q, q, v, None, None, None, mimo_o, z, d, *(None,) * 7, chunk, rotary, dtype)
        output, *_ = function(*args, **packed, return_state=state, **options)
    (kernel,) = launched.kernels
    shape = {"B": batch, "S": length, "H": heads, "G": 1, **({"NS": 2} if packed else {})}
    flags = {"hasZ": gate, "hasD": skip, "reduceO": project, "return_final_state": state}
    static = {"N": n, "P": width, "R": rank, "chunk_size": chunk, "rotary_dim_divisor": rotary, "dtype": str(dtype)[6:]}
    return output, kernel, getattr(kernel, "unlike", dict)(**shape, **flags, **static, **options)


def backward(module, seed, batch=1, length=16, heads=2, *, rank=2, n=16, width=8, chunk=8, dtype=torch.float32):
    """Upstream's combined backward on small random tensors: (gradients, kernels, arguments unlike the call's)."""
    function, packed = packing(module, "bwd_combined", length)
    chunks, generator = length // chunk + 2 * len(packed), torch.Generator().manual_seed(seed)

    def random(*shape, dtype=torch.float32):
        return torch.randn(shape, generator=generator).to(dtype)

    q, k = (random(batch, length, rank, 1, n, dtype=dtype) for _ in range(2))  # [B, S, R, G, N]
    v, z, dout = (random(batch, length, heads, width, dtype=dtype) for _ in range(3))  # [B, S, H, P]
    q_bias, k_bias = random(heads, rank, n), random(heads, rank, n)  # [H, R, N]
    mimo_v, mimo_o, mimo_z = (random(heads, rank, width) for _ in range(3))  # [H, R, P]
    angles, segsum = random(batch, length, heads, n // 4), -random(batch, heads, chunks, chunk, chunk).abs()
    decay, decay_rev, dt, trap = (-random(batch, heads, length).abs() for _ in range(4))  # [B, H, S]
    args = (dout, q, k, v, q_bias, k_bias, mimo_v, mimo_o, z, mimo_z, angles, decay, decay_rev, -dt, trap)
    launched.kernels = []
    gradients = function(*args, random(heads), segsum, chunk, 4, dtype, **packed)
    wanted = {"B": batch, "S": length, "H": heads, "N": n, "P": width, "R": rank, "chunk_size": chunk}
    unlike = (getattr(kernel, "unlike", dict)(**wanted, dtype=str(dtype)[6:]) for kernel in launched.kernels)
    return gradients, launched.kernels, unlike


def traces(p, modules):
    """Two calls of every wrapper with different batch, length and heads: the second needs no new trace."""
    import tilelang.cache.kernel_cache as cache
    from tilelang.jit import JITImpl

    os.environ["TILELANG_TARGET"] = "cuda -arch=sm_90a"  # "auto" asks for nvcc
    cache.JITKernel = Traced
    cache.KernelCache._load_kernel_from_disk = lambda *_, **__: None
    cache.KernelCache._save_kernel_to_disk = lambda *_, **__: None
    real, traced = JITImpl.get_tir, []
    JITImpl.get_tir = lambda factory, *a, **k: (traced.append(id(factory)), real(factory, *a, **k))[1]
    for layout, (fwd, bwd) in modules.items():
        factories = {"fwd": fwd.mamba_mimo_fwd, "bwd_fwd": bwd.mamba_mimo_bwd_fwd, "bwd_bwd": bwd.mamba_mimo_bwd_bwd}
        kept = []
        for number, shape in enumerate([(1, 16, 2), (2 if layout == "dense" else 1, 32, 4)], 1):
            traced.clear()
            start = time.perf_counter()
            output, kernel, _ = forward(fwd, *shape)
            gradients, kernels, _ = backward(bwd, p.seed, *shape)
            p.note(f"{layout} call {number}: host time", (time.perf_counter() - start) * 1e3, unit="ms")
            p.digest(f"{layout} call {number}: results", output, *gradients)
            p.digest(f"{layout} call {number}: kernels launched", *(k.text for k in (kernel, *kernels)))
            kept.append(sum(len(f._kernel_cache) + len(f.func.p1_cache) for f in factories.values()))
        for name, factory in factories.items():
            # batch, length and heads are open in the first call's kernel
            count = traced.count(id(factory))
            p.error(f"{layout} {name}: traces in call 2", count, 0, bug_above=1, reference="call 1's kernel serves it")
        p.error(f"{layout}: traces and kernels kept by call 2", kept[1] - kept[0], 0, bug_above=6, reference="none new")
    JITImpl.get_tir = real


class Compiler:
    """Stands in for ``JITImpl.compile``: no trace; it knows what was asked, how often, and what is still held."""

    def __init__(self):
        self.built, self.held, self.meanwhile = [], weakref.WeakSet(), lambda: None

    def compile(self, factory, *args, **kwargs):
        bound = factory.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        self.built.append(bound.arguments.get("num_stages"))
        self.meanwhile()
        kernel = Asked(dict(bound.arguments))
        self.held.add(kernel)
        return kernel

    def during(self, meanwhile, calls):
        """Kernels built by ``calls``, each in a thread of its own; ``meanwhile`` runs in every compilation."""
        self.built.clear()
        self.meanwhile = meanwhile
        failed = []

        def guarded(call):
            try:
                call()
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.meanwhile = lambda: None
        if failed:
            raise failed[0]
        return len(self.built)


def lookups(p, modules):
    """What the look-up must tell apart, and that it is shared, bounded and safe in threads."""
    from tilelang.jit import JITImpl

    compiler = Compiler()
    JITImpl.compile = lambda factory, *a, **k: compiler.compile(factory, *a, **k)
    unlike, half = [], {"dtype": torch.bfloat16}
    changes = [{"rank": 4}, {"n": 32}, {"width": 16}, {"chunk": 16}, half, {"heads": 4}, {"length": 32}]
    flags = [{name: False} for name in ("gate", "skip", "project", "state")]
    flags += [{"rotary": 2}, {"threads": 64}, {"num_stages": 1}, {"batch": 3}]
    for fwd, bwd in modules.values():
        for change in [{}, *changes, *flags, {}]:
            unlike.append(forward(fwd, **change)[2])
        for change in ({}, {"chunk": 16}, half):
            unlike.extend(backward(bwd, p.seed, **change)[2])
    p.guard(f"{len(unlike)} launches: arguments unlike the call's", sum(unlike), 0, reference="the call's own arguments")
    fwd = modules["dense"][0]
    places = [torch.device("cpu"), torch.device("meta", 0), torch.device("meta", 1)]
    apart = {id(kernel): kernel for kernel in [forward(fwd, device=place)[1] for place in places]}
    p.guard("devices that share a kernel", len(places) - len(apart), 0, reference="a kernel for each device")

    def configuration(number):
        return partial(forward, fwd, num_stages=number)

    # a compilation lasts long enough for all eight threads to ask meanwhile
    threads = [configuration(10 + number % 4) for number in range(32)]
    built = compiler.during(partial(time.sleep, 0.2), threads)
    p.error("kernels built by 32 threads that ask for 4", built, 4, bug_above=32, reference="one build each")
    together = threading.Barrier(4, timeout=20)
    apart = partial(compiler.during, together.wait, [configuration(20 + number) for number in range(4)])
    p.guard_attempt("4 threads build 4 kernels at the same time", apart)

    def out_of_memory():
        raise MemoryError("the compiler ran out of memory")

    with contextlib.suppress(MemoryError):
        compiler.during(out_of_memory, [configuration(30)])
    p.guard_attempt("a build that failed is tried again", partial(compiler.during, lambda: None, [configuration(30)]))
    compiler.built.clear()
    for number in range(100, 1100):
        configuration(number)()
        if number % 10 == 0:
            configuration(7)()
    p.error("kernels held after 1000 configurations", len(compiler.held), 256, bug_above=1000, reference="a bound")
    p.error("builds of one used 100 times between", compiler.built.count(7), 1, bug_above=100, reference="one build")
    os.environ[SPECIALIZE] = "2"
    compiler.built.clear()
    kernels = [forward(fwd, batch=1 + number % 50, num_stages=8) for number in range(100)]
    p.error("kernels built for 50 shapes, 2 specialised", len(compiler.built), 3, bug_above=50, reference="2 and 1 open")
    p.guard("arguments unlike the call's there", sum(k[2] for k in kernels), 0, reference="the call's own arguments")
    p.note("of those, for one shape only", len({id(k[1]) for k in kernels if isinstance(k[1].arguments["B"], int)}))
    del os.environ[SPECIALIZE]


def cpu_lane(p):
    """Dense and packed wrappers."""
    p.triton_interpreter()
    modules = {"dense": [p.upstream(f"{FOLDER}{kind}") for kind in ("fwd", "bwd")]}
    modules["varlen"] = [p.upstream(f"{FOLDER}{kind}_varlen") for kind in ("fwd", "bwd")]
    traces(p, modules)
    lookups(p, modules)


def reproduce(p):
    """By lane."""
    p.namespace()  # the package's __init__ imports compiled extensions that this code does not use
    cpu_lane(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=17, package="mamba_ssm")
