# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis"]
# ///
"""Absorbed MLA and DSA's indexer copy each of their queries twice where they could be written in place.

The product of absorbed MLA is copied to be contiguous, and again to be joined with the channels that turn; the indexer
splits its queries, joins them after RoPE, and autograd joins their gradients. What RoPE itself writes is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from reproducers import probe


def minimal():
    """DSA's indexer joins its queries once more than RoPE does, which passes on what does not turn."""
    from types import SimpleNamespace as Some

    import torch
    from megatron.core.transformer.experimental_attention_variant import dsa

    names = ("apply_rope_fusion", "rotary_interleaved", "dsa_indexer_rope_interleaved")
    config = Some(**dict.fromkeys(names, False))
    cp, query, freqs = Some(size=lambda: 1), torch.randn(8, 1, 4, 32), torch.randn(8, 1, 1, 16)
    sizes = {"qk_pos_emb_head_dim": 16, "index_head_dim": 32}
    indexer = Some(config=config, pg_collection=Some(cp=cp), **sizes)
    with torch.profiler.profile() as alone:
        dsa.apply_rotary_pos_emb(query, freqs, config, cp_group=cp)
    with torch.profiler.profile() as whole:
        dsa.DSAIndexer._apply_rope(indexer, query, freqs, 1.0)
    joins = [sum(one.name == "aten::cat" for one in run.events()) for run in (alone, whole)]
    print("joins of RoPE, and of the indexer:", joins)
    assert joins[0] == joins[1]


VARIANT = "megatron.core.transformer.experimental_attention_variant."
EXACT = "fp64, each product and rotation by its formula"
# a layer norm of few channels multiplies what was rounded before it, by a hundred and more, and a gradient comes of
# five products and turns, each rounded
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2**-4}
MOVES = ("cat", "stack", "clone", "copy_", "_to_copy", "slice_backward")
SIZES = {"heads": 4, "nope": 8, "pe": 4, "rank": 12, "lora": 16, "value": 6, "index_heads": 3, "index": 8}


class Moved(TorchDispatchMode):
    """Numbers that operators copy from one tensor to another as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if op.overloadpacket.__name__ in MOVES:
            self.count += made.numel()
        return made


class Unseen(torch.autograd.Function):
    """A function of one tensor, forward and backward, whose operators are not shown to what counts."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
        with _disable_current_modes(), torch.enable_grad():
            ctx.leaf = t.detach().requires_grad_()
            ctx.out = turn(ctx.leaf)
            return ctx.out.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        with _disable_current_modes():
            return torch.autograd.grad(ctx.out, ctx.leaf, grad)[0], None


class Layer:
    """Megatron's own layer of absorbed MLA with DSA and its indexer, on one rank, without norms."""

    def __init__(self, p: probe.Probe, dtype: torch.dtype, interleaved: bool = False, **sizes: int) -> None:
        self.p, self.dtype, self.interleaved, self.s = p, dtype, interleaved, SIZES | sizes
        self.dsa, self.mla = (p.upstream(VARIANT + name) for name in ("dsa", "absorbed_mla"))
        norm = p.upstream("megatron.core.transformer.torch_norm").WrappedTorchNorm
        config = self.mla.MLATransformerConfig(
            num_layers=1,
            hidden_size=32,
            num_attention_heads=self.s["heads"],
            q_lora_rank=self.s["lora"],
            kv_lora_rank=self.s["rank"],
            qk_head_dim=self.s["nope"],
            qk_pos_emb_head_dim=self.s["pe"],
            v_head_dim=self.s["value"],
            experimental_attention_variant="dsa",
            dsa_indexer_n_heads=self.s["index_heads"],
            dsa_indexer_head_dim=self.s["index"],
            dsa_indexer_topk=4,
            dsa_indexer_rotate_activation=False,
            dsa_indexer_rope_interleaved=interleaved,
            rope_type="rope",
            rotary_base=100,
            add_bias_linear=False,
            use_cpu_initialization=True,
            transformer_impl="local",
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
        )
        column, row = self.mla.ColumnParallelLinear, self.mla.tensor_parallel.RowParallelLinear

        class Duplicated(column):  # type: ignore[misc,valid-type]  # the same on one rank; Megatron's own is in TE only
            def __init__(self, *sizes: int, parallel_mode: str, **options: Any) -> None:
                super().__init__(*sizes, gather_output=False, **options)

        spec = self.mla.ModuleSpec
        parts: Any = self.dsa.DSAIndexerSubmodules(Duplicated, Duplicated, norm, Duplicated)
        parts = self.dsa.DSAttentionSubmodules(spec(self.dsa.DSAIndexer, submodules=parts))
        core = spec(self.dsa.DSAttention, submodules=parts)
        identity = p.upstream("megatron.core.transformer.identity_op").IdentityOp
        names = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
        parts = self.mla.AbsorbedMLASelfAttentionSubmodules(
            **dict.fromkeys(names, column),
            core_attention=core,
            linear_proj=row,
            q_layernorm=identity,
            kv_layernorm=identity,
        )
        torch.manual_seed(p.seed)
        self.module = self.mla.AbsorbedMLASelfAttention(config, parts, 1, self.mla.AttnMaskType.causal)
        self.module.to(torch.cuda.current_device(), dtype)
        with torch.no_grad():  # as if trained: of the order of one, and no number like another
            for weight in self.module.parameters():
                weight.copy_(torch.randn(weight.shape) * weight.shape[-1] ** -0.5)

    def weights(self, indexed: bool) -> dict[str, Tensor]:
        names = {name: one for name, one in self.module.named_parameters()}
        kept = ("q_down", "q_up", "kv_down", "kv_up")
        return {
            n: w for n, w in names.items() if (".indexer." in n) == indexed and (indexed or any(k in n for k in kept))
        }

    def queries(self, hidden: Tensor, low: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
        return self.module.get_query_key_value_tensors(hidden, None, self.packed(lengths))  # type: ignore[no-any-return]

    def indexed(self, hidden: Tensor, low: Tensor, lengths: list[int]) -> tuple[Tensor, ...]:
        indexer = self.module.core_attention.indexer
        return indexer.forward_before_topk(hidden, low, self.packed(lengths))  # type: ignore[no-any-return]

    def packed(self, lengths: list[int]) -> Any:
        """The record of packed sequences; none where there is no length."""
        if not lengths:
            return None
        cu = torch.tensor([0, *lengths]).cumsum(0).int().to(torch.cuda.current_device())
        parameters = self.p.upstream("megatron.core.packed_seq_params").PackedSeqParams
        longest = {"max_seqlen_q": max(lengths), "max_seqlen_kv": max(lengths)}
        return parameters(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu, **longest)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """RoPE's own operators are not counted."""
        with ExitStack() as stack:
            for module in (self.dsa, self.mla):
                real = module.apply_rotary_pos_emb

                def turn(t: Tensor, *args: Any, real: Any = real, **named: Any) -> Tensor:
                    made: Tensor = Unseen.apply(t, lambda x: real(x, *args, **named))
                    return made

                stack.enter_context(mock.patch.object(module, "apply_rotary_pos_emb", turn))
            yield


def rotated(x: Tensor, lengths: list[int], width: int, paired: bool) -> Tensor:
    """The first ``width`` channels of x [s, b, n, d] turned in fp64 by their places from 0 in each sequence."""
    places = [at for length in lengths or [len(x)] for at in range(length)]
    place = torch.tensor(places, device=x.device).double()
    turns = place[:, None] * 100.0 ** (-2 * torch.arange(width // 2, device=x.device).double() / width)
    cos, sin = turns.cos()[:, None, None], turns.sin()[:, None, None]
    a, b = (x[..., 0:width:2], x[..., 1:width:2]) if paired else (x[..., : width // 2], x[..., width // 2 : width])
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., width:]), -1)


def queries(layer: Layer, weights: dict[str, Tensor], hidden: Tensor, low: Tensor, lengths: list[int]) -> list[Tensor]:
    """Queries, keys and low-rank queries of absorbed MLA in fp64."""
    s, w = layer.s, {name.split(".")[0]: weight for name, weight in weights.items()}
    low = hidden @ w["linear_q_down_proj"].T
    q = (low @ w["linear_q_up_proj"].T).unflatten(-1, (s["heads"], -1))
    up = w["linear_kv_up_proj"].unflatten(0, (s["heads"], -1))[:, : s["nope"]]
    latent = (hidden @ w["linear_kv_down_proj"].T).unsqueeze(-2)
    content = torch.einsum("sbnd,ndk->sbnk", q[..., : s["nope"]], up)
    turned = (rotated(x, lengths, s["pe"], True) for x in (q[..., s["nope"] :], latent[..., s["rank"] :]))
    made = [torch.cat(pair, -1) for pair in zip((content, latent[..., : s["rank"]]), turned, strict=True)]
    return [one.squeeze(1) if lengths else one for one in (*made, low)]


def indexed(layer: Layer, weights: dict[str, Tensor], hidden: Tensor, low: Tensor, lengths: list[int]) -> list[Tensor]:
    """Queries, keys and weights of the indexer in fp64."""
    s, w = layer.s, {name.split("indexer.")[1]: weight for name, weight in weights.items()}
    q = (low @ w["linear_wq_b.weight"].T).unflatten(-1, (s["index_heads"], -1))
    k = nn.functional.layer_norm(hidden @ w["linear_wk.weight"].T, (s["index"],), w["k_norm.weight"], w["k_norm.bias"])
    q, k = (rotated(x, lengths, s["pe"], layer.interleaved) for x in (q, k.unsqueeze(-2)))
    scale = (s["index_heads"] * s["index"]) ** -0.5
    return [q, k.squeeze(-2), hidden @ w["linear_weights_proj.weight"].T * scale]


class Case:
    """One of a layer's two methods on the same inputs as its formula in fp64."""

    def __init__(self, layer: Layer, what: str, lengths: list[int], tokens: int = 5, batch: int = 1) -> None:
        self.layer, self.lengths, self.index = layer, lengths, what == "indexer"
        self.call = layer.indexed if self.index else layer.queries
        self.formula = indexed if self.index else queries
        generator = torch.Generator().manual_seed(layer.p.seed + 1)
        shape = (sum(lengths), 1) if lengths else (tokens, batch)
        self.draw = lambda *size: torch.randn(size, generator=generator).to(torch.cuda.current_device(), layer.dtype)
        self.hidden, self.low = self.draw(*shape, 32), self.draw(*shape, layer.s["lora"])
        self.weights = layer.weights(self.index)

    def made(self) -> list[Tensor]:
        return [*self.call(self.hidden, self.low, self.lengths)]

    def step(self, frozen: str = "") -> list[Tensor]:
        """Results and gradients; of what has ``frozen`` in its name none is wanted."""
        leaves = {"hidden": self.hidden, "low": self.low} | self.weights
        wanted = {name: one for name, one in leaves.items() if (self.index or name != "low")}
        for name, one in wanted.items():
            one.requires_grad_(not frozen or frozen not in name)
        wanted = {name: one for name, one in wanted.items() if one.requires_grad}
        out = self.made()
        if not hasattr(self, "grads"):
            self.grads = [self.draw(*one.shape) for one in out]
        pairs = [(one, grad) for one, grad in zip(out, self.grads, strict=True) if one.requires_grad]
        found = torch.autograd.grad([one for one, _ in pairs], list(wanted.values()), [grad for _, grad in pairs])
        for one in leaves.values():
            one.requires_grad_(isinstance(one, nn.Parameter))
        self.named = [f"out {at}" for at in range(len(out))] + list(wanted)
        return [*(one.detach() for one in out), *found]

    def exact(self) -> dict[str, Tensor]:
        leaves = {"hidden": self.hidden, "low": self.low} | self.weights
        double = {name: one.detach().double().requires_grad_() for name, one in leaves.items()}
        weights = {name: one for name, one in double.items() if name in self.weights}
        out = self.formula(self.layer, weights, double["hidden"], double["low"], self.lengths)
        grads = torch.autograd.grad(out, list(double.values()), [g.double() for g in self.grads], allow_unused=True)
        named = {f"out {at}": one.detach() for at, one in enumerate(out)}
        return named | {name: grad for name, grad in zip(double, grads, strict=True) if grad is not None}

    def error(self, frozen: str = "") -> float:
        """The largest relative error; infinite where an input, a gradient or a projection's output was written to."""
        outputs, hooks = list[tuple[Tensor, Tensor]](), list[Any]()

        def seen(module: nn.Module, args: Any, out: Any) -> None:
            outputs.append((out[0].detach(), out[0].detach().clone()))

        for name, module in self.layer.module.named_modules():
            if name.startswith("linear_") or ".linear_" in name:
                hooks.append(module.register_forward_hook(seen))
        given = [self.hidden, self.low, *self.weights.values(), *getattr(self, "grads", [])]
        before = [one.detach().clone() for one in given]
        found = self.step(frozen)
        for hook in hooks:
            hook.remove()
        kept = all(torch.equal(one, other) for one, other in [*zip(given, before, strict=True), *outputs])
        true, worst = self.exact(), 0.0 if kept else math.inf
        for name, one in zip(self.named, found, strict=True):
            fits = one.shape == true[name].shape and one.dtype == self.layer.dtype
            # a gradient of nothing but zeros has no norm
            norm = true[name].norm().clamp(min=1e-30)
            worst = max(worst, ((one.double() - true[name]).norm() / norm).item() if fits else math.inf)
        contiguous = self.index or all(one.is_contiguous() for one in found[:3])
        return worst if contiguous else math.inf


def moved(case: Case, call: Callable[[], Any]) -> float:
    """Numbers that are copied for each of the queries, but for RoPE's; in a second call."""
    with case.layer.unseen():
        call()
        with Moved() as count:
            call()
    return count.count / case.made()[0].numel()


WORK: dict[str, tuple[str, dict[str, int]]] = {
    "absorbed MLA": ("queries", {"heads": 16, "nope": 16, "pe": 8, "rank": 64}),
    "the indexer, half of whose channels turn": ("indexer", {"index_heads": 16, "index": 16, "pe": 8}),
    "the indexer, all of whose channels turn": ("indexer", {"index_heads": 16, "index": 8, "pe": 8}),
}


def check_work(p: probe.Probe) -> None:
    errors = list[float]()
    for what, (method, sizes) in WORK.items():
        for lengths in ([], [100, 156]):
            name = what + ", packed" * bool(lengths)
            case = Case(Layer(p, torch.float32, **sizes), method, lengths, 128, 2)
            errors.append(case.error())
            step, first = moved(case, case.step), moved(case, partial(evaluated, case))
            # the gradient of a split is joined, a third of the queries; keys are one head of 16; the weight is a part
            p.error(f"moved in a step: {name}", step, 0.8, reference="what turned is put in place", bug_above=1.8)
            p.error(
                f"moved without gradients: {name}", first, 0.3, reference="what turned is put in place", bug_above=0.9
            )
    p.guard("errors where work is counted", max(errors), LIMITS[torch.float32], reference=EXACT)


def evaluated(case: Case) -> list[Tensor]:
    with torch.no_grad():
        return case.made()


def check_values(p: probe.Probe, dtype: torch.dtype) -> None:
    """Sizes, packing and options that nobody can foresee; each weight frozen, and the input."""
    from hypothesis import strategies as st

    name = str(dtype).removeprefix("torch.")

    def measure(method: str, lengths: list[int], tokens: int, batch: int, frozen: str, **sizes: Any) -> float:
        sizes["pe"] *= 2
        sizes["index"] += sizes["pe"]
        case = Case(Layer(p, dtype, **sizes), method, lengths, tokens, batch)
        first = case.error()
        case.hidden.data.copy_(case.draw(*case.hidden.shape))
        for weight in case.weights.values():
            weight.data.copy_(case.draw(*weight.shape) * weight.shape[-1] ** -0.5)
        second = case.error(frozen)
        with torch.inference_mode():
            found = [one.clone() for one in case.made()]
        plain = [one.detach() for one in case.made()]
        alike = all(map(torch.equal, found, plain)) and all(map(torch.equal, evaluated(case), plain))
        return max(first, second) if alike else math.inf

    space = {
        "method": st.sampled_from(["queries", "indexer"]),
        "lengths": st.one_of(st.just([]), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        "tokens": st.integers(1, 5),
        "batch": st.integers(1, 3),
        "frozen": st.sampled_from(["", "hidden", "linear_q_up", "linear_kv_up", "linear_kv_down", "wq_b", "k_norm"]),
        "interleaved": st.booleans(),
        "heads": st.integers(1, 4),
        "nope": st.integers(1, 9),
        "pe": st.integers(2, 5),
        "rank": st.integers(1, 9),
        "value": st.integers(1, 5),
        "index_heads": st.integers(1, 3),
        "index": st.one_of(st.just(0), st.integers(1, 5)),
    }
    p.drawn(f"{name}: results and gradients, drawn", measure, LIMITS[dtype], space=space, count=12, reference=EXACT)


def check_contexts(p: probe.Probe) -> None:
    """Calls that overlap, gradients of gradients, autocast, and weights of another dtype under it."""
    for method in ("queries", "indexer"):
        case = Case(Layer(p, torch.float32), method, [], 4, 2)
        before = [one.clone() for one in case.step()]
        leaf = case.hidden.requires_grad_()
        outs = [case.made()[0], case.call(2 * leaf, 2 * case.low, [])[0]]
        grads = [
            torch.autograd.grad(out, leaf, case.grads[0], retain_graph=True, allow_unused=True)[0] for out in outs * 2
        ]
        same = all(
            one is other is None or torch.equal(one, other) for one, other in zip(grads[:2], grads[2:], strict=True)
        )
        written = not torch.equal(outs[0], before[0])
        p.guard(f"{method}: an earlier result was written over", written, 0, reference="it is as it was")
        p.guard(f"{method}: a second backward differs", not same, 0, reference="the first")
        weight = next(one for name, one in case.weights.items() if "kv_up" in name or "wq_b" in name)
        up = case.grads[0].clone().requires_grad_()
        (first,) = torch.autograd.grad(case.made()[0], weight, up, create_graph=True)
        error = math.inf
        if first.requires_grad:  # linear in up: its gradient along v is the result's change along v
            v = torch.randn_like(weight)
            (second,) = torch.autograd.grad(first, up, v)
            with torch.no_grad():
                plain, kept = case.made()[0], weight.clone()
                weight += v
                change = case.made()[0] - plain
                weight.copy_(kept)
            error = ((second - change).norm() / change.norm()).item()
        p.guard(f"{method}: gradient of the gradient", error, 1e-4, reference="the change of the result along it")
        leaf.requires_grad_(False)
        again = case.step()
        p.guard(f"{method}: a later step differs", not all(map(torch.equal, before, again)), 0, reference="the first")
        with torch.autocast(leaf.device.type, torch.bfloat16):
            found = p.guard_attempt(f"{method}: autocast", case.made)
        off = max(
            ((one.double() - other.double()).norm() / other.double().norm()).item()
            for one, other in zip(found or before, before, strict=False)
        )
        p.guard(f"{method}: autocast: results", off, 2**-5, reference="those without, in bf16")
        torch._dynamo.reset()
        with p.unwatched():
            graph = torch.compile(case.made, backend="aot_eager", fullgraph=True)
            found = p.guard_attempt(f"{method}: as one graph", graph)
            if found is not None:
                with mock.patch.object(case, "made", graph):
                    off = case.error()
                p.guard(f"{method}: as one graph: results and gradients", off, LIMITS[torch.float32], reference=EXACT)
        waits = p.waits(case.step)
        p.guard(f"{method}: host waits", waits.total(), 0, reference="the host knows all shapes")


def check_gpu(p: probe.Probe) -> None:
    """Times of a step at NAM56R's sizes with DeepSeek's ranks, and its peak."""
    big = {"heads": 32, "nope": 128, "pe": 64, "rank": 512, "lora": 1536, "value": 128, "index_heads": 32, "index": 128}
    for method in ("queries", "indexer"):
        case = Case(Layer(p, torch.bfloat16, **big), method, [], 4096, 3)
        case.step()
        torch.cuda.reset_peak_memory_stats()
        case.step()
        p.note(f"{method}: peak", torch.cuda.max_memory_allocated() / 2**30, unit="GiB")
        replay = p.graph(case.step)[0].replay  # the host launches upstream's steps slower than a GPU runs them
        p.note(f"{method}: step of 12,288 tokens", p.milliseconds(replay, 10, 3), unit="ms")
        p.launches(case.step)
        p.note(f"{method}: kernels", p.launches(case.step)[0])
    case = Case(Layer(p, torch.float32), "indexer", [3, 5])
    packed = case.layer.packed

    def on_host(lengths: list[int]) -> Any:
        found = packed(lengths)
        found.cu_seqlens_q, found.cu_seqlens_kv = found.cu_seqlens_q.cpu(), found.cu_seqlens_kv.cpu()
        return found

    with mock.patch.object(case.layer, "packed", on_host):
        p.guard("the indexer, lengths on the host", case.error(), LIMITS[torch.float32], reference=EXACT)


def reproduce(p: probe.Probe) -> None:
    p.megatron_cpu()
    check_work(p)
    for dtype in LIMITS:
        check_values(p, dtype)
    check_contexts(p)
    if p.lane == "cuda":
        check_gpu(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=50, package="megatron", minimal=minimal, prepare=lambda p: p.megatron_cpu())
