# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine==2.13.0", "torch>=2.8", "triton==3.6.0", "numpy", "einops",
#     "hypothesis",
# ]
# ///
"""Without Apex Megatron's own linear layers cannot add weight gradients to main_grad inside their product.

``gradient_accumulation_fusion`` is refused by ColumnParallelLinear, although Transformer Engine, by whose product its
own layers do so, is installed. So a weight gradient is written in the dtype of the activations, rounded, read again and
added by a kernel of its own. Apex may not be installed where this runs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from reproducers import probe


def minimal():
    """Megatron's column parallel layer beside Transformer Engine, with the option that its own layers take."""
    from types import SimpleNamespace

    import torch
    from megatron.core import ModelParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear

    config = ModelParallelConfig(gradient_accumulation_fusion=True, use_cpu_initialization=True)
    group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # no tensor parallelism
    init = torch.nn.init.zeros_
    ColumnParallelLinear(8, 8, config=config, init_method=init, bias=False, tp_group=group)
    print("ColumnParallelLinear adds weight gradients inside its product")


LAYERS, APEX = "megatron.core.tensor_parallel.layers", "fused_weight_gradient_mlp_cuda"
ALONE = SimpleNamespace(size=lambda: 1, rank=lambda: 0)  # all that is asked of a group
REFUSED = probe.Signature("RuntimeError", APEX, "megatron/core/tensor_parallel/layers.py")
MISSING = probe.Signature("ModuleNotFoundError", APEX, "megatron/core/utils.py")
EXACT = "fp64 product, added"
# Products of 16 bits are exact in fp32, which rounds each of some hundred sums by 2**-24; a GPU multiplies fp32 so too
# unless TF32 is allowed. Rounded to fp16 or bf16 on the way, a gradient is off by more than 2**-13 of its norm.
FP32, ROUNDED = 1e-5, 2**-13
HALF = 2**-7  # a sum that is rounded to bf16, after a product that may have been


class Linear:
    """A weight [out, in] with a gradient to add to, seeded, and the passes of a layer over [tokens, 1, in].

    ``added``: what has been added, in fp64; ``terms``: the norms of what was, in all, which a small sum may be far
    below. The gradient is added inside the product where upstream can, else after it,
    as Megatron's hooks do.
    """

    def __init__(
        self,
        p: probe.Probe,
        out: int,
        width: int,
        dtype: torch.dtype,
        main: torch.dtype,
        seed: int = 0,
    ) -> None:
        self.layers, device = p.upstream(LAYERS), torch.cuda.current_device()
        self.generator = torch.Generator().manual_seed(p.seed + seed)
        self.draw = lambda *shape: torch.randn(shape, generator=self.generator).to(device)
        self.weight = torch.nn.Parameter(self.draw(out, width).to(dtype))
        self.weight.main_grad = self.draw(out, width).to(main)  # type: ignore[attr-defined]
        self.weight.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        self.added = self.weight.main_grad.double()
        self.terms = self.added.norm().item()
        self.fused = self.layers._grad_accum_fusion_available
        self.memory = self.weight.main_grad.data_ptr()  # of a buffer that Megatron reduces

    def forward(self, x: Tensor, **more: Any) -> Tensor:
        return self.layers.linear_with_grad_accumulation_and_async_allreduce(  # type: ignore[no-any-return]
            x,
            self.weight,
            None,
            gradient_accumulation_fusion=self.fused,
            allreduce_dgrad=False,
            sequence_parallel=False,
            tp_group=ALONE,
            **more,
        )

    def backward(self, out: Tensor, grad: Tensor) -> None:
        self.weight.grad = None
        out.backward(grad)
        self.add()

    def add(self) -> None:
        """As the hook of Megatron's DistributedDataParallel does."""
        if self.weight.grad is not None and not self.weight.grad_added_to_main_grad:
            self.weight.main_grad.add_(self.weight.grad.data)
        self.weight.grad = None

    def drawn(self, tokens: int, whole: bool = True) -> tuple[Tensor, Tensor]:
        """An input and a gradient of the output; not ``whole``: parts of wider ones."""
        (out, width), over = self.weight.shape, 0 if whole else 3
        x, grad = (self.draw(tokens, 1, n + over).to(self.weight.dtype)[..., over:] for n in (width, out))
        product = grad.flatten(0, 1).double().t() @ x.flatten(0, 1).double()
        self.added, self.terms = self.added + product, self.terms + product.norm().item()
        return x, grad

    def passed(self, tokens: int, whole: bool = True) -> float:
        """Error of the input's gradient; infinite where an argument changed."""
        x, grad = self.drawn(tokens, whole)
        leaf, before = x.detach().requires_grad_(), (x.clone(), grad.clone(), self.weight.detach().clone())
        self.backward(self.forward(leaf), grad)
        kept = all(map(torch.equal, (x, grad, self.weight.detach()), before))
        assert leaf.grad is not None
        return error(leaf.grad, grad.double() @ self.weight.double()) if kept else math.inf

    @property
    def error(self) -> float:
        """Of the main gradient; infinite where it is not in its place any more."""
        kept = self.weight.main_grad.data_ptr() == self.memory
        return error(self.weight.main_grad, self.added) if kept else math.inf

    @property
    def error_of_terms(self) -> float:
        """As ``error``, where terms may cancel: of three products and their sums, rounded, under 2^-7 in bf16."""
        return self.error * self.added.norm().item() / self.terms


def error(found: Tensor, true: Tensor) -> float:
    return ((found.double() - true).norm() / true.norm().clamp_min(1e-30)).item() if true.numel() else 0.0


def dtypes(p: probe.Probe) -> list[tuple[torch.dtype, torch.dtype]]:
    """Of activations, and of the gradient to add to."""
    alike = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)]
    return alike if p.lane == "cpu" else [*alike, (torch.bfloat16, torch.float32), (torch.float16, torch.float32)]


def check_off(p: probe.Probe) -> None:
    """The same layer without the option."""
    for dtype, main in dtypes(p):
        layer = Linear(p, 96, 64, dtype, main)
        layer.fused = False
        layer.passed(200)
        layer.passed(200, whole=False)
        name = f"{str(dtype)[6:]} to {str(main)[6:]}: main_grad where the option is off"
        p.guard(name, layer.error, FP32 if dtype == torch.float32 else HALF, reference=EXACT)


def check_values(p: probe.Probe) -> None:
    """Main gradients and those of inputs, over several passes, of any sizes and strides."""
    from hypothesis import strategies as st

    for dtype, main in dtypes(p):
        name = f"{str(dtype)[6:]} to {str(main)[6:]}"
        exact = main == torch.float32

        def measure(
            tokens: list[int], out: int, width: int | None, whole: bool, seed: int,
            dtype: Any = dtype, main: Any = main,
        ) -> float:  # fmt: skip
            layer = Linear(p, out, width or out, dtype, main, seed)
            inputs = max(layer.passed(count, whole) for count in tokens)
            return max(inputs * (1 if dtype == torch.float32 else HALF / 2**-7), layer.error_of_terms)

        space = {
            "tokens": st.lists(st.integers(0, 70), min_size=1, max_size=3),
            "out": st.integers(1, 40),
            "width": st.none() | st.integers(1, 40),  # None: the weight is square
            "whole": st.booleans(),
            "seed": st.integers(0, 999),
        }
        limit = FP32 if dtype == torch.float32 else HALF
        p.drawn(
            f"{name}: main_grad and gradient of the input, drawn",
            measure,
            limit,
            space=space,
            count=30 if p.lane == "cuda" else 15,
            reference=EXACT,
        )
        layer = Linear(p, 96, 64, dtype, main)
        layer.passed(200)
        layer.passed(200)
        if dtype != main:
            p.error(f"{name}: main_grad after two passes", layer.error, FP32, reference=EXACT, bug_above=ROUNDED)
        else:
            p.guard(f"{name}: main_grad after two passes", layer.error, FP32 if exact else HALF, reference=EXACT)


def check_orders(p: probe.Probe) -> None:
    """Two forward passes before their backward passes; a weight used twice; no gradient of the input wanted."""
    dtype, main = dtypes(p)[-1 if p.lane == "cuda" else 0]
    limit = HALF if dtype != torch.float32 else FP32
    layer = Linear(p, 24, 40, dtype, main)
    (x, grad), (y, other) = layer.drawn(30), layer.drawn(50)
    one, two = layer.forward(x.requires_grad_()), layer.forward(y.requires_grad_())
    layer.backward(two, other)
    layer.backward(one, grad)
    p.guard("two passes at once: main_grad", layer.error, limit, reference=EXACT)
    layer = Linear(p, 24, 40, dtype, main)
    (x, grad), (y, other) = layer.drawn(30), layer.drawn(50)
    layer.weight.grad = None
    ((layer.forward(x) * grad).sum() + (layer.forward(y) * other).sum()).backward()
    layer.add()
    p.guard("a weight used twice: main_grad", layer.error, limit, reference=EXACT)
    layer = Linear(p, 24, 40, dtype, main)
    with torch.no_grad():
        found = layer.forward(x)
    p.guard("without gradients: output", error(found, x.double() @ layer.weight.double().t()), HALF, reference="fp64")
    p.guard("without gradients: main_grad", layer.error, 0, reference="unchanged")


def check_marks(p: probe.Probe) -> None:
    """What upstream reads in hooks: the mark, and a gradient in the place of the one added, of zeros if asked."""
    dtype, main = dtypes(p)[-1 if p.lane == "cuda" else 0]
    for zeros in (False, True):
        layer = Linear(p, 16, 8, dtype, main)
        layer.weight.zero_out_wgrad = zeros  # type: ignore[attr-defined]
        x, grad = layer.drawn(20)
        layer.forward(x).backward(grad)
        stands = layer.weight.grad
        wrong = stands is None or stands.shape != layer.weight.shape or stands.dtype != dtype
        wrong |= layer.weight.grad_added_to_main_grad != layer.fused
        if zeros and layer.fused and not wrong:
            wrong = bool(stands.any())  # type: ignore[union-attr]
        p.guard(f"mark and gradient after a pass{', zeros asked for' * zeros}: wrong", wrong, 0, reference="upstream's")


def built(p: probe.Probe, kind: str) -> Tensor:
    """The main gradient's error of a layer of upstream's with the option."""
    parallel = p.upstream("megatron.core.tensor_parallel")
    config = p.upstream("megatron.core").ModelParallelConfig(
        gradient_accumulation_fusion=True, use_cpu_initialization=p.lane == "cpu", params_dtype=torch.float32
    )
    more = {"input_is_parallel": True, "skip_bias_add": False} if kind == "RowParallelLinear" else {}
    layer = getattr(parallel, kind)(
        24, 40, config=config, init_method=torch.nn.init.normal_, bias=False, tp_group=ALONE, **more
    )
    generator = torch.Generator().manual_seed(p.seed)
    device = torch.cuda.current_device()
    layer = layer.to(device)
    layer.weight.main_grad = torch.zeros(40, 24, device=device)
    x, grad = (torch.randn(10, 1, n, generator=generator).to(device) for n in (24, 40))
    out, _ = layer(x)
    out.backward(grad)
    return layer.weight.main_grad.double() - grad[:, 0].double().t() @ x[:, 0].double()  # type: ignore[no-any-return]


def check_layers(p: probe.Probe) -> None:
    """The layers that refuse the option, and the deferred gradient of an embedding that imports Apex by itself."""
    kind = "ColumnParallelLinear"
    off = p.attempt(f"{kind} with gradient_accumulation_fusion", partial(built, p, kind), REFUSED)
    if off is not None:
        p.guard(f"{kind}: main_grad", off.norm().item() / 15, FP32, reference=EXACT)
    utils = p.upstream("megatron.core.utils")
    dtype, main = dtypes(p)[-1 if p.lane == "cuda" else 0]
    layer = Linear(p, 24, 40, dtype, main)
    inputs, grads = (list(part) for part in zip(*(layer.drawn(count) for count in (9, 30, 4)), strict=True))
    config = SimpleNamespace(sequence_parallel=False, gradient_accumulation_fusion=True)

    def drained(inputs: list[Tensor], grads: list[Tensor]) -> bool:
        utils.drain_embedding_wgrad_compute(config, inputs, grads, layer.weight, ALONE)
        return True

    name = "deferred gradients of an embedding"
    if p.attempt(name, partial(drained, inputs, grads), MISSING):
        p.guard(f"{name}: main_grad", layer.error, HALF, reference=EXACT)
        inputs, grads = (list(part) for part in zip(*(layer.drawn(500) for _ in range(3)), strict=True))
        given = sum(tensor.numel() for tensor in (*inputs, *grads))
        written = p.operators(partial(drained, inputs, grads)).written / given
        p.guard(f"{name}: numbers written for each that is given", written, 0.25, reference="products alone")
        p.guard(f"{name}: main_grad where work is counted", layer.error, HALF, reference=EXACT)


def check_work(p: probe.Probe) -> None:
    """What a backward pass writes, as a trainer runs it who fuses where upstream can."""
    dtype, main = dtypes(p)[-2 if p.lane == "cuda" else 0]
    layer = Linear(p, 512, 256, dtype, main)

    def backward(count: Callable[[Callable[[], Any]], Any]) -> Any:
        x, grad = layer.drawn(64)
        out = layer.forward(x)
        return count(partial(layer.backward, out, grad))

    backward(lambda call: call())
    written = backward(p.operators).written / layer.weight.numel()
    # the gradient for the hooks is made and left unwritten, 64 tokens are an eighth of the weight's 512
    p.error("numbers written for each of the weight", written, 1.5, reference="each once", bug_above=2)
    if p.lane == "cuda":
        backward(p.launches)  # the profiler's first
        p.note("kernels of a backward pass", backward(p.launches)[0])
    p.guard("main_grad where work is counted", layer.error, HALF if dtype != main else FP32, reference=EXACT)
    if p.lane == "cuda":
        layer = Linear(p, 4096, 4096, torch.bfloat16, torch.float32)
        x, grad = layer.drawn(12288)

        def step() -> None:
            layer.backward(layer.forward(x), grad)

        p.note("12,288 tokens, 4,096 by 4,096, forward and weight gradient", p.milliseconds(step, 20, 5), unit="ms")
        torch.cuda.synchronize()
        out, before = layer.forward(x), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        layer.backward(out, grad)
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / layer.weight.nbytes
        p.note("memory of a backward pass, in weights", peak)


@contextlib.contextmanager
def beside(module: str, value: ModuleType | None) -> Iterator[None]:
    """All of Megatron is imported again beside another ``module``, or as if there were none; the last checks."""
    with mock.patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
            del sys.modules[name]  # whichever has kept a product, or whether there is one
        sys.modules[module] = value  # type: ignore[assignment]
        yield


def check_others(p: probe.Probe) -> None:
    """Apex is taken where it is installed; without it and Transformer Engine the option is refused as ever."""
    apex, calls = ModuleType(APEX), list[str]()
    apex.wgrad_gemm_accum_fp32 = lambda *args: calls.append("fp32")  # type: ignore[attr-defined]
    apex.wgrad_gemm_accum_fp16 = lambda *args: calls.append("16 bits")  # type: ignore[attr-defined]
    with beside(APEX, apex):
        layers = p.guard_attempt("beside Apex: import", partial(importlib.import_module, LAYERS))
        if layers is not None:
            layer = Linear(p, 8, 8, torch.float32, torch.float32)
            layer.layers, layer.fused = layers, True
            x, grad = layer.drawn(4)
            layer.forward(x).backward(grad)
            p.guard("beside Apex: its products that were not called", calls != ["fp32"], 0, reference="called once")
    with beside("transformer_engine.pytorch.cpp_extensions", None):
        layers = p.guard_attempt("without both: import", partial(importlib.import_module, LAYERS))
        if layers is not None:
            p.guard("without both: available", bool(layers._grad_accum_fusion_available), 0, reference="it is not")


def prepare(p: probe.Probe) -> None:
    """What minimal() needs beside upstream."""
    try:
        p.transformer_engine()
    except (ImportError, OSError) as problem:
        raise probe.CannotTest(f"Transformer Engine cannot be imported: {problem}") from problem
    if importlib.util.find_spec(APEX) is not None:
        raise probe.CannotTest("Apex is installed, which Megatron asks first", "use an environment without it")
    p.megatron_cpu()


def reproduce(p: probe.Probe) -> None:
    prepare(p)
    check_off(p)  # first, so that a census has these calls of both trees
    check_layers(p)
    check_values(p)
    check_orders(p)
    check_marks(p)
    check_work(p)
    check_others(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=46, package="megatron", minimal=minimal, prepare=prepare)
