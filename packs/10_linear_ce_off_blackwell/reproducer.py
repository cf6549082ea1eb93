# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "megatron-core @ git+https://github.com/NVIDIA/Megatron-LM@d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1",
#     "torch>=2.8", "triton==3.6.0", "numpy", "einops",
# ]
# ///
"""Megatron's fused linear cross entropy refuses every GPU whose compute capability is not 10.x.

``cross_entropy_fusion_impl="linear"`` is accepted anywhere, and the first loss then raises ``ValueError: Unsupported
architecture``. On 10.x itself a missing cutlass surfaces as ``AttributeError: module ... has no attribute 'forward'``.
What must work instead is the contract that the Blackwell entry documents: reductions, ignored labels, tensor and
sequence parallel, both gradients, and no tensor as large as the logits.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe


def minimal() -> None:
    """The fused loss on this GPU, whatever its compute capability is."""
    import torch
    from megatron.core.fusions.fused_linear_cross_entropy import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, 128, device="cuda", dtype=torch.bfloat16) / 128**0.5
    labels = torch.arange(64, device="cuda")
    loss = linear_cross_entropy(hidden, weight, labels)  # ValueError: Unsupported architecture: 9
    want = torch.nn.functional.cross_entropy(hidden.float() @ weight.float().T, labels)
    print(f"loss {loss.item():.4f}, torch's {want.item():.4f}")
    torch.testing.assert_close(loss, want, rtol=1e-3, atol=1e-3)


FUSION = "megatron.core.fusions.fused_linear_cross_entropy"
BLACKWELL = "megatron.core.fusions.linear_cross_entropy.blackwell.entry"
SOURCE = "megatron/core/fusions/fused_linear_cross_entropy.py"
OTHERS = ((7, 5), (8, 0), (8, 6), (8, 9), (11, 0), (12, 0), (12, 1))  # Turing to Blackwell's smaller chips
# fp32: sums of a few thousand terms; bf16: every element is rounded (2**-9) as d_logits and again as the gradient
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
BF16_LOSS = 1e-5  # exact inputs, fp32 logits; one rounding of a logit to bf16 would lose 3e-4


def refused() -> probe.Signature:
    """No kernels for this compute capability."""
    return probe.Signature("ValueError", r"Unsupported architecture: \d+", SOURCE)


def no_cutlass() -> probe.Signature:
    """Kernels for this compute capability that could not be imported."""
    return probe.Signature("AttributeError", r"blackwell\.entry' has no attribute 'forward'", SOURCE)


def relative(got: Tensor, want: Tensor) -> float:
    """Norm of the error over the norm of the fp64 reference."""
    return ((got.double() - want).norm() / want.norm()).item() if got.shape == want.shape else math.inf


@contextlib.contextmanager
def on_capability(p: probe.Probe, version: tuple[int, int]) -> Iterator[None]:
    """torch.cuda says ``version``; Megatron asks it once a process, so that answer is forgotten before and after."""
    fusion: Any = p.upstream(FUSION)
    with mock.patch.object(torch.cuda, "is_available", lambda: True), \
         mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: version):  # fmt: skip
        try:
            fusion.Platform._instance = None
            fusion._get_platform.cache_clear()
            yield
        finally:
            fusion.Platform._instance = None
            fusion._get_platform.cache_clear()


def problem(tokens: int, width: int, vocab: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """hidden [tokens, width] and weight [vocab, width] of logits with variance 4, labels [tokens] (some -100)."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator)
    weight = torch.randn(vocab, width, generator=generator) * 2 / width**0.5
    labels = torch.randint(vocab, (tokens,), generator=generator)
    labels[::5] = -100
    device = torch.cuda.current_device()
    return hidden.to(device, dtype), weight.to(device, dtype), labels.to(device)


def upstream_gradient(reduction: str, tokens: int, like: Tensor) -> Tensor:
    """As a loss mask would have it: a different weight for every token, or one for the reduced loss."""
    weights = torch.linspace(0.5, 1.5, tokens, device=like.device)
    return weights if reduction == "none" else weights[-1]


def reference(hidden: Tensor, weight: Tensor, labels: Tensor, reduction: str, ignore: int) -> list[Tensor]:
    """[loss, d_hidden, d_weight] by torch's own cross entropy in fp64."""
    h, w = (t.detach().double().requires_grad_() for t in (hidden, weight))
    loss = torch.nn.functional.cross_entropy(h @ w.t(), labels, reduction=reduction, ignore_index=ignore)
    grads = torch.autograd.grad(loss, [h, w], upstream_gradient(reduction, len(labels), loss).double())
    return [loss.detach(), *grads]


def fused(p: probe.Probe, hidden: Tensor, weight: Tensor, labels: Tensor, reduction: str, ignore: int,
          group: Any = None, sequence_parallel: bool = False) -> list[Tensor]:  # fmt: skip
    """[loss, d_hidden, d_weight] by Megatron's public function."""
    h, w = (t.detach().requires_grad_() for t in (hidden, weight))
    loss = p.upstream(FUSION).linear_cross_entropy(h, w, labels, group, reduction, ignore, sequence_parallel)
    grads = torch.autograd.grad(loss, [h, w], upstream_gradient(reduction, len(labels), loss))
    return [loss.detach(), *grads]


def compare(p: probe.Probe, case: str, got: list[Tensor], want: list[Tensor], scale: float = 1.0) -> None:
    """Check the relative errors of [loss, d_hidden, d_weight]; an error of a logit grows with its ``scale``."""
    for name, mine, true in zip(("loss", "d_hidden", "d_weight"), got, want, strict=True):
        limit = BF16_LOSS if name == "loss" else LIMIT[mine.dtype] * scale
        p.error(f"{case}: {name}", relative(mine, true), limit, reference="torch cross entropy in fp64")


def check_dispatch(p: probe.Probe) -> None:
    """Every capability gives a loss; 10.x takes its own kernels where they can be imported."""
    h, w, y = problem(8, 16, 32, torch.float32, p.seed)
    cutlass = importlib.util.find_spec("cutlass") and importlib.util.find_spec("cuda.bindings")
    for version in (*OTHERS, (10, 0), (10, 3)):
        case = f"capability {version[0]}.{version[1]}: loss and gradients"
        if version[0] == 10 and cutlass:
            p.skip(case, "cutlass is installed here, and its kernels need the real GPU")
            continue
        with on_capability(p, version):
            signature = no_cutlass() if version[0] == 10 else refused()
            got = p.attempt(case, partial(fused, p, h, w, y, "none", -100), signature)
        if got is not None:
            worst = max(map(relative, got, reference(h, w, y, "none", -100)))
            p.error(f"{case}: largest error", worst, LIMIT[torch.float32], reference="torch cross entropy in fp64")
    entry: Any = p.upstream(BLACKWELL)
    kernels = (mock.sentinel.forward, mock.sentinel.backward)  # in place of the two compiled kernels
    with mock.patch.multiple(entry, create=True, forward=kernels[0], backward=kernels[1]), on_capability(p, (10, 0)):
        platform = p.upstream(FUSION)._get_platform()
        taken = (platform.forward_func, platform.backward_func)
    p.guard("capability 10.0 with its kernels there takes others", taken != kernels, 0, reference="blackwell.entry")
    accepted = False
    with mock.patch.object(torch.cuda, "is_available", lambda: False), contextlib.suppress(AssertionError):
        accepted = bool(p.upstream(FUSION).Platform())
    p.guard("a host without CUDA is accepted", accepted, 0, reference="AssertionError")


def check_contract(p: probe.Probe) -> None:
    """Reductions, ignored labels, extreme logits and a vocabulary of any size at capability 9.0."""
    f32, bf16 = torch.float32, torch.bfloat16
    cases = [(f32, "none", -100, 5000, 1.0), (f32, "sum", -100, 5000, 1.0), (f32, "mean", -100, 5000, 1.0),
             (f32, "none", 7, 96, 1.0), (f32, "mean", -100, 4097, 100.0), (bf16, "none", -100, 5000, 1.0)]  # fmt: skip
    for dtype, reduction, ignore, vocab, scale in cases:
        case = f"{str(dtype)[6:]} {reduction} ignore {ignore} vocabulary {vocab} logits x{scale:g}"
        h, w, y = problem(24, 64, vocab, dtype, p.seed)
        w = w * scale
        y = y.masked_fill(y == -100, ignore)
        with on_capability(p, (9, 0)):
            got = p.attempt(f"{case}: runs", partial(fused, p, h, w, y, reduction, ignore), refused())
        if got is None:
            continue
        compare(p, case, got, reference(h, w, y, reduction, ignore), scale)
        changed = [got[0].dtype != torch.float32, got[1].dtype != dtype, got[2].dtype != dtype]
        p.error(f"{case}: wrong dtypes", sum(changed), 0, reference="fp32 loss, gradients as their inputs")


def check_rank(p: probe.Probe, rank: int) -> None:
    """One of two tensor-parallel ranks: half the vocabulary each, with sequence parallel half the tokens as well."""
    p.megatron_cpu(tensor_model_parallel_size=2)
    group = p.upstream("megatron.core.parallel_state").get_tensor_model_parallel_group()
    h, w, y = problem(24, 64, 9000, torch.float32, p.seed)
    for reduction, split_tokens in (("none", False), ("mean", False), ("none", True)):
        case = f"tensor{' and sequence' if split_tokens else ''} parallel {reduction}, rank {rank} of 2"
        mine = h.chunk(2)[rank] if split_tokens else h
        with on_capability(p, (9, 0)):
            call = partial(fused, p, mine, w.chunk(2)[rank], y, reduction, -100, group, split_tokens)
            got = p.attempt(f"{case}: runs", call, refused())
        if got is not None:
            loss, dh, dw = reference(h, w, y, reduction, -100)
            compare(p, case, got, [loss, dh.chunk(2)[rank] if split_tokens else dh, dw.chunk(2)[rank]])


class Largest(TorchDispatchMode):
    """The most elements that any single tensor made under it has."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [t.numel() for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made


def module(p: probe.Probe, weight: Tensor) -> Any:
    """Megatron's output layer for the fused loss, as GPTModel builds it."""
    config = p.upstream("megatron.core.transformer.transformer_config").TransformerConfig(
        num_layers=1, hidden_size=weight.shape[1], num_attention_heads=1, cross_entropy_loss_fusion=True,
        cross_entropy_fusion_impl="linear", gradient_accumulation_fusion=False, params_dtype=weight.dtype,
        use_cpu_initialization=True, perform_initialization=False)  # fmt: skip
    layers = p.upstream("megatron.core.transformer.linear_cross_entropy")
    layer = layers.LinearCrossEntropyModule(weight.shape[1], weight.shape[0], config=config, init_method=lambda w: w,
                                            bias=False, skip_bias_add=False, gather_output=False)  # fmt: skip
    layer.to(weight.device)
    layer.weight.data.copy_(weight)
    return layer


def run_module(p: probe.Probe, impl: str, layer: Any, hidden: Tensor, labels: Tensor) -> list[Tensor]:
    """[loss [tokens], d_hidden, d_weight] of the output layer with ``impl``; hidden [s, b, h], labels [b, s]."""
    h = hidden.detach().requires_grad_()
    if impl == "linear":
        loss = layer(h, labels=labels, output_cross_entropy_loss=True)  # [b, s]
    else:  # as LanguageModule.compute_language_model_loss does under impl "native"
        native = p.upstream("megatron.core.fusions.fused_cross_entropy").fused_vocab_parallel_cross_entropy
        loss = native(layer(h)[0], labels.t().contiguous(), layer.tp_group).t()
    gradient = upstream_gradient("none", labels.numel(), loss).view_as(loss)
    grads = torch.autograd.grad(loss, [h, layer.weight], gradient)
    return [loss.detach().flatten(), grads[0].flatten(0, 1), grads[1]]


def check_module(p: probe.Probe, tokens: int, width: int, vocab: int) -> None:
    """bf16 through the real output layer: fused against fp64 and against impl "native", with what each costs."""
    hidden, weight, labels = problem(tokens, width, vocab, torch.bfloat16, p.seed)
    labels = labels.clamp_min(0)  # native knows no ignored label
    layer, want = module(p, weight), reference(hidden, weight, labels, "none", -100)
    args = (layer, hidden[:, None], labels[None])  # [s, 1, h], [1, s]
    native = partial(run_module, p, "native", *args)
    # native's logits are rounded to bf16 (2**-9 of up to 8) before the loss
    for name, mine, true in zip(("loss", "d_hidden", "d_weight"), native(), want, strict=True):
        p.guard(f"native {name}", relative(mine, true), 1e-2, reference="torch cross entropy in fp64")
    call = partial(run_module, p, "linear", *args)
    with on_capability(p, (9, 0)) if p.lane == "cpu" else contextlib.nullcontext():  # a GPU speaks for itself
        got = p.attempt("fused loss of the output layer: runs", call, refused())
        if got is None:
            return
        compare(p, "fused output layer", got, want)
        cost_on_gpu(p, call, native, layer, hidden) if p.lane == "cuda" else cost_on_cpu(p, call, native, layer, hidden)


def cost_on_cpu(p: probe.Probe, call: Any, native: Any, layer: Any, hidden: Tensor) -> None:
    shares = {}
    for name, run in (("fused", call), ("native", native)):
        with Largest() as seen:
            run()
        shares[name] = seen.elements / (hidden.shape[0] * layer.weight.shape[0])
    p.error("fused: largest tensor, share of the logits", shares["fused"], 0.5, reference="[tokens, vocabulary]")
    p.note("native: largest tensor, share of the logits", shares["native"])


def cost_on_gpu(p: probe.Probe, call: Any, native: Any, layer: Any, hidden: Tensor) -> None:
    """Peak bytes over what is there before the call, and the median time of forward with backward."""
    peaks = {}
    for name, run in (("fused", call), ("native", native)):
        run()
        torch.cuda.synchronize()
        rest = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peaks[name] = (torch.cuda.max_memory_allocated() - rest) / 2**30
        times = []
        for _ in range(11):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        p.note(f"{name}: forward and backward, median of 11", statistics.median(times), unit="ms")
    gradients = (layer.weight.numel() + hidden.numel()) * 2
    logits = hidden.shape[0] * layer.weight.shape[0] * 2
    p.error("fused: peak over its inputs", peaks["fused"], (gradients + logits) / 2**30, unit="GiB",
            reference="both gradients and the whole logits in bf16")  # fmt: skip
    p.note("native: peak over its inputs", peaks["native"], unit="GiB")


def prepare(p: probe.Probe) -> None:
    """For ``minimal``: without a GPU Megatron is told of one of capability 9.0."""
    p.megatron_cpu()
    if p.lane == "cpu":
        torch.cuda.is_available = lambda: True
        torch.cuda.get_device_capability = lambda device=None: (9, 0)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # native's elementwise functions: compiling them takes longer
        p.upstream(FUSION)  # once, for both ranks
    if p.lane == "cpu" or torch.cuda.device_count() > 1:
        p.ranks(2, partial(check_rank, p))
    else:
        p.skip("tensor parallel", "needs two GPUs")
    p.megatron_cpu()
    check_dispatch(p)
    check_contract(p)
    check_module(p, *((4096, 3584, 65536) if p.lane == "cuda" else (64, 16, 16384)))


if __name__ == "__main__":
    probe.main(reproduce, pack=10, package="megatron", minimal=minimal, prepare=prepare)
