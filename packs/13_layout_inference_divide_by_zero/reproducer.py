# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.11", "tilelang==0.1.15", "apache-tvm-ffi==0.1.12"]
# ///
"""tilelang's layout inference dies on kernels that read part of a fragment: by dividing by zero, or "Cannot prove".

It inverts a buffer's indices as if they covered the buffer, and splits what is left with ``get_unused_iters``. Where
the splits do not tile the loop, 0.1.7.post2 to 0.1.11 made a leftover of extent 0 and divided by it; every release up
to 0.1.15 stops where no split starts at the expected factor. Neither TMA nor a gemm is needed: the smallest kernel that
the newest one refuses copies 8 values on 4 threads, ``x[i] = a[i // 2, i % 2]``, from an ``a`` one column wider than
what is read. CPU lane: kernels are lowered for sm_90a. CUDA lane: those that compile run, against fp64.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from reproducers import probe


def minimal():
    """Lowers a copy of two of a fragment's three columns; no GPU needed."""
    import tilelang
    import tilelang.language as T

    @T.prim_func
    def main(A: T.Tensor([4, 3], "float32"), X: T.Tensor([8], "float32")):
        with T.Kernel(1, threads=4):
            a = T.alloc_fragment([4, 3], "float32")
            x = T.alloc_fragment([8], "float32")
            T.annotate_layout({x: T.Fragment([8], lambda i: (i // 4 * 2 + i % 2, i // 2 % 2))})
            T.copy(A, a)
            for i in T.Parallel(8):
                x[i] = a[i // 2, i % 2]
            T.copy(x, X)

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        tilelang.lower(main, target=target)


ZERO = "Divide by zero"
PROVE = r"Cannot prove divisible for 1 and \d+"
# the same kernels as later releases refused them, before they were supported (0.1.12, 0.1.13) or until now
LATER = "|can't be written as a single fused IterSum|Loop layout is not injective"
NO_TMA = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}


@dataclass
class Case:
    """One kernel: its signature where it is refused ("" for a neighbour that every release takes), and its answer."""

    name: str
    func: Any
    signature: str
    inputs: list[tuple[int, ...]]  # shapes
    answer: Any  # fp64 inputs -> fp64 output
    configs: Any


def part_of_rows(T, name, signature, width, threads, thread, register):
    """x[i] = a[i // 2, i % 2]: two of the ``width`` columns of a, flattened, in a layout like a gemm's accumulator."""

    @T.prim_func
    def main(A: T.Tensor([4, width], "float32"), X: T.Tensor([8], "float32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_fragment([4, width], "float32")
            x = T.alloc_fragment([8], "float32")
            T.annotate_layout({x: T.Fragment([8], forward_thread_fn=thread, forward_index_fn=register)})
            T.copy(A, a)
            for i in T.Parallel(8):
                x[i] = a[i // 2, i % 2]
            T.copy(x, X)

    return Case(name, main, signature, [(4, width)], lambda a: a[:, :2].flatten(), NO_TMA)


def broadcast(T, name, signature, rows, columns, threads):
    """x[i, j] = 2 d[j], issue #2394."""

    @T.prim_func
    def main(D: T.Tensor([columns], "float32"), X: T.Tensor([rows, columns], "float32")):
        with T.Kernel(1, threads=threads):
            d = T.alloc_fragment([columns], "float32")
            x = T.alloc_fragment([rows, columns], "float32")
            T.copy(D, d)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = d[j] * 2.0
            T.copy(x, X)

    return Case(name, main, signature, [(columns,)], lambda d: 2 * d.expand(rows, columns), NO_TMA)


def ranks_bias(T, name, signature, ranks):
    """x[csr, n] = q[csr, n] + b[csr % R, n]: a bias per rank R on flattened (token, rank) rows."""
    rows, n = 16 * ranks, 64

    @T.prim_func
    def main(Q: T.Tensor([rows, n], "float32"), B: T.Tensor([ranks, n], "float32"), X: T.Tensor([rows, n], "float32")):
        with T.Kernel(1, threads=256):
            q = T.alloc_shared([rows, n], "float32")
            b = T.alloc_fragment([ranks, n], "float32")
            x = T.alloc_fragment([rows, n], "float32")
            T.copy(Q, q)
            T.copy(B, b)
            T.copy(q, x)
            for csr, k in T.Parallel(rows, n):
                x[csr, k] += b[csr % ranks, k]
            T.copy(x, q)
            T.copy(q, X)

    return Case(name, main, signature, [(rows, n), (ranks, n)], lambda q, b: q + b.repeat(16, 1), NO_TMA)


def mamba(T, name, signature, ranks, keep="flat", configs=NO_TMA):
    """Mamba-3 MIMO's backward with its [C, R, R] products flattened: x = K V + sum_r a[csr // R, r R + csr % R].

    ``keep``: a stays a rank-3 fragment, or in shared memory.
    """
    chunk, n, width = 64 // ranks, 64, 64
    rows = chunk * ranks
    shape = [chunk, ranks, ranks] if keep == "rank 3" else [chunk, ranks * ranks]
    alloc = T.alloc_shared if keep == "shared" else T.alloc_fragment

    @T.prim_func
    def main(
        K: T.Tensor([rows, n], "bfloat16"),
        V: T.Tensor([n, width], "bfloat16"),
        A: T.Tensor(shape, "bfloat16"),
        X: T.Tensor([rows, width], "float32"),
    ):
        with T.Kernel(1, threads=256):
            k = T.alloc_shared([rows, n], "bfloat16")
            v = T.alloc_shared([n, width], "bfloat16")
            x = T.alloc_fragment([rows, width], "float32")
            a = alloc(shape, "bfloat16")
            T.copy(K, k)
            T.copy(V, v)
            T.copy(A, a)
            T.gemm(k, v, x, clear_accum=True)
            for csr, p in T.Parallel(rows, width):
                for r in T.serial(ranks):
                    if keep == "rank 3":
                        x[csr, p] += a[csr // ranks, r, csr % ranks]
                    else:
                        x[csr, p] += a[csr // ranks, r * ranks + csr % ranks]
            T.copy(x, X)

    def answer(k, v, a):  # a summed over r [chunk, ranks], by row
        return k @ v + a.view(chunk, ranks, ranks).sum(1).view(rows, 1)

    return Case(name, main, signature, [(rows, n), (n, width), tuple(shape)], answer, configs)


def cases(T):
    """The smallest kernels first, then the forms that they were reduced from; neighbours that must hold last."""
    turns = (
        4,
        lambda i: i // 4 * 2 + i % 2,
        lambda i: i // 2 % 2,
    )  # each thread: two values, two apart
    halves = (2, lambda i: i // 4, lambda i: i % 4)  # 2 threads with 4 values each
    yield part_of_rows(T, "2 of 3 columns, 4 threads", PROVE, 3, *turns)
    yield part_of_rows(T, "2 of 3 columns, 2 threads", ZERO + LATER, 3, *halves)
    yield broadcast(T, "broadcast, 3 columns", ZERO, 4, 3, 4)
    yield broadcast(T, "broadcast, 48 columns (issue #2394)", ZERO, 32, 48, 128)
    yield ranks_bias(T, "bias per rank, R=3", ZERO, 3)
    for ranks in (2, 4):
        yield mamba(T, f"mamba, R={ranks}", ZERO + LATER, ranks)
    yield mamba(T, "mamba, R=4, TMA on", ZERO + LATER, 4, configs={})
    yield mamba(T, "mamba, R=8", PROVE, 8)
    yield part_of_rows(T, "2 of 2 columns, 4 threads", "", 2, *turns)
    yield part_of_rows(T, "2 of 2 columns, 2 threads", "", 2, *halves)
    yield broadcast(T, "broadcast, 4 columns", "", 4, 4, 4)
    yield ranks_bias(T, "bias per rank, R=4", "", 4)
    for ranks in (4, 8):
        yield mamba(T, f"mamba, R={ranks}, rank-3 fragment", "", ranks, "rank 3")
        yield mamba(T, f"mamba, R={ranks}, from shared memory", "", ranks, "shared")


def launch(job, inputs, shape):
    """The kernel's output on a poisoned tensor, as fp64 on the host."""
    out = torch.full(shape, torch.nan, device="cuda")
    job.result()(*inputs, out)
    torch.cuda.synchronize()
    return out.double().cpu()


def reproduce(p):
    """Every kernel is built; on the cuda lane those that compile also run."""
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    tl = p.upstream("tilelang")
    tl.disable_cache()  # what is claimed must happen in this run
    pool, target = ThreadPoolExecutor(8), tl.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    found, jobs = list(cases(tl.language)), {}
    if p.lane == "cuda":  # nvcc takes seconds a kernel
        jobs = {c.name: pool.submit(tl.compile, c.func, target=target, pass_configs=c.configs) for c in found}
    generator = torch.Generator().manual_seed(p.seed)
    for case in found:
        dtypes = [str(case.func.buffer_map[param].dtype) for param in case.func.params]
        inputs = [
            torch.randn(shape, generator=generator).to(getattr(torch, dtype))
            for shape, dtype in zip(case.inputs, dtypes, strict=False)
        ]
        want = case.answer(*(x.double() for x in inputs))
        if p.lane == "cpu":
            call = partial(p.lower, case.func, **case.configs)
        else:
            call = partial(launch, jobs[case.name], [x.cuda() for x in inputs], want.shape)
        crash = probe.Signature("InternalError", case.signature, "tilelang/engine/lower.py")
        got = p.attempt(case.name, call, crash) if case.signature else p.guard_attempt(case.name, call)
        if got is None or p.lane == "cpu":
            continue
        error = ((got - want).norm() / want.norm()).item()
        # at most 64 products and 8 terms summed in fp32; a misplaced column is off by order 1
        record = partial(p.error, bug_above=1e-2) if case.signature else p.guard
        record(f"{case.name}: error", error, 1e-5, reference="fp64")


if __name__ == "__main__":
    probe.main(reproduce, pack=13, package="tilelang", minimal=minimal)
