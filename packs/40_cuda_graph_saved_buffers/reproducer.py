# /// script
# requires-python = ">=3.12"
# dependencies = [
#     "megatron-core==0.19.0", "transformer-engine[pytorch]==2.13.0", "torch>=2.8", "triton==3.6.0", "numpy", "einops",
#     "hypothesis",
# ]
# ///
"""Layers in Megatron's local CUDA graphs have wrong gradients where autograd saved the very tensor they were given.

Memory of a graph's inputs and outputs is given to the graphs captured next by replacing the tensor's data in place,
unless an autograd function written in Python saved it. What torch's norms, activations and products saved, the backward
graph reads after later graphs have written there. Needs a GPU and Transformer Engine, by whose weak references it is
done.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reproducers import probe


def minimal():
    """The gradient of eight functions, called and then replayed; needs a GPU and Transformer Engine."""
    import torch
    from megatron.core.transformer import TransformerConfig, cuda_graphs

    config = TransformerConfig(num_layers=8, num_attention_heads=1, cuda_graph_impl="local")
    layers, grads = [torch.nn.RMSNorm(256, device="cuda").requires_grad_(False) for _ in range(8)], []
    for layer in layers:
        cuda_graphs.CudaGraphManager(config, layer, "forward")
    start = torch.randn(512, 256, device="cuda", requires_grad=True)
    for _ in ("called", "replayed"):
        x = start
        for layer in layers:
            x = x + layer.forward(x)
        grads.append(torch.autograd.grad(x.sin().sum(), start)[0].clone())
        cuda_graphs.create_cudagraphs()
    print("off by", error := float((grads[1] - grads[0]).norm() / grads[0].norm()), "should be 0")
    assert error < 1e-4


GRAPHS = "megatron.core.transformer.cuda_graphs"
LAYERS, TOKENS, WIDTH = 12, 512, 256
# Called and replayed layers run the same kernels on the same numbers. Sums by atomic additions, which none of these
# needs, would move fp32 by a few 2**-24 and bf16 by a few 2**-8.
SAME = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
WRONG = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class Swish(torch.autograd.Function):
    """An autograd function written in Python, which saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


# what a layer adds to its input, by its weight [h, h] and the network's scale [T, 1], which wants no gradient
KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "rms_norm": lambda x, weight, scale: F.rms_norm(x, x.shape[-1:], weight[0]),
    "layer_norm": lambda x, weight, scale: F.layer_norm(x, x.shape[-1:], weight[0], weight[1]),
    "gelu": lambda x, weight, scale: F.gelu(x) * weight[0],
    "linear": lambda x, weight, scale: F.linear(x, weight),
    "product": lambda x, weight, scale: x * x.sigmoid() * weight[0],
    "scaled": lambda x, weight, scale: (x + weight[0]) * scale,
    "softmax": lambda x, weight, scale: (x @ weight).softmax(-1),
    "python": lambda x, weight, scale: Swish.apply(x) + weight[0],
    "shifted": lambda x, weight, scale: weight[0].expand_as(x),
}


class Layer(nn.Module):
    """x + what its kind makes of it, as one function or, with the input given back, as two."""

    def __init__(self, kind: str, width: int, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()
        weight = torch.randn(width, width, generator=generator, device="cuda") * width**-0.5
        self.weight, self.kind = nn.Parameter(weight.to(dtype)), KINDS[kind]
        self.weight.main_grad = torch.zeros(width, width, device="cuda")  # type: ignore[attr-defined]

    def run(self, x: Tensor, scale: Tensor) -> Tensor:
        return x + self.kind(x, self.weight, scale)

    def begin(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.kind(x, self.weight, scale)

    def end(self, residual: Tensor, made: Tensor) -> Tensor:
        return residual + made


class Network:
    """Layers in CUDA graphs of their own; ``halves``: two graphs a layer, of which the first gives its input back."""

    def __init__(
        self, p: probe.Probe, kinds: list[str], tokens: int = TOKENS, width: int = WIDTH, halves: bool = False,
        keywords: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0,
    ) -> None:  # fmt: skip
        self.graphs = p.upstream(GRAPHS)
        self.graphs.delete_cuda_graphs()
        config = p.upstream("megatron.core.transformer").TransformerConfig(
            num_layers=len(kinds), hidden_size=width, num_attention_heads=1, cuda_graph_impl="local"
        )
        generator = torch.Generator("cuda").manual_seed(p.seed + seed)
        self.layers = [Layer(kind, width, dtype, generator) for kind in kinds]
        for layer in self.layers:
            for name in ("begin", "end") if halves else ("run",):
                self.graphs.CudaGraphManager(config, layer, name)
        self.halves, self.keywords, self.dtype = halves, keywords, dtype
        draw = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(dtype)  # noqa: E731
        self.inputs = [(draw(tokens, width), draw(tokens, 1), draw(tokens, width)) for _ in range(2)]
        self.bytes = self.inputs[0][0].nbytes  # of one activation
        torch.cuda.synchronize()  # a manager changes the stream

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        for layer in self.layers:
            given: dict[str, Any] = {"x": x, "scale": scale} if self.keywords else {}
            args = () if self.keywords else (x, scale)
            x = layer.end(*layer.begin(*args, **given)) if self.halves else layer.run(*args, **given)
        return x

    def step(self, which: int) -> list[Tensor]:
        """Output, the input's gradient, then the weights', for one of two inputs; all cloned."""
        x, scale, towards = self.inputs[which]
        x = x.clone().requires_grad_()
        for layer in self.layers:
            layer.weight.grad = None
            layer.weight.main_grad.zero_()
        out = self.forward(x, scale.clone())
        kept = out.detach().clone()  # its memory is another graph's once the backward pass begins
        out.backward(towards)
        assert x.grad is not None
        # a replay adds to main_grad, a call leaves .grad
        weights = [layer.weight.main_grad if layer.weight.grad is None else layer.weight.grad for layer in self.layers]
        torch.cuda.synchronize()
        return [found.detach().float().clone() for found in (kept, x.grad, *weights)]

    def errors(self) -> tuple[float, float]:
        """Largest relative error of outputs, then of gradients: four replays, two of each input, against calls."""
        called = [self.step(which) for which in (0, 1)]
        self.capture()
        worst = [0.0, 0.0]
        for which in (0, 1, 1, 0):
            for at, (found, wanted) in enumerate(zip(self.step(which), called[which], strict=True)):
                error = float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))
                worst[at > 0] = max(worst[at > 0], error if math.isfinite(error) else 1e9)
        return worst[0], worst[1]

    def capture(self) -> float:
        """Create the graphs; returns how much memory of their pool stays in use, in activations."""
        for layer in self.layers:  # as data parallelism leaves them: what is in .grad, a graph may add once more
            layer.weight.grad = None
        self.graphs.create_cudagraphs()
        gc.collect()
        pool = tuple(self.graphs.CudaGraphManager.global_mempool)
        segments = torch.cuda.memory_snapshot()
        used = [segment["allocated_size"] for segment in segments if tuple(segment["segment_pool_id"]) == pool]
        return sum(used) / self.bytes


def check(p: probe.Probe, name: str, kinds: list[str], guard: bool = False, **options: Any) -> None:
    """Gradients of a network, and its outputs, which are right in both arms."""
    outputs, gradients = Network(p, kinds, **options).errors()
    dtype = options.get("dtype", torch.float32)
    limit, bug = SAME[dtype], WRONG[dtype]
    p.guard(f"outputs of {name}", outputs, limit, reference="the same layers, called")
    if guard:
        p.guard(f"gradients of {name}", gradients, limit, reference="the same layers, called")
    else:
        p.error(f"gradients of {name}", gradients, limit, reference="the same layers, called", bug_above=bug)


def check_drawn(p: probe.Probe) -> None:
    """Any kinds of layer in a row, in any shape and dtype, as one graph or two, by position or keyword."""
    from hypothesis import strategies as st

    def wrong(kinds: list[str], seed: int, tokens: int, width: int, **options: Any) -> float:
        network = Network(p, kinds, tokens, 8 * width, seed=seed, **options)
        return max(network.errors()) * SAME[torch.float32] / SAME[network.dtype]

    saved = [kind for kind in KINDS if kind not in ("python", "shifted")]
    space = {
        "kinds": st.lists(st.sampled_from(saved), min_size=6, max_size=12), "tokens": st.integers(2, 700),
        "width": st.integers(1, 40), "halves": st.booleans(), "keywords": st.booleans(),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16]), "seed": st.integers(0, 9999),
    }  # fmt: skip
    p.drawn("drawn layers: outputs and gradients", wrong, SAME[torch.float32], space=space, count=16,
            reference="the same layers, called; bf16 in proportion to its roundings", bug_above=1e-3)  # fmt: skip


def check_transformer(p: probe.Probe) -> None:
    """Megatron's own layers by its specification without Transformer Engine, whose norms are torch's."""
    graphs = p.upstream(GRAPHS)
    graphs.delete_cuda_graphs()
    config = p.upstream("megatron.core.transformer").TransformerConfig(
        num_layers=4, hidden_size=WIDTH, num_attention_heads=4, cuda_graph_impl="local", normalization="RMSNorm",
        hidden_dropout=0.0, attention_dropout=0.0, gradient_accumulation_fusion=False, bias_dropout_fusion=False,
    )  # fmt: skip
    specs = p.upstream("megatron.core.models.gpt.gpt_layer_specs")
    spec = specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    block = p.upstream("megatron.core.transformer.transformer_block").TransformerBlock(config, spec).cuda()
    names = [type(layer.input_layernorm).__name__ for layer in block.layers]
    p.note("norms of the local specification", ", ".join(sorted(set(names))))
    parameters = dict(block.named_parameters())
    generator = torch.Generator("cuda").manual_seed(p.seed)
    for parameter in parameters.values():
        parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]
    given, towards = (torch.randn(128, 2, WIDTH, generator=generator, device="cuda") for _ in range(2))

    def step() -> dict[str, Tensor]:
        for parameter in parameters.values():
            parameter.grad = None
            parameter.main_grad.zero_()  # type: ignore[attr-defined]
        x = given.clone().requires_grad_()
        block(x, None).backward(towards)
        torch.cuda.synchronize()
        found = {name: q.main_grad if q.grad is None else q.grad for name, q in parameters.items()}  # type: ignore[attr-defined]
        return {name: grad.clone() for name, grad in found.items()}

    called = step()
    for parameter in parameters.values():
        parameter.grad = None
    graphs.create_cudagraphs()
    replayed = step()
    errors = {name: float((replayed[name] - was).norm() / was.norm()) for name, was in called.items() if was.any()}
    worst = max(errors, key=errors.__getitem__)
    p.note("parameter of TransformerLayer whose gradient is farthest off", worst)
    p.error("gradients of TransformerLayer", errors[worst], 1e-3,  # attention's backward may add in any order
            reference="the same layers, called", bug_above=0.05)  # fmt: skip


def check_memory(p: probe.Probe) -> None:
    """What the graphs keep is far from a buffer a layer: memory that nobody needs is given on, as before."""
    for kind in ("shifted", "rms_norm"):
        network = Network(p, [kind] * LAYERS)
        network.step(0)
        # input, output and the gradients of both would be 4 a layer; the first and the last layer have some to keep
        p.guard(f"activations that the graphs of {LAYERS} {kind} layers keep", network.capture(), LAYERS / 2,
                reference="less than one for two layers")  # fmt: skip


def prepare(p: probe.Probe) -> None:
    """What minimal() needs beside upstream."""
    try:
        p.transformer_engine()
    except (ImportError, OSError) as error:
        raise probe.CannotTest(f"Transformer Engine cannot be imported: {error}") from error
    p.megatron_cpu()
    random = p.upstream("megatron.core.tensor_parallel.random")
    random.model_parallel_cuda_manual_seed(p.seed, use_cudagraphable_rng=True, force_reset_rng=True)
    if not getattr(p.upstream(GRAPHS), "HAVE_TE_GRAPHS", False):
        raise probe.CannotTest("this Transformer Engine has no weak references", "pass --needs DIR of another")


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        raise probe.CannotTest("CUDA graphs need a GPU", "pass --lane cuda there")
    prepare(p)
    check(p, "layers with torch's norm", ["rms_norm"] * LAYERS)
    check(p, "such layers in bf16", ["rms_norm"] * LAYERS, dtype=torch.bfloat16)
    check(p, "such layers, given by keyword", ["rms_norm"] * LAYERS, keywords=True)
    check(p, "such layers that give their input back", ["rms_norm"] * LAYERS, halves=True)
    check(p, "layers with torch's product", ["linear"] * LAYERS)
    check(p, "layers with a factor that wants no gradient", ["scaled"] * LAYERS)
    check(p, "layers with an autograd function in Python", ["python"] * LAYERS, guard=True)
    check(p, "layers that save nothing", ["shifted"] * LAYERS, guard=True)
    check_drawn(p)
    check_transformer(p)
    check_memory(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=40, package="megatron", minimal=minimal, prepare=prepare)
