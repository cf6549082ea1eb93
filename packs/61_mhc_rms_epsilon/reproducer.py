# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""Layers' hyper-connections (mHC) add the epsilon of their RMS norm outside the root.

The head of the same file, ``learned_output_contract``, has it inside, as DeepSeek's own code has in both. Outside, 1e-6
is added to the rms, not to its square: streams whose rms is not far above 1e-3 are divided by less. Embeddings of std
0.006 to 0.02 are such streams, in the first layer; rows of zeros have a gradient a thousand times as large.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reproducers import probe


def minimal() -> None:
    """Rows as embeddings are, against the norm of the same file's head."""
    import torch
    from megatron.core.transformer.hyper_connection import native_proj_rms

    torch.manual_seed(0)
    x = 0.006 * torch.randn(4, 4096)
    _, r = native_proj_rms(x, torch.zeros(24, 4096), eps=1e-6)
    right = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    print(r.flatten(), "should be", right.flatten())
    torch.testing.assert_close(r, right, rtol=1e-3, atol=0)


HYPER = "megatron.core.transformer.hyper_connection"
FUSED = "megatron.core.fusions.fused_mhc_kernels"
EPS = 1e-6  # of the norm, of the mixing weights and of Sinkhorn, as DeepSeek-V4's
FP64 = "DeepSeek's formula in fp64"
# fp32: sums of up to 8192 products, off by some 1e-6 of the largest, and a few roundings of 6e-8 after them. Measured:
# below 8e-6, in the gradient of an alpha, which is a small sum over tokens
FP32 = 2e-5
BF16 = 2.0**-7  # what leaves in bf16 is rounded once, by 2**-8 of 2 at most
LARGE = 1e9  # what counts for a number that is not finite where the bug makes such
NATIVE, TORCH, TILES = "native", "fused, torch", "fused, cuTile"


@functools.cache
def upstream(p: probe.Probe, name: str) -> Any:
    """Modules are checked when they are imported, not in each of many calls."""
    return p.upstream(name)


class Tile(Tensor):  # type: ignore[misc]
    """A tile of cuTile's: a tensor with the two methods that torch's have not."""

    def astype(self, dtype: torch.dtype) -> Any:
        return self.to(dtype)

    def transpose(self) -> Any:  # type: ignore[override]
        return super().transpose(0, 1)


class Tiles(types.ModuleType):
    """``cuda.tile`` by torch, block after block on the CPU, as far as the kernels of projection and norm need it.

    tf32 is fp32 here. Sizes that are no power of two, which the compiler refuses, pass.
    """

    tfloat32 = torch.float32
    Constant = dict  # in annotations alone
    PaddingMode = types.SimpleNamespace(ZERO=0)

    def __init__(self) -> None:
        super().__init__("cuda.tile")
        self.block: tuple[int, ...] = ()
        self.grid: tuple[int, ...] = ()
        self.kernel = self.function = self.static_iter = lambda given: given
        self.cdiv, self.minimum, self.truediv = lambda a, b: -(-a // b), min, torch.div
        self.astype = Tile.astype

    def __getattr__(self, name: str) -> Any:
        """Operations that torch has under the same name, and its dtypes."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(torch, name)

    def launch(self, stream: Any, grid: tuple[int, ...], kernel: Any, args: tuple[Any, ...]) -> None:
        self.grid = grid
        for self.block in itertools.product(*map(range, grid)):
            kernel(*args)

    def bid(self, axis: int) -> int:
        return self.block[axis]

    def num_blocks(self, axis: int) -> int:
        return self.grid[axis]

    def full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, value, dtype=dtype).as_subclass(Tile)

    def arange(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.arange(count, dtype=dtype).as_subclass(Tile)

    def maximum(self, tile: Tensor, least: float) -> Tensor:
        return torch.clamp(tile, min=least)

    def mma(self, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
        return acc + a @ b

    def load(self, array: Tensor, index: tuple[int, ...], shape: tuple[int, ...], **options: Any) -> Tensor:
        part = array.detach()[tuple(slice(i * n, i * n + n) for i, n in zip(index, shape, strict=True))]
        tile = part.new_zeros(shape)
        tile[tuple(map(slice, part.shape))] = part
        return tile.as_subclass(Tile)

    def store(self, array: Tensor, index: tuple[int, ...], tile: Tensor, **options: Any) -> None:
        part = array.detach()[tuple(slice(i * n, i * n + n) for i, n in zip(index, tile.shape, strict=True))]
        part.copy_(tile[tuple(map(slice, part.shape))])


def stand_in() -> None:
    """``cuda.tile``, installed or not; Triton's kernels, which are of other operations, stay out of it."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # nothing here is about compiled code, and compiling takes longer
    os.environ["MHC_DISABLE_TRITON"] = "1"
    cuda: Any = sys.modules.setdefault("cuda", types.ModuleType("cuda"))
    cuda.__path__ = getattr(cuda, "__path__", [])
    cuda.tile = sys.modules["cuda.tile"] = Tiles()
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=3)


@contextlib.contextmanager
def tiled(p: probe.Probe) -> Iterator[None]:
    """Upstream finds that its device runs cuTile, which it keeps."""
    module = upstream(p, FUSED)
    module._CUTILE_DEVICE_SUPPORT_CACHE = True
    try:
        yield
    finally:
        module._CUTILE_DEVICE_SUPPORT_CACHE = False


@dataclass(frozen=True)
class Case:
    """Streams' sizes, their rms, and how far the mixing weights follow them."""

    path: str = NATIVE
    rms: float = 0.006
    streams: int = 4
    hidden: int = 64
    tokens: int = 12
    batch: int = 2
    zeros: int = 0  # so many rows of zeros, the first ones
    alike: bool = True  # all streams of a token are the same, as in the first layer
    alpha: float = 1.0
    dtype: torch.dtype = torch.float32
    transposed: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Found:
    """``mixes``: pre, post [s, b, n] and comb, or its logits, [s, b, n, n]; gradients by the name of what has them."""

    mixes: list[Tensor]
    gradients: dict[str, Tensor]


class Mapping:
    """One layer's hyper-connection with random weights, and its streams [s, b, n * h]."""

    def __init__(self, p: probe.Probe, case: Case) -> None:
        self.p, self.case = p, case
        transformer = upstream(p, "megatron.core.transformer")
        config = transformer.TransformerConfig(
            num_layers=1,
            hidden_size=case.hidden,
            num_attention_heads=1,
            enable_hyper_connections=True,
            num_residual_streams=case.streams,
            use_fused_mhc=case.path != NATIVE,
        )
        self.module = upstream(p, HYPER).HyperConnectionModule(config, 1)
        generator = torch.Generator().manual_seed(p.seed + case.seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        wide = case.streams * case.hidden
        with torch.no_grad():
            self.module.mapping_proj.weight.copy_(random(*self.module.mapping_proj.weight.shape) * wide**-0.5)
            self.module.bias.copy_(random(len(self.module.bias)) * 0.3)
            for kind in ("pre", "post", "res"):
                getattr(self.module, f"alpha_{kind}").copy_(random(1).sign() * case.alpha)
        rows = random(case.tokens * case.batch, 1 if case.alike else case.streams, case.hidden)
        rows = rows / rows.square().mean((1, 2), keepdim=True).sqrt() * case.rms
        rows[: case.zeros] = 0
        rows = rows.expand(-1, case.streams, -1).reshape(case.batch, case.tokens, wide).to(case.dtype)
        self.x = rows.transpose(0, 1) if case.transposed else rows.transpose(0, 1).contiguous()
        self.parameters = dict(self.module.named_parameters())
        n = case.streams
        shape = (case.tokens, case.batch)
        self.go = [random(*shape, n), random(*shape, n), random(*shape, n, n)]

    def mixes(self, x: Tensor) -> list[Tensor]:
        """(pre, post, comb) as the layer has them; of cuTile's kernels comb's logits."""
        case, module = self.case, self.module
        if case.path != TILES:
            return list(module.compute_mappings(x))
        return [out.view(go.shape) for out, go in zip(self.fused(x), self.go, strict=False)]

    def fused(self, x: Tensor) -> tuple[Tensor, ...]:
        """(pre, post, comb's logits, root mean square) of the fused operation, by cuTile's kernels or by torch."""
        module = self.module
        with tiled(self.p) if self.case.path == TILES else contextlib.nullcontext():
            made: tuple[Tensor, ...] = upstream(self.p, FUSED).fused_proj_rms_compute_h(
                x.reshape(-1, x.shape[-1]),
                module.mapping_proj.weight,
                module.alpha_pre,
                module.alpha_post,
                module.alpha_res,
                module.bias,
                self.case.streams,
                EPS,
                EPS,
            )
        return made

    def found(self) -> Found:
        self.module.zero_grad(set_to_none=True)
        x = self.x.detach().requires_grad_()
        mixes = self.mixes(x)
        torch.autograd.backward(mixes, [go.to(mix.dtype) for go, mix in zip(self.go, mixes, strict=True)])
        leaves = {"streams": x, **self.parameters}
        return Found([mix.detach() for mix in mixes], {name: grad(leaf) for name, leaf in leaves.items()})

    def exact(self) -> Found:
        """By the formula of DeepSeek's code, in fp64; cotangents are rounded as what is found is."""
        n = self.case.streams
        x = self.x.detach().double().requires_grad_()
        own = {name: leaf.detach().double().requires_grad_() for name, leaf in self.parameters.items()}
        normed = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        pre, post, comb = (normed @ own["mapping_proj.weight"].T).split([n, n, n * n], -1)
        biases = own["bias"].split([n, n, n * n])
        pre = torch.sigmoid(pre * own["alpha_pre"] + biases[0]) + EPS
        post = 2 * torch.sigmoid(post * own["alpha_post"] + biases[1])
        comb = (comb * own["alpha_res"] + biases[2]).unflatten(-1, (n, n))
        if self.case.path != TILES:
            comb = comb.softmax(-1) + EPS
            comb = comb / (comb.sum(-2, keepdim=True) + EPS)
            for _ in range(19):
                comb = comb / (comb.sum(-1, keepdim=True) + EPS)
                comb = comb / (comb.sum(-2, keepdim=True) + EPS)
        mixes = [pre, post, comb]
        dtype = torch.float32 if self.case.path == TILES else self.case.dtype
        torch.autograd.backward(mixes, [go.to(dtype).double() for go in self.go])
        return Found([mix.detach() for mix in mixes], {"streams": grad(x), **{k: grad(v) for k, v in own.items()}})


def grad(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def far(found: Tensor, true: Tensor, scale: float | None = None) -> float:
    """The largest difference, relative to the largest number, or in units of ``scale``; inf where one is not finite."""
    if found.shape != true.shape or not bool(found.isfinite().all()):
        return float("inf")
    return float((found.double() - true).abs().max()) / (float(true.abs().max()) if scale is None else scale)


def compared(mapping: Mapping) -> dict[str, float]:
    """How far mixing weights, the streams' gradient and the parameters' are from the formula, and tensors changed."""
    before = [mapping.x.clone(), *(leaf.detach().clone() for leaf in mapping.parameters.values())]
    found, true = mapping.found(), mapping.exact()
    pairs = list(zip(found.mixes, true.mixes, strict=True))
    after = [mapping.x, *mapping.parameters.values()]
    return {
        "mixing weights": max(far(a, b, 1.0) for a, b in pairs),
        "gradient of streams": far(found.gradients["streams"], true.gradients["streams"]),
        "gradients of parameters": max(far(found.gradients[name], true.gradients[name]) for name in mapping.parameters),
        "tensors changed": float(sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True))),
    }


def check_fixed(p: probe.Probe) -> None:
    """Each path at the rms of embeddings, below it and above it."""
    # (mixing weights, gradients) of the bug, less than half of what it does; None: too little to see
    cases: dict[str, tuple[Case, float | None, float | None]] = {
        "rms 1": (Case(rms=1.0), None, None),
        "rms 0.02": (Case(rms=0.02), 1e-4, 4e-4),
        "rms 0.006": (Case(rms=0.006), 1e-3, 4e-3),
        "rms 0.001": (Case(rms=0.001), 0.02, 0.1),
        "rms 0.006, long": (Case(rms=0.006, hidden=2048, tokens=80), 1e-3, 4e-3),
        "rms 0.001, bf16": (Case(rms=0.001, dtype=torch.bfloat16), 0.02, 0.1),
        "rms 0.006, first step": (Case(rms=0.006, alpha=0.01), 3e-5, 4e-3),
    }
    for path in (NATIVE, TORCH, TILES):
        for name, (case, mixes, gradients) in cases.items():
            errors = compared(Mapping(p, replace(case, path=path)))
            rounded = case.dtype == torch.bfloat16
            for part, error in errors.items():
                bug = {"mixing weights": mixes, "tensors changed": None}.get(part, gradients)
                limit = 0 if part == "tensors changed" else BF16 if rounded else FP32
                if bug is None:
                    p.guard(f"{path}, {name}: {part}", error, limit, reference=FP64)
                else:
                    p.error(f"{path}, {name}: {part}", error, limit, reference=FP64, bug_above=bug)


def check_zeros(p: probe.Probe) -> None:
    """Rows of zeros among others: mixing weights are those of the biases, and the gradient is 1e3 times a product."""
    for path in (NATIVE, TORCH, TILES):
        errors = compared(Mapping(p, Case(path=path, rms=1.0, zeros=3)))
        p.guard(f"{path}, rows of zeros: mixing weights", errors["mixing weights"], FP32, reference=FP64)
        p.error(
            f"{path}, rows of zeros: gradient of streams",
            min(errors["gradient of streams"], LARGE),
            FP32,
            reference=FP64,
            bug_above=100,
        )


def check_head(p: probe.Probe) -> None:
    """The head has its epsilon inside the root in both trees."""
    generator = torch.Generator().manual_seed(p.seed)
    n, hidden = 4, 64
    x = 0.001 * torch.randn(10, 2, n * hidden, generator=generator)
    weight, base = torch.randn(n, n * hidden, generator=generator) / 16, torch.randn(n, generator=generator)
    found = upstream(p, HYPER).learned_output_contract(x, weight, base, torch.ones(1), n, EPS)
    exact = x.double()
    normed = exact * (exact.square().mean(-1, keepdim=True) + EPS).rsqrt()
    gates = torch.sigmoid(normed @ weight.double().T + base.double()) + EPS
    true = (gates.unsqueeze(-1) * exact.unflatten(-1, (n, hidden))).sum(-2)
    p.guard("head, rms 0.001", far(found, true), FP32, reference=FP64)


def check_function(p: probe.Probe) -> None:
    """``native_proj_rms`` by itself: other epsilons, dtypes, and rows of more dimensions."""
    proj_rms = upstream(p, HYPER).native_proj_rms
    generator = torch.Generator().manual_seed(p.seed)
    for eps, rms, dtype, bug in (
        (1e-6, 0.006, torch.float64, 4e-3),
        (1e-5, 0.02, torch.float32, 4e-3),
        (1e-3, 0.1, torch.float32, 0.02),
        (1e-6, 1e-3, torch.bfloat16, 0.1),
        (0.0, 0.5, torch.float32, None),
    ):
        x = (rms * torch.randn(3, 5, 512, generator=generator)).to(dtype)
        weight = torch.randn(8, 512, generator=generator).to(dtype)
        proj, r = proj_rms(x, weight, eps)
        exact = x.double()
        right = (exact.square().mean(-1, keepdim=True) + eps).rsqrt()
        title, limit = f"native_proj_rms, {dtype}, eps {eps}", 2.0**-6 if dtype == torch.bfloat16 else FP32
        error = float(((r.double() - right) / right).abs().max())
        if r.dtype != dtype:
            error = float("inf")
        if bug is None:
            p.guard(f"{title}: r", error, limit, reference=FP64)
        else:
            p.error(f"{title}: r", error, limit, reference=FP64, bug_above=bug)
        p.guard(f"{title}: projection", far(proj, exact @ weight.double().T), limit, reference=FP64)


def check_returned(p: probe.Probe) -> None:
    """The root mean square that the fused operation returns, where the epsilon is too little to be seen in it."""
    for path in (TORCH, TILES):
        mapping = Mapping(p, Case(path=path, rms=3.0))
        root = mapping.x.double().square().mean(-1).reshape(-1, 1)
        p.guard(f"{path}: root mean square", far(mapping.fused(mapping.x)[3], root.sqrt()), FP32, reference=FP64)


def check_drawn(p: probe.Probe) -> None:
    """Sizes, rms and layouts that nobody can foresee."""
    from hypothesis import strategies as st

    def measure(path: str, **options: Any) -> float:
        zeros = options.pop("zeros")
        case = Case(path=path, **options)
        errors = compared(Mapping(p, replace(case, zeros=min(zeros, case.tokens * case.batch - 1))))
        # gradients of parameters are sums over tokens, which may be small differences of large numbers
        return min(LARGE, max(errors["mixing weights"], errors["tensors changed"], errors["gradient of streams"]))

    space = {
        "path": st.sampled_from([NATIVE, TORCH, TILES]),
        "rms": st.sampled_from([3e-4, 1e-3, 3e-3, 0.006, 0.02, 0.5]),
        "streams": st.sampled_from([2, 4]),
        "hidden": st.sampled_from([16, 32, 64, 128]),
        "tokens": st.sampled_from([1, 2, 8, 40]),
        "batch": st.sampled_from([1, 2, 4]),
        "zeros": st.integers(0, 3),
        "alike": st.booleans(),
        "alpha": st.sampled_from([0.01, 0.3, 1.0]),
        "transposed": st.booleans(),
        "seed": st.integers(0, 9999),
    }
    p.drawn("drawn", measure, 1e-4, space=space, count=60, reference=FP64, bug_above=100)


def check_modes(p: probe.Probe) -> None:
    """Without gradients, a second time, and after the weight holds other numbers."""
    for path in (NATIVE, TORCH, TILES):
        mapping, other = Mapping(p, Case(path=path)), Mapping(p, Case(path=path, seed=1))
        first = mapping.found().mixes
        for name, mode in (("no_grad", torch.no_grad), ("inference_mode", torch.inference_mode)):
            with mode():
                again = mapping.mixes(mapping.x)
            differ = sum(not torch.equal(a, b) for a, b in zip(first, again, strict=True))
            p.guard(f"{path}, {name}: tensors that differ", differ, 0, reference="with gradients")
        mapping.module.mapping_proj.weight.data.copy_(other.module.mapping_proj.weight.data)
        errors = compared(mapping)
        p.error(
            f"{path}, other weights: mixing weights", errors["mixing weights"], FP32, reference=FP64, bug_above=1e-3
        )


def prepare(p: probe.Probe) -> None:
    """For ``minimal``."""
    stand_in()
    p.megatron_cpu()


def reproduce(p: probe.Probe) -> None:
    torch.set_num_threads(1)  # tensors are small
    stand_in()
    p.megatron_cpu()
    check_fixed(p)
    check_zeros(p)
    check_head(p)
    check_function(p)
    check_returned(p)
    check_drawn(p)
    check_modes(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=61, package="megatron", minimal=minimal, prepare=prepare)
