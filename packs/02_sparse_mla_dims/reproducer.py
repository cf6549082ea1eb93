# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "tilelang==0.1.8", "apache-tvm-ffi==0.1.9",
#   "hypothesis"]
# ///
"""Megatron-Core's TileLang sparse MLA silently declines every shape but 576/512 channels and 2^n heads.

A DSA layer configured with ``dsa_kernel_backend="tilelang"`` then builds dense fp32 scores [b, heads, sq, skv] and says
nothing above DEBUG, although the kernels below the guard serve other sizes and zero heads can fill the missing rows.
Everything runs through ``_run_sparse_attention``, where a DSA layer chooses its path, against dense fp64 attention.
"""

import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal():
    """Sparse MLA of 28 heads with 64 value channels of 128 is declined; without a GPU no kernel runs."""
    import tilelang  # noqa: F401  without it everything is declined
    import torch
    from megatron.core.transformer.experimental_attention_variant.ops import (
        tilelang_dsa,
        tilelang_sparse_mla_fwd,
    )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":  # ask for the kernel, but do not compile and launch it

        def kernel(q, kv, indices):
            return q[..., :64], q[..., 0].float()

        tilelang_sparse_mla_fwd.sparse_mla_fwd = lambda *sizes, **options: kernel
    query, key = torch.randn(256, 1, 29, 128, device=device).bfloat16().split([28, 1], dim=2)
    topk = torch.zeros(1, 256, 64, dtype=torch.int32, device=device)
    out = tilelang_dsa.fused_sparse_mla_absorbed(query, key, topk, 128**-0.5, 64)
    assert out is not None, "fused_sparse_mla_absorbed declines: DSA builds dense fp32 scores"


VARIANT = "megatron.core.transformer.experimental_attention_variant"
BUILDERS = {"sparse_mla_fwd": "fwd", "bwd": "bwd", "preprocess": "bwd", "postprocess": "bwd"}  # kernel -> file
NAM56R = (128, 64, 28)  # channels, of them value, heads: one model that trains with DSA
BUCKET = "MCORE_DSA_TILELANG_SEQ_BUCKET"  # upstream's own setting: rows are padded to 256, which is slow in fp64
TOPK = {"cpu": 64, "cuda": 256}
RELEASED = [(576, 512, 16), (576, 512, 12), (576, 512, 5)]  # the release serves these, 12 and 5 heads padded to 16
DECLINED = [NAM56R, (192, 128, 32), (320, 256, 16), (576, 512, 28)]  # and declines these
PADDED = [(576, 512, 96), (192, 128, 192)]  # 96 heads become 128, and 192 become 256
WITHOUT_KERNEL = {  # channels, of them value, heads, top-k, dtype
    "value 96 + tail 32": (128, 96, 16, 64, torch.bfloat16),  # the forward does not lower: 12 columns a warp
    "value 64 + tail 16": (80, 64, 16, 64, torch.bfloat16),  # the backward does not lower: 4 columns a warp
    "value 64, no tail": (64, 64, 16, 64, torch.bfloat16),
    "value 512 + tail 128": (640, 512, 16, 64, torch.bfloat16),  # more shared memory than a block may have
    "top-k 48": (576, 512, 16, 48, torch.bfloat16),
    "value 32 + tail 64": (96, 32, 16, 64, torch.bfloat16),  # the forward does not lower: 4 columns a warp
    "value 64 + tail 96": (160, 64, 16, 64, torch.bfloat16),  # the forward asserts a power of two
    "fp32": (576, 512, 16, 64, torch.float32),
}
# channels of the value and others: powers of two, as many as leave each warp 8 columns and are no more than 512 + 64
SERVED = [(v, t) for v in (64, 128, 256, 512) for t in (32, 64, 128, 256, 512) if v + t <= 576]
LIMIT = 1e-2  # relative Frobenius; bf16 P, dP, output (also inside delta) and result cost about 2e-3 each


@dataclass
class Kernel:
    """A kernel that upstream asked tilelang for: the real one for tensors on a GPU, else its definition in fp64."""

    name: str
    build: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    launches: "Launches"
    compiled: Any = None
    kept: ClassVar[bool] = True
    empty: ClassVar[Any] = staticmethod(lambda *size, **kinds: torch.full(size, torch.nan, **kinds))

    def __call__(self, *tensors: Tensor) -> Any:
        if self.kept:
            self.launches.append((self, tensors[0]))
        if not tensors[0].is_cuda:
            return getattr(self, self.name)(*tensors)
        if self.compiled is None:
            self.compile()
        with mock.patch.object(torch, "empty", self.empty):  # tilelang allocates outputs with it: unwritten is NaN
            return self.compiled(*tensors)

    def compile(self) -> None:
        self.compiled = self.build(*self.args, **self.options)

    def scores(self, q: Tensor, kv: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Chosen keys [b, s, k, d], their natural-log scores [b, s, h, k] (-inf where absent), positions [b, s, k]."""
        heads, dim, tail, topk, groups, scale = self.args
        given = (*q.shape[2:], *kv.shape[2:], *indices.shape[2:], indices.dtype)
        if given != (heads, dim + tail, groups, dim + tail, groups, topk, torch.int32):
            raise ValueError(f"{self.name} built for {self.args} was given {given}")
        at = indices[:, :, 0].long()
        keys = kv.double()[torch.arange(len(kv))[:, None, None], at.clamp(min=0), 0]
        score = torch.einsum("bshd,bskd->bshk", q.double(), keys) * scale
        return keys, score.masked_fill((at < 0).unsqueeze(2), -torch.inf), at

    def sparse_mla_fwd(self, q: Tensor, kv: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        keys, score, _ = self.scores(q, kv, indices)
        lse = score.logsumexp(-1).nan_to_num(neginf=0)  # [b, s, h]
        out = torch.einsum("bshk,bskd->bshd", (score - lse[..., None]).exp(), keys[..., : self.args[1]])
        return out.to(q.dtype), (lse / math.log(2)).float()

    def bwd(self, q: Tensor, kv: Tensor, do: Tensor, indices: Tensor, lse: Tensor, *more: Tensor) -> Tensor:
        (keys, score, at), (delta, dkv), dim = self.scores(q, kv, indices), more, self.args[1]
        p = (score - lse.double()[..., None] * math.log(2)).exp()  # [b, s, h, k]
        ds = p * (torch.einsum("bshd,bskd->bshk", do.double(), keys[..., :dim]) - delta.double()[..., None])
        dkeys = torch.einsum("bshk,bshd->bskd", ds := ds * self.args[5], q.double())  # [b, s, k, d]
        dkeys[..., :dim] += torch.einsum("bshk,bshd->bskd", p, do.double())
        batch = torch.arange(len(kv))[:, None, None].expand_as(at)
        dkv[:, :, 0].index_put_((batch, at.clamp(min=0)), dkeys.to(dkv.dtype), accumulate=True)
        return torch.einsum("bshk,bskd->bshd", ds, keys).to(q.dtype)

    def preprocess(self, o: Tensor, do: Tensor) -> Tensor:
        return (o.double() * do.double()).sum(-1).float()

    def postprocess(self, dkv: Tensor) -> Tensor:
        return dkv.to(torch.bfloat16)


Launches = list[tuple[Kernel, Tensor]]  # kernels and what each is given first: q, of those that take it


def wrong_rows(launches: Launches, heads: int) -> int:
    """Kernels for more heads than have to be, or with rows beyond the real ones that are not 0.

    Scores of such rows are 0 then, whatever the keys hold: they cannot overflow and spoil the keys' gradients.
    """
    least = max(16, 1 << (heads - 1).bit_length())
    with_q = [(kernel.args[0], q) for kernel, q in launches if kernel.name in ("sparse_mla_fwd", "bwd")]
    return sum(size != least or bool(q[..., heads:, :].any()) for size, q in with_q)


def record_kernels(p: probe.Probe, launches: Launches) -> tuple[dict[str, Kernel], dict[str, Any]]:
    """Let kernels be asked for without compiling them: (those asked for, upstream's real builders)."""
    asked: dict[str, Kernel] = {}
    real: dict[str, Any] = {}

    def ask(name: str, *args: Any, **options: Any) -> Kernel:
        return asked.setdefault(f"{name}{args}", Kernel(name, real[name], args, options, launches))

    for name, file in BUILDERS.items():
        module: Any = p.upstream(f"{VARIANT}.ops.tilelang_sparse_mla_{file}")
        real[name] = getattr(module, name)
        setattr(module, name, partial(ask, name))
    return asked, real


class Inputs(NamedTuple):
    q: Tensor  # [s, b, h, d], absorbed
    k: Tensor  # [s, b, 1, d], the first d_v channels are the value
    chosen: Tensor  # [b, s, topk], distinct and causal, -1 where there are fewer
    grad: Tensor  # [s, b, h * d_v]
    d_v: int
    scale: float


def draw(shape: tuple[int, int, int], s: int, b: int, topk: int, device: str, dtype: Any = torch.bfloat16) -> Inputs:
    d, d_v, heads = shape
    noise = torch.rand(b, s, s).masked_fill(torch.ones(s, s).triu(1).bool(), -1)  # future keys last
    best = noise.topk(min(topk, s))
    chosen = best.indices.masked_fill(best.values < 0, -1)
    chosen = torch.nn.functional.pad(chosen, (0, topk - chosen.shape[-1]), value=-1)
    chosen[:, s // 2] = -1  # a padding row: no key at all
    chosen[:, :, :: topk // 4] = -1  # holes that are not at the end
    q, k, grad = torch.randn(s, b, heads, d), torch.randn(s, b, 1, d), torch.randn(s, b, heads * d_v)
    q, k, grad = (x.to(device, dtype) for x in (q * 2, k, grad))  # scores of deviation 2: neither flat nor one-hot
    return Inputs(q.requires_grad_(), k.requires_grad_(), chosen.to(device), grad, d_v, d**-0.5)


def forward(p: probe.Probe, x: Inputs, backend: str = "tilelang") -> Callable[[], Tensor]:
    """The layer's choice of path: output [s, b, h * d_v]."""
    dsa, enums = p.upstream(f"{VARIANT}.dsa"), p.upstream("megatron.core.transformer.enums")
    config = SimpleNamespace(kv_lora_rank=x.d_v, dsa_kernel_backend=backend, attention_backend=enums.AttnBackend.auto)
    up = torch.eye(x.d_v, device=x.q.device, dtype=x.q.dtype).expand(x.q.shape[2], -1, -1)  # latent values as they are

    return lambda: dsa._run_sparse_attention(
        absorbed_mla=True,
        query=x.q,
        key=x.k,
        value=None,
        up_v_weight=up,
        topk_indices=x.chosen,
        softmax_scale=x.scale,
        config=config,
        mask=None,
        varlen_starts=None,
        varlen_ends=None,
        key_positions=None,
    )


def backward(x: Inputs, out: Tensor) -> list[Tensor]:
    """The output, dq, dk."""
    return [out.detach(), *torch.autograd.grad(out, (x.q, x.k), x.grad)]


def layer(p: probe.Probe, x: Inputs, backend: str = "tilelang") -> Callable[[], list[Tensor]]:
    """Forward and backward: output, dq, dk."""
    run = forward(p, x, backend)
    return lambda: backward(x, run())


def exact(x: Inputs) -> list[Tensor]:
    """Dense fp64 attention over the chosen keys only, with autograd; rows without a key give zero."""
    q, k = (t.detach().double().requires_grad_() for t in (x.q, x.k))
    s, (b, heads) = len(q), x.q.shape[1:3]
    seen = torch.zeros(b, s, s + 1, dtype=torch.bool, device=q.device)
    seen = seen.scatter_(2, x.chosen.long().where(x.chosen >= 0, s), True)[:, None, :, :s]  # [b, 1, s, t]
    score = torch.einsum("sbhd,tbd->bhst", q, k[:, :, 0]) * x.scale
    weight = score.masked_fill(~seen, -1e300).softmax(-1) * seen  # [b, h, s, t]
    out = torch.einsum("bhst,tbd->sbhd", weight, k[:, :, 0, : x.d_v]).reshape(s, b, heads * x.d_v)
    return [out.detach(), *torch.autograd.grad(out, (q, k), x.grad.double())]


def distance(value: Tensor, true: Tensor) -> float:
    return ((value.double() - true).norm() / true.norm()).item()


def compare(p: probe.Probe, name: str, got: list[Tensor] | None, want: list[Tensor]) -> None:
    for part, value, true in zip(("output", "dq", "dk"), got or (), want, strict=False):
        p.guard(f"{name}: {part}", distance(value, true), LIMIT, reference="dense fp64 attention over the chosen keys")


def unlaunched(launches: Launches) -> int:  # of forward, backward and their two helpers
    return len(BUILDERS.keys() - {kernel.name for kernel, _ in launches})


def check_shapes(p: probe.Probe, launches: Launches, s: int, device: str) -> None:
    """Does a shape reach the kernels, and is the layer right either way?"""
    for shape in [*RELEASED, *DECLINED, *(PADDED if p.lane == "cpu" else [])]:
        launches.clear()
        x = draw(shape, s, 2, TOPK[p.lane], device)
        name = f"{shape[0]}/{shape[1]} channels, {shape[2]} heads"
        got = p.guard_attempt(f"{name}: forward and backward return", layer(p, x))
        missing = unlaunched(launches)
        if shape in RELEASED:
            p.guard(f"{name}: kernels not launched", missing, 0, reference="all four")
        else:  # all or nothing
            p.error(f"{name}: kernels not launched", missing, 0, reference="all four", bug_above=len(BUILDERS))
        p.guard(
            f"{name}: kernels with wrong rows",
            wrong_rows(launches, shape[2]),
            0,
            reference="the next power of two, filled with zeros",
        )
        compare(p, name, got, exact(x))
        launches.clear()
        with torch.no_grad():
            out = forward(p, x)()
        p.guard(
            f"{name}: output without gradients", distance(out, exact(x)[0]), LIMIT, reference="dense fp64 attention"
        )
        none, said = float(not launches), f"{name}: forward without gradients launches no kernel"
        if shape in RELEASED:
            p.guard(said, none, 0, reference="the same as with gradients")
        else:
            p.error(said, none, 0, reference="the same as with gradients", bug_above=1)


def check_two_layers(p: probe.Probe, s: int, device: str) -> None:
    """Two layers of other channels and heads: both forward, then both backward."""
    pairs = [(x := draw(shape, s, 1, TOPK[p.lane], device), forward(p, x)()) for shape in DECLINED[:2]]
    for x, out in pairs:
        compare(p, f"two layers, {x.d_v} value channels", backward(x, out), exact(x))


def check_drawn(p: probe.Probe, launches: Launches, s: int, device: str) -> None:
    """The same of channels, heads, rows and sequences that nobody chose; and of channels without a kernel."""
    cpu = p.lane == "cpu"

    def error(channels: tuple[int, int], heads: int, b: int, topk: int, fewer: int) -> float:
        launches.clear()
        x = draw((sum(channels), channels[0], heads), s - fewer, b, topk, device)
        try:
            got, true = layer(p, x)(), exact(x)
        except Exception:  # then this check fails, and tells the simplest shape that does it
            return math.inf
        if any(a.shape != t.shape or a.dtype != torch.bfloat16 for a, t in zip(got, true, strict=True)):
            return math.inf
        return max(map(distance, got, true))

    def missing(heads: int, **case: Any) -> float:
        wrong = error(heads=heads, **case) > LIMIT or wrong_rows(launches, heads)
        return math.inf if wrong else unlaunched(launches)

    def declined(**case: Any) -> float:
        return math.inf if (wrong := error(**case) / LIMIT) > 1 or launches else wrong

    space = {
        "heads": st.integers(1, 100 if cpu else 64),
        "b": st.integers(1, 2),
        "fewer": st.integers(0, s // 2),
        "topk": st.sampled_from((64, 128)) if cpu else st.just(TOPK["cuda"]),
    }
    p.drawn(
        "drawn shapes: kernels not launched",
        missing,
        0,
        space={"channels": st.sampled_from(SERVED)} | space,
        # each shape takes a minute to compile
        count=10 if cpu else 3,
        reference="all four, and right results",
        bug_above=len(BUILDERS),
    )
    eights = st.tuples(st.integers(1, 80), st.integers(0, 80)).map(lambda pair: (8 * pair[0], 8 * pair[1]))
    twos = st.tuples(*[st.sampled_from([2**n for n in range(3, 11)])] * 2)
    other = st.one_of(eights, twos).filter(lambda pair: pair not in SERVED)
    p.drawn(
        "drawn channels without a kernel: error over its limit",
        declined,
        1,
        space={"channels": other} | space,
        count=6,
        reference="dense, no kernel is launched",
    )


def check_declines(p: probe.Probe, launches: Launches) -> None:
    """Shapes without a kernel stay with PyTorch, the user is told once; the functions below refuse them as well."""
    said: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = said.append  # type: ignore[method-assign]
    logging.getLogger(VARIANT).addHandler(handler)
    launches.clear()
    for name, (d, d_v, heads, topk, dtype) in WITHOUT_KERNEL.items():
        x = draw((d, d_v, heads), 72, 1, topk, "cpu", dtype)
        run, before = layer(p, x), len(said)
        compare(p, name, p.guard_attempt(f"{name}: forward and backward return", run), exact(x))
        p.guard_attempt(f"{name}: and return again", run)
        if dtype == torch.bfloat16:
            p.error(
                f"{name}: warnings of two declined calls, off by",
                abs(len(said) - before - 1),
                0,
                reference="one warning",
                bug_above=1,
            )
    p.guard("kernels launched for shapes without one", len(launches), 0, reference="none")
    before, told = len(said), [shape for shape in WITHOUT_KERNEL.values() if shape[-1] == torch.bfloat16][:2]
    for s, b in ((72, 1), (72, 1), (88, 2), (104, 1)):
        for d, d_v, heads, topk, dtype in told:
            layer(p, draw((d, d_v, heads), s, b, topk, "cpu", dtype))()
    p.guard("warnings of two cases told before, asked in turn", len(said) - before, 0, reference="none")
    second = {"is_initialized": lambda: True, "get_rank": lambda group=None: 1, "get_world_size": lambda group=None: 2}
    with mock.patch.multiple(torch.distributed, **second):
        layer(p, draw((136, 104, 16), 72, 1, 64, "cpu", torch.bfloat16))()  # channels of which nobody was told
    p.guard("warnings of the second of two ranks", len(said) - before, 0, reference="the first rank's alone")
    files = "sparse_mla", "tilelang_sparse_mla_fwd", "tilelang_sparse_mla_bwd"
    mla, fwd, bwd = (p.upstream(f"{VARIANT}.ops.{name}") for name in files)
    q, kv, chosen = x.q.bfloat16().transpose(0, 1), x.k.bfloat16().transpose(0, 1), x.chosen.unsqueeze(2).int()
    p.guard_attempt(
        "SparseMLA.apply without d_v returns, and its backward",
        lambda: mla.SparseMLA.apply(q, kv, chosen, x.scale)[0].sum().backward(),
    )
    accepted, (q, kv) = 0, (t[..., :128].contiguous() for t in (q, kv))
    none = torch.zeros(q.shape[:3])
    for d_v in (96, 128, 0):
        with suppress(AssertionError):
            fwd.sparse_mla_fwd_interface(q, kv, chosen, x.scale, d_v)
            accepted += 1
        with suppress(AssertionError):
            bwd.sparse_mla_bwd(q, kv, None, q[..., :d_v].contiguous(), chosen, none, x.scale, none)
            accepted += 1
    p.guard("unsupported channels that the interfaces accept", accepted, 0, reference="AssertionError")


def check_failures(p: probe.Probe) -> None:
    """What a kernel raises is told, and not taken for a shape without one."""
    run, passed = forward(p, draw(RELEASED[0], 72, 1, TOPK["cpu"], "cpu")), 0

    def full(*_: Tensor) -> None:
        raise torch.OutOfMemoryError("no memory is left")

    with mock.patch.object(Kernel, "__call__", full), suppress(torch.OutOfMemoryError):
        run()
        passed = 1
    p.guard("kernels without memory that are passed over", passed, 0, reference="OutOfMemoryError")


def check_lowering(p: probe.Probe, asked: dict[str, Kernel], real: dict[str, Any]) -> None:
    """The real kernels at NAM56R's sizes, down to CUDA source; and the dispatch must ask for these and no others."""
    sizes = (32, 64, 64, TOPK["cpu"], 1, NAM56R[0] ** -0.5)  # heads, value, tail, top-k, groups, scale
    for name in ("sparse_mla_fwd", "bwd"):
        build, tir = real[name], real[name].get_tir(*sizes)
        options = {str(getattr(key, "value", key)): value for key, value in build.pass_configs.items()}
        p.guard_attempt(f"{name} at 64 + 64 channels, 32 heads lowers", partial(p.lower, tir, **options))
        mine = [kernel for kernel in asked.values() if kernel.name == name and kernel.args[1:3] == sizes[1:3]]
        other = sum(build.get_tir(*k.args, **k.options).script() != tir.script() for k in mine)
        p.guard(f"{name}: kernels asked for at 64 + 64 channels, other than that", other, 0, reference="its TIR")


def elapsed(run: Callable[[], Any]) -> float:  # milliseconds on the GPU
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def check_cost(p: probe.Probe) -> None:
    """NAM56R's layer at 4,096 tokens: right, and cheaper than dense scores."""
    x, peak = draw(NAM56R, 4096, 1, TOPK["cuda"], "cuda"), {}
    compare(p, "4,096 tokens", p.guard_attempt("4,096 tokens: forward and backward return", layer(p, x)), exact(x))
    Kernel.empty, Kernel.kept = staticmethod(torch.empty), False
    for backend in ("tilelang", "none"):
        (run := layer(p, x, backend))()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        peak[backend] = (torch.cuda.max_memory_allocated() - before) / 2**30
        p.note(f"4,096 tokens: peak with backend {backend}", peak[backend], unit="GiB")
        median = sorted(elapsed(run) for _ in range(9))[4]
        p.note(f"4,096 tokens: forward and backward with backend {backend}", median, unit="ms")
    p.error(
        "4,096 tokens: peak with backend tilelang / none",
        peak["tilelang"] / peak["none"],
        0.25,
        # q, k, output and their gradients against several fp32 [heads, 4096, 4096]: about 0.05
        reference="no saving is 1",
        bug_above=0.9,
    )


def reproduce(p: probe.Probe) -> None:
    if not p.upstream(f"{VARIANT}.ops.tilelang_utils").HAVE_TILELANG:
        raise probe.CannotTest("dependency tilelang is not installed", "install what the header lists")
    if p.lane == "cuda" and not torch.cuda.is_available():
        raise probe.CannotTest("no CUDA device")
    torch.manual_seed(p.seed)
    launches: Launches = []
    asked, real = record_kernels(p, launches)
    os.environ[BUCKET] = "32"
    if p.lane == "cpu":
        check_shapes(p, launches, 72, "cpu")
        check_two_layers(p, 72, "cpu")
        check_declines(p, launches)
        check_failures(p)
        check_lowering(p, asked, real)
        check_drawn(p, launches, 40, "cpu")  # last: a shape's warning comes once, and other kernels are asked for
        return p.skip("peak memory and time at 4,096 tokens", "needs a GPU")
    for shape in [*RELEASED, *DECLINED]:  # small CPU tensors tell which kernels this tree asks for
        layer(p, draw(shape, 72, 1, TOPK["cuda"], "cpu"))()
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(Kernel.compile, asked.values()))
    check_declines(p, launches)
    check_failures(p)
    del os.environ[BUCKET]
    check_shapes(p, launches, 400, "cuda")
    check_two_layers(p, 400, "cuda")
    check_drawn(p, launches, 400, "cuda")
    return check_cost(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=2, package="megatron", minimal=minimal)
