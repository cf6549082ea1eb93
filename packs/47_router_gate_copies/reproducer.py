# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine==2.13.0", "torch>=2.8", "triton==3.6.0", "numpy",
#     "packaging", "einops", "hypothesis",
# ]
# ///
"""The backward pass of the MoE router's gate makes fp32 copies as large as the router's input.

Forward, Transformer Engine multiplies bf16 tokens and weights to fp32 logits. Backward, ``RouterGatingLinearFunction``
makes an fp32 copy of the tokens, makes the tokens' gradient in fp32 before it is rounded, and multiplies in TF32, which
keeps eleven bits of the logits' gradient. On a CPU ``Gemm`` stands in for Transformer Engine's product.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from reproducers import probe


def minimal() -> None:
    """Peak memory of the gate's backward pass; needs a GPU and Transformer Engine."""
    import torch
    from megatron.core.transformer.moe.moe_utils import router_gating_linear

    bf16 = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    tokens, weight = torch.randn(16384, 4096, **bf16), torch.randn(16, 4096, **bf16)
    for _ in range(2):  # the first allocates Transformer Engine's workspace
        logits = router_gating_linear(tokens, weight, None, torch.float32)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(logits, [tokens, weight], torch.randn_like(logits))
    copies = (torch.cuda.max_memory_allocated() - before) / tokens.nbytes
    print(f"{copies:.2f} times the tokens; their gradient is 1")
    assert copies < 1.5


UTILS = "megatron.core.transformer.moe.moe_utils"
BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
ROUNDED = 2.0**-8  # a gradient is rounded to bf16 once: at most 2**-9 of each element, and sums in fp32
EXPERTS, HIDDEN, TOKENS = 8, 1024, 512


class Gemm:
    """As ``te_general_gemm`` on a GPU: row-major operands of one dtype, fp32 as TF32, sums rounded once."""

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out_dtype: torch.dtype | None = None,
        layout: str = "TN",
        out: Tensor | None = None,
        bias: Tensor | None = None,
        grad: bool = False,
    ) -> list[Any]:
        if a.dtype != b.dtype or not a.is_contiguous() or not b.is_contiguous():
            raise RuntimeError(f"operands {a.dtype} {a.stride()}, {b.dtype} {b.stride()}")
        with _disable_current_modes():
            x, y = self.seen(a), self.seen(b)
            made = (y.t() if layout[1] == "T" else y) @ (x.t() if layout[0] == "T" else x)
            if bias is not None:
                made += bias
        result = torch.empty(made.shape, dtype=out_dtype or a.dtype)
        with _disable_current_modes():
            result.copy_(made.float())
        return [result, None, None, None]

    def seen(self, x: Tensor) -> Tensor:
        """With the bits that the product takes: of fp32 ten after the first, to the nearest."""
        if x.dtype == FP32:
            x = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(FP32)
        return x.double()


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of all storages made under this mode and not yet freed, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known = set[int]()

    def _free(self, key: int, size: int) -> None:
        self.live, self.known = self.live - size, self.known - {key}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in args if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and (key := (storage := out.untyped_storage())._cdata) not in self.known | inputs:
            self.known.add(key)
            self.live += storage.nbytes()
            weakref.finalize(storage, self._free, key, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out


class Gate:
    """Tokens [s, b, h], weight [E, h], bias [E] or none, and a gradient of the logits [s, b, E], seeded."""

    def __init__(
        self,
        p: probe.Probe,
        *,
        tokens: int = TOKENS,
        batch: int = 1,
        hidden: int = HIDDEN,
        experts: int = EXPERTS,
        bias: bool = False,
        seed: int = 0,
        power: float = 0.0,
        dtype: torch.dtype = BF16,
        router: torch.dtype = FP32,
    ) -> None:
        self.utils, self.router = p.upstream(UTILS), router
        draw, device = torch.Generator().manual_seed(p.seed + seed), torch.cuda.current_device()
        self.x = torch.randn(tokens, batch, hidden, generator=draw).to(device, dtype)
        self.weight = (torch.randn(experts, hidden, generator=draw) / 16).to(device, dtype)
        self.bias = torch.randn(experts, generator=draw).to(device, dtype) if bias else None
        self.above = (torch.randn(tokens, batch, experts, generator=draw).double() * 10.0**power).to(device, router)
        for leaf in self.leaves:
            leaf.requires_grad_()

    @property
    def leaves(self) -> list[Tensor]:
        return [self.x, self.weight, *([] if self.bias is None else [self.bias])]

    def forward(self) -> Tensor:
        return self.utils.router_gating_linear(self.x, self.weight, self.bias, self.router)  # type: ignore[no-any-return]

    def backward(self, logits: Tensor, **more: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(logits, self.leaves, self.above, **more)  # type: ignore[no-any-return]

    def exact(self) -> list[Tensor]:
        """Logits and gradients in fp64."""
        leaves = [leaf.detach().double().requires_grad_() for leaf in self.leaves]
        logits = leaves[0] @ leaves[1].t()
        if self.bias is not None:
            logits = logits + leaves[2]
        return [logits.detach(), *torch.autograd.grad(logits, leaves, self.above.double())]

    def errors(self) -> list[float]:
        """Of logits and gradients, each relative to the norm of what is right."""
        logits = self.forward()
        found = [logits.detach(), *self.backward(logits)]
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, self.exact(), strict=True)]

    def written(self, p: probe.Probe) -> float:
        """Elements that a backward pass writes, for each of the input."""
        logits = self.forward()
        return float(p.operators(lambda: self.backward(logits)).written / self.x.numel())

    def bytes(self, p: probe.Probe) -> tuple[float, float, float]:
        """(held by a forward pass beyond its logits, peak of the backward pass, left by it beyond its gradients).

        For each element of the input.
        """
        gc.collect()
        mode, cuda = LiveBytes(), torch.cuda
        now = cuda.memory_allocated if p.lane == "cuda" else lambda: mode.live
        if p.lane == "cuda":
            cuda.synchronize()
        start = now()
        if p.lane == "cuda":
            logits = self.forward()
        else:
            with mode:
                logits = self.forward()
        held = now() - start - logits.nbytes
        if p.lane == "cuda":
            cuda.reset_peak_memory_stats()
        before = now()
        if p.lane == "cuda":
            grads = self.backward(logits, retain_graph=True)
        else:
            mode.peak = mode.live
            with mode:
                grads = self.backward(logits, retain_graph=True)
        peak = (cuda.max_memory_allocated() if p.lane == "cuda" else mode.peak) - before
        left = now() - before - sum(grad.nbytes for grad in grads)
        size = self.x.numel()
        return held / size, peak / size, left / size


def check_cost(p: probe.Probe) -> None:
    # not known: whether cuBLAS adds a bf16 bias to an fp32 product
    for name, options in {
        "no bias": {},
        "bias": {"bias": p.lane == "cpu"},
        "3 in a batch, 4 experts": {"batch": 3, "experts": 4, "tokens": 200},
        "32 experts": {"experts": 32, "tokens": 2000},
    }.items():
        gate = Gate(p, **options)  # type: ignore[arg-type]
        for _ in range(2):  # a workspace is made once
            gate.backward(gate.forward())
        # the tokens' gradient is one element each; products of Transformer Engine's may go uncounted
        written = gate.written(p)
        p.error(
            f"{name}: written backward",
            written,
            1.7,
            reference="the tokens' gradient once",
            bug_above=1.8,
            unit="elements",
        )
        held, peak, left = gate.bytes(p)
        # 2 of the gradient, and parts of the logits' gradient; a copy and a gradient in fp32 are 8
        p.error(f"{name}: peak backward", peak, 3.0, reference="bf16 gradients", bug_above=5.5, unit="bytes")
        p.guard(f"{name}: held for backward", held, 0.1, reference="inputs are there anyway", unit="bytes")
        p.guard(f"{name}: left by backward", left, 0.1, reference="nothing is kept", unit="bytes")


def check_values(p: probe.Probe) -> None:
    space: dict[str, Any] = {
        "tokens": st.integers(1, 70),
        "batch": st.integers(1, 3),
        "hidden": st.integers(1, 32).map(lambda n: 8 * n),
        "experts": st.integers(1, 40),
        "bias": st.booleans() if p.lane == "cpu" else st.just(False),
        "seed": st.integers(0, 9999),
        "power": st.sampled_from([-20.0, -6.0, 0.0, 5.0, 20.0]),
    }
    p.drawn(
        "drawn gates: logits and gradients",
        lambda **case: max(Gate(p, **case).errors()),
        ROUNDED,
        space=space,
        count=40,
        reference="fp64",
    )
    gate = Gate(p)
    for name, error in zip(("logits", "tokens' gradient", "weight's gradient"), gate.errors(), strict=True):
        p.guard(f"{name}: rounded once", error, 2.0**-9, reference="fp64")
    check_cancelling(p)

    other = Gate(p, seed=5)
    with torch.no_grad():
        gate.weight.data.copy_(other.weight)
        gate.x.data.copy_(other.x)
    p.guard("new values in the same tensors", max(gate.errors()), ROUNDED, reference="fp64")

    first, second = Gate(p, seed=1, tokens=40), Gate(p, seed=2, tokens=30, experts=5)
    owned = [t for g in (first, second) for t in (*g.leaves, g.above)]
    before = [t.detach().clone() for t in owned]
    one, two = first.forward(), second.forward()
    found = [*second.backward(two, retain_graph=True), *first.backward(one)]
    right = [*second.exact()[1:], *first.exact()[1:]]
    worst = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, right, strict=True))
    p.guard("two forwards before a backward", worst, ROUNDED, reference="fp64")
    again = second.backward(two)
    p.guard("a backward again", sum(map(differ, found, again)), 0, reference="the same bits")
    p.guard("tensors given that changed", sum(map(differ, owned, before)), 0, reference="none")
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            p.guard(f"logits by {type(context).__name__}", differ(first.forward(), one), 0, reference="the same bits")
    whole = first.backward(first.forward())
    for at, leaf in enumerate(first.leaves):
        for each in first.leaves:
            each.requires_grad_(each is leaf)
        (alone,) = torch.autograd.grad(first.forward(), [leaf], first.above)
        p.guard(f"gradient of input {at} alone", differ(alone, whole[at]), 0, reference="the same bits")
    p.guard("dtypes of gradients", sum(g.dtype != BF16 for g in whole), 0, reference="the inputs'")


def differ(a: Tensor, b: Tensor) -> int:
    return int(a.dtype != b.dtype or not torch.equal(a, b))


def cancelling(p: probe.Probe, name: str, router: torch.dtype, part: float) -> float:
    """Error of the gradient of two equal tokens, or experts, whose own gradients leave ``part`` of them."""
    gate = Gate(p, router=router)
    generator = torch.Generator().manual_seed(p.seed)
    with torch.no_grad():
        gate.above.zero_()
        if name == "tokens":
            gate.x[7] = gate.x[300]
            gate.above[300] = torch.randn(EXPERTS, generator=generator).to(gate.x.device)
            gate.above[7] = -gate.above[300] * (1 - part)
        else:
            gate.weight[2] = gate.weight[5]
            column = torch.randn(TOKENS, 1, generator=generator).to(gate.x.device, router)
            gate.above[..., 5], gate.above[..., 2] = column, -column * (1 - part)
    return gate.errors()[2 if name == "tokens" else 1]


def check_cancelling(p: probe.Probe) -> None:
    """What is left of sums that cancel: in fp32, and in fp64, which upstream's users choose for it."""
    for name in ("tokens", "experts"):
        error = cancelling(p, name, FP32, 2.0**-20)
        p.error(f"cancelling {name}: gradient", error, 2.0**-6, reference="fp64", bug_above=2.0**-5)
        error = cancelling(p, name, FP64, 2.0**-40)
        p.guard(f"router fp64, cancelling {name}: gradient", error, 2.0**-6, reference="fp64")


def check_infinite(p: probe.Probe) -> None:
    """What is not finite stays where it is: the scaler of gradients looks for it."""
    for value in (float("inf"), float("nan")):
        gate = Gate(p, tokens=50)
        gate.above[9, 0, 3] = value
        tokens, weight = gate.backward(gate.forward())
        lost = int(tokens[9].isfinite().sum() + weight[3].isfinite().sum())
        p.guard(f"{value} in the gradient: finite where it is used", lost, 0, reference="a token and an expert")
        spread = int((~tokens.isfinite()).sum() + (~weight.isfinite()).sum()) - 2 * HIDDEN
        p.guard(f"{value} in the gradient: spread", spread, 0, reference="a token and an expert")


def check_as_before(p: probe.Probe) -> None:
    """Other dtypes, and no Transformer Engine: the same bits."""
    for name, dtype, router in (
        ("fp32", FP32, FP32),
        ("bf16, router bf16", BF16, BF16),
        ("bf16, router fp64", BF16, FP64),
        ("fp16, router fp32", torch.float16, FP32),
    ):
        gate = Gate(p, tokens=64, bias=dtype == router, dtype=dtype, router=router)
        logits = gate.forward()
        p.digest(name, logits.detach(), *gate.backward(logits))
    with mock.patch.object(p.upstream(UTILS), "te_general_gemm", None):
        gate = Gate(p, tokens=64, bias=True)
        logits = gate.forward()
        p.digest("without Transformer Engine", logits.detach(), *gate.backward(logits))


def check_router(p: probe.Probe) -> None:
    """By the router's own method."""
    transformer, router = p.upstream("megatron.core.transformer"), p.upstream("megatron.core.transformer.moe.router")
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
    config = transformer.TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        num_moe_experts=EXPERTS,
        moe_router_dtype="fp32",
        add_bias_linear=False,
        params_dtype=BF16,
        bf16=True,
    )
    gate, made = Gate(p), router.TopKRouter(config, groups).to(torch.cuda.current_device())
    with torch.no_grad():
        made.weight.copy_(gate.weight)
    logits = made.gating(gate.x)
    found = torch.autograd.grad(logits, [gate.x, made.weight], gate.above)
    away = sum(map(differ, (logits, *found), (one := gate.forward(), *gate.backward(one))))
    p.guard("by a router", away, 0, reference="the function's own bits")


def check_times(p: probe.Probe) -> None:
    if p.lane == "cpu":
        return p.skip("times", "needs a GPU")
    for experts in (16, 128):
        gate = Gate(p, tokens=4096, batch=3, hidden=4096, experts=experts)
        name = f"{experts} experts, 12,288 tokens of 4,096"
        replay = p.graph(lambda gate=gate: gate.backward(gate.forward()))[0].replay  # type: ignore[misc]
        p.note(f"{name}: forward and backward", p.milliseconds(replay, 15, 5), unit="ms")
        p.note(f"{name}: peak of backward", gate.bytes(p)[1] * gate.x.numel() / 2**20, unit="MiB")
    return None


def engine(p: probe.Probe) -> None:
    """Before Megatron is imported: Transformer Engine, or what stands in for its product."""
    if p.lane == "cuda":
        p.transformer_engine()
    else:
        sys.modules["transformer_engine"] = None  # type: ignore[assignment]  # that of the needs lacks its extension
    p.megatron_cpu()
    utils = p.upstream(UTILS)
    if p.lane == "cpu":
        utils.te_general_gemm = Gemm()  # type: ignore[attr-defined]
    elif utils.te_general_gemm is None:
        raise probe.CannotTest("this Transformer Engine has no general_gemm", "pass --needs DIR of another")


def reproduce(p: probe.Probe) -> None:
    engine(p)
    check_cost(p)
    check_values(p)
    check_infinite(p)
    check_as_before(p)
    check_router(p)
    check_times(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=47, package="megatron", minimal=minimal, prepare=engine)
