# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9"]
# ///
"""Keeping P and dP of Megatron-Core's sparse-MLA backward in fp32 shared memory, as was told, does not compile.

The kernel rounds the probabilities P and their gradient dP to bf16 before five of its products. Allocating the two
tiles in fp32 leaves those products with one fp32 and one bf16 operand, which tilelang refuses. What the rounding costs
is measured against fp64: on the real kernel where there is a GPU, and by emulating its roundings everywhere.
"""

import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """P and dP tiles in fp32 instead of bf16: tilelang refuses the kernel's products. Needs no GPU."""
    import re
    import tempfile
    from pathlib import Path

    import tilelang
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_sparse_mla_bwd

    source = Path(tilelang_sparse_mla_bwd.__file__).read_text()
    source = re.sub(r"(P_shared_cast = T.alloc_shared\(.*, )dtype\)", r"\1accum_dtype)", source)
    file = Path(tempfile.mkdtemp()) / "changed.py"  # tilelang reads a kernel's source from its file
    file.write_text(source)
    space = {"__name__": "changed", "__package__": tilelang_sparse_mla_bwd.__package__}
    exec(compile(source, str(file), "exec"), space)
    kernel = space["bwd"].get_tir(H=16, D=64, D_tail=64, topk=64, sm_scale=0.1)
    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        tilelang.lower(kernel, target=target)


Rounding = Callable[[Tensor], Tensor]
OPS = "megatron.core.transformer.experimental_attention_variant.ops."
D, TAIL, HEADS = 512, 64, 16  # the channels that the release serves, its smallest head count
TILES = ("P_shared_cast", "dP_shared_cast")
GAIN = 2.0  # the least that would pay for one or two more products each of the kernel's: half of the error
WORST = 4.0  # P, dP, result and, inside delta, the forward's P and output: five roundings, more where delta cancels


def rebuilt(module: Any, folder: Path, change: Callable[[str], str]) -> Any:
    """Upstream's own ``bwd`` builder, from its file's text after ``change``."""
    source = change(Path(module.__file__).read_text())
    path = folder / "rebuilt.py"  # tilelang reads a kernel's text from its file
    path.write_text(source)
    space = {"__name__": "rebuilt", "__package__": module.__package__, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), space)
    return space["bwd"]


def as_told(source: str) -> str:
    """The change as told: both tiles allocated in the accumulators' dtype."""
    for tile in TILES:
        source, count = re.subn(rf"(\b{tile} = T\.alloc_shared\(\[block_H, BS\], )dtype\)", r"\1accum_dtype)", source)
        if count != 1:
            raise RuntimeError(f"{count} allocations of {tile} in upstream's file instead of 1")
    return source


def check_change(p: probe.Probe, module: Any) -> None:
    """The kernel lowers as it is, and does not with the change."""
    small = {"H": 16, "D": 64, "D_tail": 64, "topk": 64, "sm_scale": 0.1}
    sizes = {"64 + 64": small, f"{D} + {TAIL}": {**small, "D": D, "D_tail": TAIL}}
    options = {str(getattr(key, "value", key)): value for key, value in module.bwd.pass_configs.items()}
    refused = probe.Signature("AssertionError", "A and B must have the same dtype", "tilelang/tileop/gemm/gemm_base.py")
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        control = rebuilt(module, Path(scratch), lambda source: source).get_tir(**small)
        text = control.script()
        p.guard(
            "P and dP tiles that are not bf16 in the kernel's TIR",
            sum(re.search(rf'\b{tile} = T\.\w+\(\([^)]*\), "bfloat16"', text) is None for tile in TILES),
            0,
            reference="both",
        )
        p.guard(
            "TIR of the rebuilt text differs",
            int(module.bwd.get_tir(**small).script() != text),
            0,
            reference="upstream's own builder",
        )
        p.guard_attempt("the kernel as released lowers", lambda: p.lower(control, **options))
    with tempfile.TemporaryDirectory(prefix="patchlane-") as scratch:
        told = rebuilt(module, Path(scratch), as_told)
        for name, size in sizes.items():
            p.attempt(
                f"the change as told lowers at {name} channels",
                lambda size=size: p.lower(told.get_tir(**size), **options),
                refused,
            )


def draw(s: int, topk: int, sharp: float, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """bf16 q [s, h, d], kv [s, d], do [s, h, dv] and distinct causal indices [s, topk], -1 where there are fewer."""
    q, kv, do = (torch.randn(size, device=device) for size in ((s, HEADS, D + TAIL), (s, D + TAIL), (s, HEADS, D)))
    chosen = torch.empty(s, topk, dtype=torch.int32, device=device)
    for row in range(0, s, 512):  # a block of rows at a time: s x s noise would be large
        last = torch.arange(row, min(row + 512, s), device=device)[:, None]
        noise = torch.rand(len(last), s, device=device).masked_fill(torch.arange(s, device=device) > last, -1)
        best = noise.topk(topk)
        chosen[row : row + 512] = best.indices.where(best.values >= 0, -1)
    return (sharp * q).bfloat16(), kv.bfloat16(), do.bfloat16(), chosen


def half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).double()


def split(x: Tensor) -> Tensor:
    """Two bf16 operands in place of one: what twice the products would give."""
    return half(x) + half(x - half(x))


def keep(x: Tensor) -> Tensor:
    return x


def gradients(
    q: Tensor, kv: Tensor, do: Tensor, chosen: Tensor, tiles: Rounding = keep, output: Rounding = keep
) -> tuple[Tensor, Tensor]:
    """dq [s, h, d], dkv [s, d] in fp64, but for the rounding of P and dP and of the forward inside delta."""
    scale, dq = (D + TAIL) ** -0.5, torch.empty(q.shape, dtype=torch.float64, device=q.device)
    dkv = torch.zeros(kv.shape, dtype=torch.float64, device=q.device)
    for row in range(0, len(q), 128):
        at = chosen[row : row + 128].long()  # [r, k]
        keys, q64, do64 = kv.double()[at.clamp(min=0)], q[row : row + 128].double(), do[row : row + 128].double()
        score = (torch.einsum("rhd,rkd->rhk", q64, keys) * scale).masked_fill((at < 0)[:, None], -torch.inf)
        prob = score.softmax(-1)  # every row has a key: its own
        out = torch.einsum("rhk,rkd->rhd", output(prob), keys[..., :D])  # the forward rounds its P as well
        delta = (output(out) * do64).sum(-1, keepdim=True)
        grad = prob * (torch.einsum("rhd,rkd->rhk", do64, keys[..., :D]) - delta) * scale
        prob, grad = tiles(prob), tiles(grad)
        dq[row : row + 128] = torch.einsum("rhk,rkd->rhd", grad, keys)
        part = torch.einsum("rhk,rhd->rkd", grad, q64)  # [r, k, d]
        part[..., :D] += torch.einsum("rhk,rhd->rkd", prob, do64)
        dkv.index_add_(0, at.clamp(min=0).flatten(), part.flatten(0, 1))  # 0 is added for index -1
    return dq, dkv


def error(value: Tensor, true: Tensor) -> float:
    return ((value.double() - true).norm() / true.norm()).item()


def run_kernel(p: probe.Probe, q: Tensor, kv: Tensor, do: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """dq, dkv of upstream's real kernels, as its autograd function calls them."""
    mla = p.upstream(OPS + "sparse_mla")
    q, kv = q[None].requires_grad_(), kv[None, :, None].requires_grad_()
    out, _ = mla.SparseMLA.apply(q, kv, chosen[None, :, None], (D + TAIL) ** -0.5)
    dq, dkv = torch.autograd.grad(out, (q, kv), do[None])
    return dq[0], dkv[0, :, 0]


def compile_kernels(p: probe.Probe, topk: int) -> None:
    """Forward and backward side by side, on inputs of no consequence; each takes most of a minute."""
    fwd, bwd = p.upstream(OPS + "tilelang_sparse_mla_fwd"), p.upstream(OPS + "tilelang_sparse_mla_bwd")
    q, kv, do, chosen = draw(topk, topk, 1, "cuda")
    scale, rows = (D + TAIL) ** -0.5, torch.zeros(topk, HEADS, device="cuda")
    kv, chosen = kv[:, None], chosen[:, None]
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(fwd.sparse_mla_fwd_interface, q, kv, chosen, scale)
        bwd.sparse_mla_bwd(q, kv, None, do, chosen, rows, scale, delta=rows)
        one.result()


def check_error(p: probe.Probe, s: int, topk: int, sharp: float) -> None:
    """What the roundings cost, beside what rounding the result alone costs."""
    inputs = draw(s, topk, sharp, "cuda" if p.lane == "cuda" else "cpu")
    true = gradients(*inputs)
    ways = {
        "bf16 P and dP": (half, half),
        "split P and dP": (split, half),
        "fp32 P and dP": (keep, half),
        "bf16 P and dP, exact delta": (half, keep),
    }
    emulated = {name: gradients(*inputs, *way) for name, way in ways.items()}
    real = run_kernel(p, *inputs) if p.lane == "cuda" else None
    for index, part in enumerate(("dq", "dkv")):
        where = f"S {s}, {'flat' if sharp == 1 else 'sharp'} softmax, {part}"
        errors = {name: error(half(value[index]), true[index]) for name, value in emulated.items()}
        cast = error(half(true[index]), true[index])
        p.note(f"{where}: error of rounding the exact result to bf16", cast)
        for name, value in errors.items():
            p.note(f"{where}: emulated error, {name}", value)
        kernel = error(real[index], true[index]) if real else errors["bf16 P and dP"]
        if real:
            p.note(f"{where}: error of the kernel", kernel)
        p.guard(
            f"{where}: error / that with fp32 P and dP",
            kernel / errors["fp32 P and dP"],
            GAIN,
            reference="fp64 over the chosen keys",
        )
        p.guard(
            f"{where}: error / that of rounding the exact result",
            kernel / cast,
            WORST,
            reference="fp64 over the chosen keys",
        )


def reproduce(p: probe.Probe) -> None:
    module = p.upstream(OPS + "tilelang_sparse_mla_bwd")
    if not module.HAVE_TILELANG:
        raise probe.CannotTest("dependency tilelang is not installed", "install what the header lists")
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device")
    check_change(p, module)
    torch.manual_seed(p.seed)
    if p.lane == "cpu":
        p.skip("error of the kernel itself", "needs a GPU")
        cases = [(128, 64, 1.0), (128, 64, 4.0)]
    else:
        compile_kernels(p, 512)
        cases = [(s, 512, 1.0) for s in (512, 1024, 2048, 4096, 8192)] + [(4096, 512, 4.0)]
    for case in cases:
        check_error(p, *case)


if __name__ == "__main__":
    probe.main(reproduce, pack=14, package="megatron", minimal=minimal)
