# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.11", "triton==3.6.0", "numpy", "einops", "tilelang==0.1.15", "apache-tvm-ffi==0.1.12",
# ]
# ///
"""tilelang 0.1.13 to 0.1.15 refuse reductions that 0.1.12 compiles, Mamba-3's MIMO backward among them.

``CheckThreadOwnedStepsProjectable`` asks the analyzer to prove that a register index does not depend on those bits of
the reduced coordinate that belong to the thread, and takes "not proved" for "depends". The two indices that it could
not prove equal are in its message: here they are evaluated at every coordinate, and they are equal. The smallest kernel
sums 16 values on 4 threads; a gemm's accumulator viewed as [tokens, ranks x channels] does it without any annotation.
CPU lane: lowering for sm_90a, of mamba's own kernel too. CUDA lane: those that compile run, against fp64.

Mamba's own kernel needs a checkout:
``git clone -b v2.3.2.post1 https://github.com/state-spaces/mamba``, then ``--needs mamba``.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from reproducers import probe


def minimal():
    """Lowers the sum of 16 values that lie on 4 threads; no GPU needed."""
    import tilelang
    import tilelang.language as T

    layout = T.Fragment([1, 16], lambda i, j: (j % 2 + j // 4 % 2 * 2, j // 2 % 2 + j // 8 * 2))

    @T.prim_func
    def main(X: T.Tensor([1, 16], "float32"), Y: T.Tensor([1], "float32")):
        with T.Kernel(1, threads=4):
            x = T.alloc_fragment([1, 16], "float32")
            y = T.alloc_fragment([1], "float32")
            T.annotate_layout({x: layout})
            T.copy(X, x)
            T.reduce_sum(x, y, dim=-1)
            T.copy(y, Y)

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        tilelang.lower(main, target=target)


MESSAGE = "ReduceOp cannot lower a layout where a source index depends on a thread-owned reduce segment"
INDICES = re.compile(r"[: ]src_index=(.*), projected_src_index=(.*), reduce_var=(\w+), projected_reduce_var")
NO_TMA = {"tl.disable_tma_lower": True, "tl.disable_warp_specialized": True}  # as mamba sets them
TOKENS, RANKS, N = 16, 4, 64
ROWS = TOKENS * RANKS


def total(T, threads, thread, register):
    """[1, 16] -> [1]: the sum of 16 values that lie in registers as ``thread`` and ``register`` say."""

    @T.prim_func
    def main(X: T.Tensor([1, 16], "float32"), Y: T.Tensor([1], "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment([1, 16], "float32")
            y = T.alloc_fragment([1], "float32")
            layout = T.Fragment([1, 16], forward_thread_fn=thread, forward_index_fn=register)
            T.annotate_layout({x: layout})
            T.copy(X, x)
            T.reduce_sum(x, y, dim=-1)
            T.copy(y, Y)

    return main


def tokens(T, threads, form):
    """[ROWS, N] twice -> [TOKENS]: sums of A B^T over a token's rows and all columns, as in mamba's backward."""

    @T.prim_func
    def main(A: T.Tensor([ROWS, N], "bfloat16"), B: T.Tensor([N, N], "bfloat16"), Y: T.Tensor([TOKENS], "float32")):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared([ROWS, N], "bfloat16")
            b = T.alloc_shared([N, N], "bfloat16")
            x = T.alloc_fragment([ROWS, N], "float32")
            y = T.alloc_fragment([TOKENS], "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, x, transpose_B=True, clear_accum=True)
            if form == "view":
                T.reduce_sum(T.view(x, shape=[TOKENS, RANKS * N]), y, dim=-1)
            else:
                rows = T.alloc_fragment([ROWS], "float32")
                T.reduce_sum(x, rows, dim=-1)
                T.reduce_sum(T.view(rows, shape=[TOKENS, RANKS]), y, dim=-1)
            T.copy(y, Y)

    return main


def unequal(message, extent):
    """Of how many coordinates the two register indices in the refusal differ; the reduced one runs to ``extent``."""
    index, projected, reduced = INDICES.search(message).groups()
    names = {reduced: torch.arange(extent)[:, None]}
    for name in set(re.findall(r"[A-Za-z_]\w*", index + projected)) - {reduced}:
        names[name] = torch.arange(256)  # a row; more than any kernel here has
    one, other = (eval(text, {"__builtins__": {}}, names) for text in (index, projected))  # ints, + - * // %
    return int((one != other).sum())


def attempt(p, name, call, extent):
    """Bug check; where the kernel is refused, a guard that the refusal is false."""
    said = []

    def heard():
        try:
            return call()
        except Exception as error:
            said.append(str(error))
            raise

    result = p.attempt(name, heard, probe.Signature("InternalError", MESSAGE, "tilelang/engine/lower.py"))
    if said and INDICES.search(said[0]):
        p.guard(
            f"{name}: coordinates at which the two indices differ",
            unequal(said[0], extent),
            0,
            reference="every coordinate, by the message's own expressions",
        )
    return result


def mamba_backward(p):
    """Mamba-3's own bwd_bwd factory for a small dense problem: (TIR, its pass configs)."""
    p.namespace("mamba_ssm")  # its __init__ wants compiled extensions that nothing here uses
    factory = p.upstream("mamba_ssm.ops.tilelang.mamba3.mamba3_mimo_bwd").mamba_mimo_bwd_bwd
    size = {"B": 1, "S": 64, "H": 4, "G": 1, "N": N, "P": 64, "R": RANKS, "chunk_size": TOKENS, "rotary_dim_divisor": 4}
    options = {"hasZ": False, "hasD": False, "reduceO": False, "dtype": "bfloat16"}
    configs = {str(getattr(key, "value", key)): value for key, value in factory.pass_configs.items()}
    return factory.get_tir(**size, **options), configs


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
    T, pool, target = tl.language, ThreadPoolExecutor(8), tl.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    apart = (4, lambda i, j: j % 2 + j // 4 % 2 * 2, lambda i, j: j // 2 % 2 + j // 8 * 2)  # bits 0, 2 are the thread's
    close = (4, lambda i, j: j % 4, lambda i, j: j // 4)
    cases = [  # name, kernel, extent of the reduced coordinate, or 0 for a neighbour that every release takes
        ("16 values on 4 threads, apart", total(T, *apart), 16),
        ("gemm accumulator, 256 threads, viewed", tokens(T, 256, "view"), RANKS * N),
        ("16 values on 4 threads, close", total(T, *close), 0),
        ("gemm accumulator, 128 threads, viewed", tokens(T, 128, "view"), 0),
        ("gemm accumulator, 256 threads, in two steps", tokens(T, 256, "two steps"), 0),
    ]
    jobs = {}
    if p.lane == "cuda":  # nvcc takes seconds a kernel
        jobs = {name: pool.submit(tl.compile, f, target=target, pass_configs=NO_TMA) for name, f, _ in cases}
    generator = torch.Generator().manual_seed(p.seed)
    a, b = (torch.randn(ROWS, N, generator=generator).bfloat16() for _ in range(2))
    x = torch.randn(1, 16, generator=generator)
    sums = (a.double() @ b.double().T).view(TOKENS, -1).sum(1)  # [TOKENS]
    for name, func, extent in cases:
        inputs, want = ([a, b], sums) if "gemm" in name else ([x], x.double().sum(1))
        if p.lane == "cpu":
            call = partial(p.lower, func, **NO_TMA)
        else:
            call = partial(launch, jobs[name], [t.cuda() for t in inputs], want.shape)
        got = attempt(p, name, call, extent) if extent else p.guard_attempt(name, call)
        if got is not None and p.lane == "cuda":
            error = ((got - want).norm() / want.norm()).item()
            # 256 sums of 64 products in fp32, of either sign: 1e-6 of their size; a lost segment is of order 1
            record = partial(p.error, bug_above=1e-2) if extent else p.guard
            record(f"{name}: error", error, 1e-4, reference="fp64")
    if p.lane == "cuda":
        return p.skip(
            "Mamba-3 MIMO bwd_bwd", "the cpu lane lowers it; pack 05 runs it with the release that mamba pins"
        )
    func, configs = mamba_backward(p)
    attempt(p, "Mamba-3 MIMO bwd_bwd", partial(p.lower, func, **configs), RANKS * N)
    return None


if __name__ == "__main__":
    probe.main(reproduce, pack=6, package="tilelang", minimal=minimal)
