# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.11", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9"]
# ///
"""tilelang up to 0.1.8 cannot lower a bulk copy of a rank-3 shared-memory tile that has a layout of its own.

``LowerBulkCopy`` looks for a TMA swizzle and asserts ``shared_layout->InputDim() == 2``, where it should fall back as
it does for any other layout that it does not know. It takes no annotation to get there: a ``T.view`` of a gemm operand
inherits the operand's swizzle, and that is how Mamba-3's MIMO kernels load Q and K. CPU lane: kernels are lowered for
sm_90a. CUDA lane: they run, and what crossed shared memory is compared with what went in.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from reproducers import probe


def minimal():
    """Lowers a load of rank 3 into a view of a gemm's operand; no GPU needed."""
    import tilelang
    import tilelang.language as T

    @T.prim_func
    def main(X: T.Tensor([16, 4, 64], "bfloat16"), Y: T.Tensor([64, 64], "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared([64, 64], "bfloat16")
            y = T.alloc_fragment([64, 64], "float32")
            T.copy(X, T.view(x, shape=[16, 4, 64]))
            T.gemm(x, x, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y)

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        tilelang.lower(main, target=target)


B, CHUNKS, C, R, N = 2, 4, 16, 4, 64  # batch; chunks of C tokens with R ranks of N channels each
ASSERTED = r"shared_layout->InputDim\(\) == 2.*Cannot detect TMA layout"
NO_TMA = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}  # mamba's way round
LAYOUTS = {  # of a [C, R, N] tile; the last two are neighbours that work in every release
    "identity": lambda i, j, k: [i, j, k],
    "XOR-swizzled": lambda i, j, k: [i, j, (k // 8 ^ (i * R + j) % 8) * 8 + k % 8],
    "padded": lambda i, j, k: (i * R + j) * (N + 8) + k,
    "linear": lambda i, j, k: (i * R + j) * N + k,
    "no": None,
}


def through(tl, way, index):
    """[B, S, R, N] -> the same, through shared memory; one way in bulk, the other elementwise: they must agree."""
    T = tl.language

    @T.prim_func
    def main(X: T.Tensor([B, CHUNKS * C, R, N], "bfloat16"), Y: T.Tensor([B, CHUNKS * C, R, N], "bfloat16")):
        with T.Kernel(CHUNKS, B, threads=128) as (bx, by):
            s = T.alloc_shared([C, R, N], "bfloat16")
            if index is not None:
                T.annotate_layout({s: tl.layout.Layout([C, R, N], index)})
            if way == "load":
                T.copy(X[by, bx * C : (bx + 1) * C, :, :], s)
                for i, j, k in T.Parallel(C, R, N):
                    Y[by, bx * C + i, j, k] = s[i, j, k]
            else:
                for i, j, k in T.Parallel(C, R, N):
                    s[i, j, k] = X[by, bx * C + i, j, k]
                T.copy(s, Y[by, bx * C : (bx + 1) * C, :, :])

    return main


def scores(tl, form):
    """[B, S, R, N] twice -> [B, CHUNKS, C R, C R]: Q K^T per chunk, loaded as mamba does or without its rank-3 view."""
    T = tl.language
    shape = [B, CHUNKS * C, R, N] if form == "view" else [B, CHUNKS * C * R, N]

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "bfloat16"),
        K: T.Tensor(shape, "bfloat16"),
        Y: T.Tensor([B, CHUNKS, C * R, C * R], "float32"),
    ):
        with T.Kernel(CHUNKS, B, threads=128) as (bx, by):
            q = T.alloc_shared([C * R, N], "bfloat16")
            k = T.alloc_shared([C * R, N], "bfloat16")
            y = T.alloc_fragment([C * R, C * R], "float32")
            if form == "view":
                T.copy(Q[by, bx * C : (bx + 1) * C, :, :], T.view(q, shape=[C, R, N]))
                T.copy(K[by, bx * C : (bx + 1) * C, :, :], T.view(k, shape=[C, R, N]))
            else:
                T.copy(Q[by, bx * C * R : (bx + 1) * C * R, :], q)
                T.copy(K[by, bx * C * R : (bx + 1) * C * R, :], k)
            T.gemm(q, k, y, transpose_B=True, clear_accum=True)
            T.copy(y, Y[by, bx, :, :])

    return main


def relative(measured, reference):
    """Relative error norm in fp64; NaN where the kernel left its poisoned output unwritten."""
    return ((measured.double() - reference.double()).norm() / reference.double().norm()).item()


class Lane:
    """Builds kernels: to CUDA source on the cpu lane, to something that can be called on the cuda lane."""

    def __init__(self, p):
        self.p, self.tl, self.pool = p, p.upstream("tilelang"), ThreadPoolExecutor(8)
        self.tl.disable_cache()  # what is claimed must happen in this run

    def start(self, func, configs):
        """On the cuda lane, compile in the background: nvcc takes seconds a kernel."""
        target = self.tl.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
        return (
            self.pool.submit(self.tl.compile, func, target=target, pass_configs=configs)
            if self.p.lane == "cuda"
            else None
        )

    def run(self, func, configs, job, *inputs):
        """CUDA source (cpu lane) or the output [like the last parameter] for ``inputs`` (cuda lane)."""
        if job is None:
            return self.p.lower(func, **configs)
        kernel = job.result()
        shape = [int(n) for n in func.buffer_map[func.params[-1]].shape]
        dtype = getattr(torch, str(func.buffer_map[func.params[-1]].dtype))
        out = torch.full(shape, torch.nan, dtype=dtype, device="cuda")
        kernel(*inputs, out)
        torch.cuda.synchronize()
        return out


def cases(tl):
    """(name, function, pass configs, works in every release)."""
    for way in ("load", "store"):
        for layout, index in LAYOUTS.items():
            yield f"{layout} layout, bulk {way}", through(tl, way, index), {}, layout in ("linear", "no")
    yield "view of a gemm operand", scores(tl, "view"), {}, False
    yield "flat gemm operand", scores(tl, "flat"), {}, True
    for way in ("load", "store"):
        yield f"XOR-swizzled layout, {way}, TMA off", through(tl, way, LAYOUTS["XOR-swizzled"]), NO_TMA, True
    yield "view of a gemm operand, TMA off", scores(tl, "view"), NO_TMA, True


def reproduce(p):
    """Every case is built; on the cuda lane it runs as well."""
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("the cuda lane needs a GPU")
    lane = Lane(p)
    jobs = [(*case, lane.start(case[1], case[2])) for case in cases(lane.tl)]
    generator = torch.Generator().manual_seed(p.seed)
    q, k = (torch.randn(B, CHUNKS * C, R, N, generator=generator).bfloat16() for _ in range(2))  # [B, S, R, N]
    rows = [x.double().view(B, CHUNKS, C * R, N) for x in (q, k)]
    exact = torch.einsum("bcin,bcjn->bcij", *rows)  # [B, CHUNKS, C R, C R]
    built, crash = {}, probe.Signature("InternalError", ASSERTED, "tilelang/engine/lower.py")
    for name, func, configs, guard, job in jobs:
        inputs = [x.flatten(1, 2) if "flat" in name else x for x in ((q, k) if "gemm" in name else (q,))]
        call = partial(lane.run, func, configs, job, *(x.to("cuda") for x in inputs if job))
        out = built[name] = p.guard_attempt(name, call) if guard else p.attempt(name, call, crash)
        if out is None or job is None:
            continue
        # a copy changes nothing; a product sums 64 terms in fp32. A tile read with another swizzle is off by order 1
        limit, want = (1e-5, exact) if "gemm" in name else (0.0, q)
        error = relative(out.cpu(), want)
        record = p.guard if guard else partial(p.error, bug_above=0.1)
        record(f"{name}: error", error, limit, reference="fp64" if "gemm" in name else "what went in")
    view, flat = (built[f"{form} gemm operand"] for form in ("view of a", "flat"))
    if p.lane == "cpu" and view and flat:  # same addresses on both sides of the gemm, so no silent change of swizzle
        p.error(
            "view of a gemm operand: CUDA source is not the flat form's", view != flat, 0, reference="the same bytes"
        )


if __name__ == "__main__":
    probe.main(reproduce, pack=8, package="tilelang", minimal=minimal)
