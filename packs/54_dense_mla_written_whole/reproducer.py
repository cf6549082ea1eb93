# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "packaging", "hypothesis"]
# ///
"""Unfused MLA writes queries, keys and values by pass after pass over all heads where one each way would do.

``MLASelfAttention.get_query_key_value_tensors`` turns a part of the queries, joins it with what does not turn, joins
keys and copies values; autograd joins the gradients of queries, and those of keys and values. MLA with ``rope_type``
rope, and all MLA of a model that has DSA layers, must take this way: they refuse RoPE fusion.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from reproducers import probe


def minimal():
    """Queries and keys are joined of what turns and what does not; backward, autograd joins gradients."""
    from unittest.mock import Mock

    import torch
    from megatron.core.transformer.multi_latent_attention import MLASelfAttention

    sizes = {"kv_lora_rank": 8, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}
    no = dict.fromkeys(("apply_rope_fusion", "rotary_interleaved", "q_lora_rank"))
    mla = Mock(num_attention_heads_per_partition=4, q_head_dim=24, tp_group=None)
    mla.config, mla.recompute_up_proj = Mock(rope_type="rope", **sizes, **no), False
    mla.cache_mla_latents, sizes = False, (16, 96, 128, 8)
    hidden, q, kv, pos = (torch.ones(8, 1, n, device="cuda", requires_grad=n > 8) for n in sizes)
    mla._qkv_down_projection.return_value, mla.kv_layernorm = (hidden, hidden), torch.nn.Identity()
    mla.linear_q_proj.return_value, mla.linear_kv_up_proj.return_value = (q, None), (kv, None)
    mla.rotary_pos_emb.return_value = pos[:, :, None]
    outs = MLASelfAttention.get_query_key_value_tensors(mla, hidden)[:3]
    print("made by:", names := [out.grad_fn.name() for out in outs])
    assert "CatBackward0" not in names


MLA = "megatron.core.transformer.multi_latent_attention"
EMBEDDINGS = "megatron.core.models.common.embeddings"
EXACT = "the same in fp64, by single operators"
STEPS = "upstream's own rotation, and torch.cat"
# fp32 rounds products and the sum. The others round cosine, sine, both products and the sum, each to half of the last
# of 11 or of 8 bits; the two terms of a pair have at most sqrt(2) of its norm: (2 sqrt(2) + 1) / 2 last bits are all
# that can be lost. Triton's interpreter cuts bf16 off where it should round, which loses twice as much. The gradient of
# the keys' shared channels is a sum over heads, rounded once
LIMITS = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}
LAYOUTS = ("whole", "part", "batch first", "every other", "one token for all")
GRADS = ("whole", "part", "heads first", "one number for all")
SIZES = {"heads": 3, "nope": 8, "pe": 4, "value": 6}
RANK = 5  # channels of the latent, which go nowhere here


def drawn(p: probe.Probe, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(p.seed + seed)
    return torch.randn(shape, generator=generator).to(torch.cuda.current_device())


def laid(p: probe.Probe, dtype: torch.dtype, shape: tuple[int, ...], layout: str, seed: int) -> Tensor:
    """Numbers [tokens, batch, ...] that lie in memory as ``layout`` says."""
    s, b, *rest = shape

    def make(*sizes: int) -> Tensor:
        return drawn(p, *sizes, seed=seed).to(dtype)

    made: dict[str, Callable[[], Tensor]] = {
        "whole": lambda: make(*shape),
        "part": lambda: make(*shape[:-1], shape[-1] + 8)[..., 8:],
        "batch first": lambda: make(b, s, *rest).transpose(0, 1),
        "every other": lambda: make(*shape[:-1], 2 * shape[-1])[..., ::2],
        "one token for all": lambda: make(1, *shape[1:]).expand(shape),
        "heads first": lambda: make(*reversed(shape)).permute(*reversed(range(len(shape)))),
        "one number for all": lambda: make(1).expand(shape),
    }
    return made[layout]()


class Given(nn.Module):
    """In place of a projection: gives what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.out: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor | None, None]:
        return self.out, None


class Layer:
    """Megatron's own dense MLA on one rank, whose projections give tensors of ours."""

    def __init__(self, p: probe.Probe, rope_type: str = "rope", low: bool = True, dsa: bool = False, **sizes: Any):
        self.p, self.s, self.low = p, SIZES | sizes, low
        self.mla, utils = p.upstream(MLA), p.upstream(f"{EMBEDDINGS}.rope_utils")
        self.rotate = utils.apply_rotary_pos_emb
        longest = {"max_seqlen": 0} if "max_seqlen" in inspect.signature(self.rotate).parameters else {}
        self.told = longest.keys()  # on branch dev
        more: dict[str, Any] = {"dsa_indexer_n_heads": 2, "dsa_indexer_head_dim": 8, "dsa_indexer_topk": 4}
        config = self.mla.MLATransformerConfig(
            num_layers=1,
            hidden_size=16,
            num_attention_heads=self.s["heads"],
            q_lora_rank=8 if low else None,
            kv_lora_rank=RANK,
            qk_head_dim=self.s["nope"],
            qk_pos_emb_head_dim=self.s["pe"],
            v_head_dim=self.s["value"],
            rope_type=rope_type,
            rotary_base=100,
            original_max_position_embeddings=4,
            add_bias_linear=False,
            use_cpu_initialization=True,
            transformer_impl="local",
            **({"experimental_attention_variant": "dsa", **more} if dsa else {}),
        )
        column, row = self.mla.ColumnParallelLinear, self.mla.tensor_parallel.RowParallelLinear
        identity = p.upstream("megatron.core.transformer.identity_op").IdentityOp
        names = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")
        parts = self.mla.MLASelfAttentionSubmodules(
            **dict.fromkeys(names, column),
            core_attention=self.mla.ModuleSpec(identity),
            linear_proj=row,
            q_layernorm=identity,
            kv_layernorm=identity,
        )
        self.module = self.mla.MLASelfAttention(config, parts, 1, self.mla.AttnMaskType.causal)
        self.given = {name: Given() for name in names if hasattr(self.module, name)}
        for name, module in self.given.items():
            setattr(self.module, name, module)

    def packed(self, lengths: list[int], of_keys: list[int]) -> Any:
        """The record of sequences one after the other, none where there is no length."""
        if not lengths:
            return None
        cu, cu_keys = (
            torch.tensor([0, *each]).cumsum(0).int().to(torch.cuda.current_device()) for each in (lengths, of_keys)
        )
        cu_keys = cu if of_keys == lengths else cu_keys
        parameters = self.p.upstream("megatron.core.packed_seq_params").PackedSeqParams
        longest = {"max_seqlen_q": max(lengths), "max_seqlen_kv": max(of_keys)}
        return parameters(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu_keys, **longest)

    def tensors(self, given: list[Tensor], packed: Any = None, context: Any = None) -> list[Tensor]:
        """Upstream's query, key and value of what projections give: q and kv [s, b, heads x .], latent [s, b, .]."""
        q, kv, latent = given
        flat = (lambda t: t.squeeze(1)) if packed is not None else (lambda t: t)
        outs = {"linear_q_proj": q, "linear_q_up_proj": q, "linear_kv_up_proj": kv}
        for name, module in self.given.items():
            module.out = flat(outs[name]) if name in outs else latent
        hidden = torch.empty(*latent.shape[:2], 16, dtype=latent.dtype, device=latent.device)
        try:
            made = self.module.get_query_key_value_tensors(hidden, packed_seq_params=packed, inference_context=context)
        finally:
            for module in self.given.values():
                module.out = None
        return [*made[:3]]

    def stepwise(self, given: list[Tensor], packed: Any = None, context: Any = None) -> list[Tensor]:
        """The same by STEPS."""
        q, kv, latent = given
        flat = (lambda t: t.squeeze(1)) if packed is not None else (lambda t: t)
        heads, nope, pe, value = (self.s[name] for name in ("heads", "nope", "pe", "value"))
        q, kv = (flat(t).unflatten(-1, (heads, -1)) for t in (q, kv))
        rotary, config = self.module.rotary_pos_emb, self.module.config
        rows = rotary.get_rotary_seq_len(context, None, latent, config, packed)
        found = rotary(rows, packed_seq=packed is not None)
        freqs, mscale = found if config.rope_type == "yarn" else (found, 1.0)
        if context is not None:
            freqs = freqs[context.sequence_len_offset :][: len(q)]
        elif packed is None or config.context_parallel_size == 1:
            freqs = freqs[: len(q)]
        options: dict[str, Any] = {"mscale": mscale, "mla_rotary_interleaved": True, "config": config}
        turned = []
        for t, which in ((q[..., nope:], "q"), (flat(latent)[..., RANK:].unsqueeze(-2), "kv")):
            cu = packed and getattr(packed, f"cu_seqlens_{which}")
            longest = dict.fromkeys(self.told, packed and getattr(packed, f"max_seqlen_{which}"))
            cp = self.module.pg_collection.cp
            turned.append(self.rotate(t, freqs.to(t.device), cu_seqlens=cu, cp_group=cp, **options, **longest))
        shared = turned[1].expand(*turned[1].shape[:-2], heads, pe)
        joined = (torch.cat(pair, -1) for pair in ((q[..., :nope], turned[0]), (kv[..., :nope], shared)))
        return [*joined, kv[..., nope : nope + value].contiguous()]


class Case:
    """Inputs of a layer, compared with fp64 and bit by bit."""

    def __init__(
        self,
        layer: Layer,
        dtype: torch.dtype,
        tokens: int = 5,
        batch: int = 2,
        lengths: list[int] | None = None,
        of_keys: list[int] | None = None,
        layout: str = "whole",
        upward: str = "whole",
        context: Any = None,
    ) -> None:
        self.layer, self.dtype, self.p, self.context = layer, dtype, layer.p, context
        self.packed = layer.packed(lengths or [], of_keys or lengths or [])
        tokens, batch = (sum(lengths), 1) if lengths else (tokens, batch)
        heads, nope, pe, value = (layer.s[name] for name in ("heads", "nope", "pe", "value"))
        sizes = (heads * (nope + pe), heads * (nope + value), RANK + pe)
        self.given = [laid(self.p, dtype, (tokens, batch, size), layout, at) for at, size in enumerate(sizes)]
        first = (tokens, heads) if lengths else (tokens, batch, heads)
        shapes = ((*first, size) for size in (nope + pe, nope + pe, value))
        self.grads = [laid(self.p, dtype, shape, upward, 4 + at) for at, shape in enumerate(shapes)]

    def step(
        self, call: Callable[..., list[Tensor]] | None = None, wanted: str = "qkl", double: bool = False
    ) -> list[Tensor]:
        """Results, and gradients of those of q, kv and latent that are ``wanted``."""
        given = [t.detach().to(torch.float64) if double else t.detach() for t in (*self.given, *self.grads)]
        leaves = [t.requires_grad_(name in wanted) for t, name in zip(given[:3], "qkl", strict=True)]
        outs = (call or self.layer.tensors)(leaves, packed=self.packed, context=self.context)
        found = [(out, grad) for out, grad in zip(outs, given[3:], strict=True) if out.requires_grad]
        wants = [t for t in leaves if t.requires_grad]
        grads = torch.autograd.grad([out for out, _ in found], wants, [grad for _, grad in found]) if wants else ()
        return [*(out.detach() for out in outs), *grads]

    def evaluated(self) -> list[Tensor]:
        with torch.no_grad():
            return self.layer.tensors(self.given, packed=self.packed, context=self.context)

    def error(self, wanted: str = "qkl") -> float:
        """The largest error, infinite where an input changed, or a result is not whole or has another's memory."""
        before = [t.clone() for t in (*self.given, *self.grads)]
        found, true = self.step(wanted=wanted), self.step(self.layer.stepwise, wanted, True)
        with torch.inference_mode():
            results = [t.clone() for t in self.layer.tensors(self.given, packed=self.packed, context=self.context)]
        alike = all(map(torch.equal, results, found)) and all(map(torch.equal, self.evaluated(), found))
        kept = all(map(torch.equal, before, (*self.given, *self.grads)))
        ours = {t.untyped_storage().data_ptr() for t in found[:2]}  # values of one head may be where they were
        apart = len(ours) == 2 and ours.isdisjoint(t.untyped_storage().data_ptr() for t in self.given)
        whole = all(t.is_contiguous() for t in found[:3])
        return off(found, true, self.dtype) if alike and kept and apart and whole else math.inf

    def unlike(self, wanted: str = "qkl") -> int:
        """Numbers unlike STEPS."""
        pairs = zip(self.step(wanted=wanted), self.step(self.layer.stepwise, wanted), strict=True)
        return sum(int((one != other).sum()) if one.dtype == other.dtype else one.numel() for one, other in pairs)

    def again(self) -> None:
        """Other numbers in the same tensors, whose versions stay as they were."""
        for seed, t in enumerate((*self.given, *self.grads)):
            if 0 not in t.stride():
                t.data.copy_(drawn(self.p, *t.shape, seed=seed + 10).to(t.dtype))


def off(found: list[Tensor], true: list[Tensor], dtype: torch.dtype) -> float:
    """The largest error, infinite where dtype or shape is another's."""
    worst = 0.0
    for one, other in zip(found, true, strict=True):
        alike = one.dtype == dtype and one.shape == other.shape
        norm = other.double().norm().clamp(min=1e-30)  # a gradient may be nothing but zeros
        worst = max(worst, ((one.double() - other).norm() / norm).item() if alike else math.inf)
    return worst


class Work(TorchDispatchMode):
    """Passes over all heads, by operators and by Triton's kernels, and on the cpu lane all numbers that these write.

    A pass writes, or may write, at least ``least`` numbers. ``read``: by the host, which waits for them on a GPU.
    """

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.passes, self.written, self.read = least, 0, 0, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        alias = [one.alias_info for one in op._schema.returns]
        name = op.overloadpacket.__name__
        self.read += name in ("_local_scalar_dense", "nonzero", "equal")
        fills = not (alias[0] and not alias[0].is_write) and "empty" not in name
        if isinstance(made, Tensor) and fills:  # neither a view nor memory alone
            self.written += made.numel()
            self.passes += made.numel() >= self.least
        return made

    @contextmanager
    def counting(self, lane: str) -> Iterator[None]:
        """Also kernels; what the interpreter does to move their arguments is not shown."""
        from triton.runtime import interpreter, jit

        kind, name = (interpreter.GridExecutor, "__call__") if lane == "cpu" else (jit.JITFunction, "run")
        run, builder = getattr(kind, name), interpreter.InterpreterBuilder
        store = builder.create_masked_store

        def launch(kernel: Any, *args: Any, **named: Any) -> Any:
            tensors = [one for one in (*args, *named.values()) if isinstance(one, Tensor)]
            self.passes += any(one.numel() >= self.least for one in tensors)
            with _disable_current_modes():
                return run(kernel, *args, **named)

        def write(at: Any, ptrs: Any, value: Any, mask: Any, *more: Any) -> Any:
            self.written += int(mask.data.sum())
            return store(at, ptrs, value, mask, *more)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(kind, name, launch))
            stack.enter_context(mock.patch.object(builder, "create_masked_store", write))
            stack.enter_context(self)
            yield


def work(case: Case, call: Callable[[], Any], least: int) -> Work:
    call()
    counted = Work(least)
    with counted.counting(case.p.lane):
        call()
    return counted


def check_work(p: probe.Probe) -> None:
    """Passes of a step and of a forward, and numbers written for each of query, key and value."""
    errors, heads = list[float](), 32
    kinds: dict[str, tuple[list[int], dict[str, Any]]] = {
        "rope": ([], {}),
        "packed, beside DSA": ([4, 5], {"dsa": True}),
        "YaRN, no low-rank query": ([], {"rope_type": "yarn", "low": False}),
    }
    for name, (lengths, options) in kinds.items():
        case = Case(Layer(p, heads=heads, nope=16, pe=8, value=16, **options), torch.float32, 4, 2, lengths)
        least = heads * 8 * min(lengths or [8])  # what turns of a sequence's queries
        errors.append(case.error())
        results = sum(t.numel() for t in case.evaluated())
        # a step: 64 channels of results, 56 of gradients, 1.88; RoPE of two heads beside 32, and the keys' one by single
        # operators; what is copied for each head writes 0.125 more each way
        for what, call, few, many, limit, bug in (
            ("a step", case.step, 6, 7, 2.12, 2.14),
            ("without gradients", case.evaluated, 3, 4, 1.14, 1.15),
        ):
            found = work(case, call, least)
            p.error(
                f"passes over all heads, {what}: {name}",
                found.passes,
                few,
                reference="each way one that writes queries, one for keys and values; or queries in two parts",
                bug_above=many,
            )
            if p.lane == "cpu":
                p.error(
                    f"written for each number, {what}: {name}",
                    found.written / results,
                    limit,
                    reference="each result and each gradient once, and tables",
                    bug_above=bug,
                )
    p.guard("errors where work is counted", max(errors), LIMITS[torch.float32], reference=EXACT)


SHAPES: dict[str, dict[str, Any]] = {  # some beyond what one program should hold
    "300 heads": {"heads": 300, "nope": 3, "pe": 2, "value": 5},
    "1,000 channels that do not turn": {"heads": 9, "nope": 1000, "pe": 6, "value": 3},
    "1,022 that turn": {"heads": 5, "nope": 5, "pe": 1022, "value": 3},
    "values of 1,500": {"heads": 5, "nope": 2, "pe": 2, "value": 1500},
    "nothing that does not turn": {"nope": 0},
}


def check_values(p: probe.Probe, dtype: torch.dtype) -> None:
    """Right, and as ever bit by bit, for shapes, strides and options that nobody can foresee."""
    from hypothesis import strategies as st

    name, unlike, rough = str(dtype).removeprefix("torch."), 0, p.lane == "cpu" and dtype == torch.bfloat16
    count = {"cuda": 40, "cpu": 3 if rough else 6}[p.lane]

    def measure(kind: tuple[str, bool, bool], sizes: dict[str, int], wanted: str, **options: Any) -> float:
        nonlocal unlike
        rope_type, low, dsa = kind
        sizes = {**sizes, "pe": 2 * sizes["pe"]}
        case = Case(Layer(p, rope_type, low, dsa, **sizes), dtype, **options)
        first, unlike = case.error(), unlike + case.unlike()
        case.again()
        unlike += case.unlike(wanted)
        return max(first, case.error(wanted))

    size = {"heads": st.integers(1, 5), "nope": st.integers(1, 9), "pe": st.integers(1, 5), "value": st.integers(1, 9)}
    space = {
        "kind": st.sampled_from([("rope", True, False), ("rope", False, True), ("yarn", True, False)]),
        "sizes": st.fixed_dictionaries(size),
        "wanted": st.sampled_from(["q", "k", "l", "qk", "ql", "kl"]),
        "tokens": st.integers(1, 2),
        "batch": st.integers(1, 2),
        "lengths": st.one_of(st.just([]), st.lists(st.integers(1, 3), min_size=1, max_size=2)),
        "layout": st.sampled_from(LAYOUTS),
        "upward": st.sampled_from(GRADS),
    }
    p.drawn(f"{name}: results and gradients, drawn", measure, LIMITS[dtype], space=space, count=count, reference=EXACT)
    for what, shape in SHAPES.items() if p.lane == "cuda" or dtype == torch.float32 else ():  # the interpreter is slow
        case = Case(Layer(p, "rope", **shape), dtype, 1, 2, layout="part", upward="part")
        unlike += case.unlike()
        p.guard(f"{name}: results and gradients, {what}", case.error(), LIMITS[dtype], reference=EXACT)
    if rough:
        p.skip(f"{name}: numbers unlike those of single operators", "Triton's interpreter does not round bf16")
    else:
        p.guard(f"{name}: numbers unlike those of single operators", unlike, 0, reference=STEPS)
        case = Case(Layer(p, rope_type="yarn"), dtype, lengths=[3, 2], layout="part", upward="heads first")
        p.digest(f"{name}: results and gradients", *case.step())


def check_packed(p: probe.Probe) -> None:
    """Keys packed otherwise than queries, a rank's part of sequences, and tables of the whole batch."""
    for dtype in (torch.float16, torch.float32) if p.lane == "cuda" else (torch.float32,):
        name = str(dtype).removeprefix("torch.")
        layer = Layer(p)
        case = Case(layer, dtype, lengths=[2, 3], of_keys=[3, 2])
        p.guard(f"{name}: keys packed otherwise: error", case.error(), LIMITS[dtype], reference=EXACT)
        unlike = case.unlike()
        case = Case(layer, dtype, lengths=[2, 3])
        case.packed.max_seqlen_q = case.packed.max_seqlen_kv = 5  # angles of places in the batch, but on branch dev
        p.guard(f"{name}: a length of all told as the longest: error", case.error(), LIMITS[dtype], reference=EXACT)
        unlike += case.unlike()
        case = Case(layer, dtype, lengths=[2, 4])
        two = layer.packed([4, 8], [4, 8])
        for rank in (0, 1):
            cp = SimpleNamespace(size=lambda: 2, rank=lambda rank=rank: rank)
            with mock.patch.object(layer.module.pg_collection, "cp", cp), mock.patch.object(case, "packed", two):
                layer.module.config.context_parallel_size = 2
                p.guard(f"{name}: part {rank} of two: error", case.error(), LIMITS[dtype], reference=EXACT)
                unlike += case.unlike()
        p.guard(f"{name}: packed: numbers unlike those of single operators", unlike, 0, reference=STEPS)


def check_neighbours(p: probe.Probe) -> None:
    """What upstream's code also takes is the same as ever: other tables, dtypes, classes and pairs, and inference."""
    s, b, pe, wrong = 4, 2, SIZES["pe"], list[str]()

    def told(what: str, layer: Layer, dtype: torch.dtype = torch.float32, tokens: int = s, **options: Any) -> None:
        if Case(layer, dtype, tokens, b, **options).unlike():
            wrong.append(what)

    tables: dict[str, tuple[int, ...]] = {
        "angles of a pair that differ": (s, 1, 1, pe),
        "angles of each sequence": (s, b, 1, pe),
        "angles of all tokens": (1, 1, 1, pe),
        "angles of half the channels": (s, 1, 1, pe // 2),
    }
    for what, shape in tables.items():
        layer = Layer(p)
        freqs = 8 * drawn(p, *shape, seed=7)
        layer.module.rotary_pos_emb.forward = lambda *_, freqs=freqs, **__: freqs
        for dtype in (torch.float32, torch.float16):
            told(f"{what}, {dtype}", layer, dtype)
    told("fp64", Layer(p), torch.float64)
    told("no tokens", Layer(p), tokens=0)
    layer = Layer(p)
    layer.module.config.rotary_interleaved = True
    told("pairs of what is in order", layer)
    layer, odd = Layer(p, pe=3), drawn(p, s, 1, 1, 3)
    layer.module.rotary_pos_emb.forward = lambda *_, **__: odd
    told("three channels that turn", layer)
    for offset in (0, 3):
        context = SimpleNamespace(max_sequence_length=9, sequence_len_offset=offset, is_static_batching=lambda: True)
        told(f"inference from {offset}", Layer(p), context=context)
    case = Case(Layer(p), torch.float32, s, b)
    for at, what in enumerate(("queries", "keys and values", "latents")):
        case.given[at] = case.given[at].half()
        pairs = zip(case.evaluated(), case.layer.stepwise(case.given), strict=True)
        wrong += [f"{what} of another dtype"] * any(one.dtype != t.dtype or not torch.equal(one, t) for one, t in pairs)
        case.given[at] = case.given[at].float()
    p.guard("other inputs: results that changed", len(wrong), 0, reference=STEPS)
    p.note("the first of these", wrong[0] if wrong else "none")

    class Marked(Tensor):
        pass

    for at, what in enumerate(("queries", "keys and values", "latents")):
        given = [t.as_subclass(Marked) if at == which else t for which, t in enumerate(case.given)]
        both = list(zip(case.layer.tensors(given), case.layer.stepwise(given), strict=True))
        lost = any(type(one) is not type(t) or not torch.equal(one, t) for one, t in both)
        p.guard(f"{what} of another class become others", lost, 0, reference="its class")

    layer, freqs, grads = Layer(p), drawn(p, s, 1, 1, pe).requires_grad_(), list[Tensor]()
    layer.module.rotary_pos_emb.forward = lambda *_, **__: freqs
    for call in (layer.tensors, layer.stepwise):
        query, key, _ = call(case.given)
        grads += torch.autograd.grad((query, key), freqs, case.grads[:2]) if query.requires_grad else [0 * freqs]
    p.guard("gradient of angles that are learned differs", not torch.equal(*grads), 0, reference=STEPS)


def check_contexts(p: probe.Probe) -> None:
    """Calls that overlap, gradients of gradients, autocast, recomputation, and what is kept for the backward pass."""
    for lengths in ([], [2, 3]):
        name, layer = "packed" if lengths else "batch", Layer(p)
        case, other = (Case(layer, torch.float32, 2, 2, each) for each in (lengths, lengths[::-1]))
        other.given, other.grads = case.given, [2 * t for t in case.grads]
        leaves = [t.detach().requires_grad_() for t in case.given]
        runs = [layer.tensors(leaves, packed=one.packed) for one in (case, other)]
        kept = [t.detach().clone() for t in runs[0]]
        true = [one.step(layer.stepwise)[3:] for one in (case, other)]
        ups = [one.grads for one in (case, other)]
        errors = list[float]()
        for which in (0, 1, 0, 1):
            grads = torch.autograd.grad(runs[which], leaves, ups[which], retain_graph=True)
            errors.append(off([*grads], true[which], torch.float32))
        p.guard(f"{name}: gradients of two calls, twice", max(errors), 1e-6, reference=STEPS)
        changed = not all(map(torch.equal, kept, runs[0]))
        p.guard(f"{name}: an earlier result was written over", changed, 0, reference="it is as it was")
        up = [t.detach().requires_grad_() for t in case.grads]
        first = torch.autograd.grad(runs[0], leaves, up, create_graph=True)
        error = math.inf
        if all(t.requires_grad for t in first):  # the transpose of the transpose
            second = torch.autograd.grad(first, up, [t.detach() for t in leaves])
            error = off([*second], kept, torch.float32)
        p.guard(f"{name}: gradient of the gradient", error, 1e-6, reference="the results, which are linear")
        for at, what in enumerate(("query", "key", "value")):
            found, wanted = (
                torch.autograd.grad(call(leaves, packed=case.packed)[at], leaves, case.grads[at], allow_unused=True)
                for call in (layer.tensors, layer.stepwise)
            )
            grads, due = (
                [0 * t if g is None else g for t, g in zip(leaves, gs, strict=True)] for gs in (found, wanted)
            )
            error = off(grads, due, torch.float32)
            p.guard(f"{name}: gradients of the {what} alone", error, 1e-6, reference=STEPS)
        with torch.autocast(leaves[0].device.type, torch.bfloat16):
            cast = case.step()
        unlike = not all(map(torch.equal, cast, case.step()))
        p.guard(f"{name}: autocast changes the results", unlike, 0, reference="the same without")
        held(p, name, case)
        if not lengths:  # RoPE of packed sequences reads their lengths in this release
            p.guard(f"{name}: values that the host reads", work(case, case.step, 1).read, 0, reference="none")
        with torch.inference_mode():
            layer = Layer(p)
            layer.module.rotary_pos_emb.inv_freq = layer.module.rotary_pos_emb.inv_freq.clone()
        error = Case(layer, torch.float32, 2, 2, lengths).error()
        p.guard(f"{name}: angles made in inference mode", error, 1e-6, reference=EXACT)


def held(p: probe.Probe, name: str, case: Case) -> None:
    """What the graph keeps: numbers for each angle, and whether the inputs."""
    moved, seen = [2 * t.detach().requires_grad_() for t in case.given], dict[int, int]()

    def keep(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes() // t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        outs = case.layer.tensors(moved, packed=case.packed)
    tables = sum(seen.values()) / (case.given[0].shape[0] * case.layer.s["pe"])
    # packed one after the other, each sequence has tables of its own
    p.guard(f"{name}: tables kept for the backward pass", tables, 4, reference="cosines and sines of queries and keys")
    alive = [weakref.ref(t) for t in moved]
    del moved
    gc.collect()
    p.guard(f"{name}: inputs kept for the backward pass", sum(one() is not None for one in alive), 0, reference="none")
    del outs


def check_recomputed(p: probe.Probe) -> None:
    """``recompute_modules`` with mla_up_proj: results are thrown away, and made again for the backward pass."""
    layer = Layer(p)
    case, true = Case(layer, torch.float32), Case(layer, torch.float32).step(layer.stepwise)
    layer.module.recompute_up_proj = True
    leaves = [t.detach().requires_grad_() for t in case.given]
    layer.given.clear()  # nothing is taken back, for it is asked for again
    for name, t in zip(("linear_q_up_proj", "linear_kv_up_proj", "linear_kv_down_proj"), leaves, strict=True):
        getattr(layer.module, name).out = t
    layer.module.linear_q_down_proj.out = leaves[2]
    outs = layer.tensors(leaves)
    total = sum((out * grad).sum() for out, grad in zip(outs, case.grads, strict=True)) * 1.0
    layer.module.qkv_up_checkpoint.discard_output_and_register_recompute(total)
    total.backward()
    error = off([torch.zeros_like(t) if t.grad is None else t.grad for t in leaves], true[3:], torch.float32)
    p.guard("recomputed: error of the gradients", error, 1e-6, reference=STEPS)


def check_without_triton(p: probe.Probe) -> None:
    """The modules are imported anew where triton is not installed; the last check, for it is not undone."""
    before = Case(Layer(p), torch.float32).step()
    modules = [p.upstream(name) for name in (f"{EMBEDDINGS}.rope_utils", EMBEDDINGS, MLA)]
    for name in [name for name in sys.modules if name.startswith(("triton", "megatron.core.fusions"))]:
        del sys.modules[name]
    sys.modules["triton"] = None  # type: ignore[assignment]

    def step() -> list[Tensor]:
        for module in modules:
            importlib.reload(module)
        return Case(Layer(p), torch.float32).step()

    found = p.guard_attempt("without triton: import and step", step)
    unlike = found is not None and not all(map(torch.equal, found, before))
    p.guard("without triton: the results change", unlike, 0, reference="the same with it")


def check_gpu(p: probe.Probe) -> None:
    """Capture in a graph, memory beyond what 32 bits count, times and peaks."""
    layer = Layer(p)
    case, more = (Case(layer, torch.bfloat16, 64, 2) for _ in range(2))
    more.again()
    given = [t.clone() for t in case.given]
    graph, outs = p.graph(lambda: layer.tensors(given))
    for t, other in zip(given, more.given, strict=True):
        t.copy_(other)
    graph.replay()
    unlike = not all(map(torch.equal, outs, layer.stepwise(more.given)))
    p.guard("replay of a graph on other numbers: results that differ", unlike, 0, reference=STEPS)
    case, far = Case(layer, torch.bfloat16, 2, 3), 2**30 + 64
    for at, t in enumerate(case.given):
        apart = torch.empty(2 * far + t[:, 0].numel(), dtype=t.dtype, device="cuda")
        case.given[at] = apart.as_strided(t.shape, (t.shape[2], far, 1)).copy_(t)
    p.guard("sequences 2^30 numbers apart: results that differ", case.unlike(), 0, reference=STEPS)
    del case, apart
    for rows, lengths in ((4096, []), (0, [4096] * 3)):
        name = "12,288 tokens, packed" if lengths else "12,288 tokens"
        case = Case(Layer(p, heads=32, nope=128, pe=64, value=128), torch.bfloat16, rows, 3, lengths)
        case.step()
        torch.cuda.reset_peak_memory_stats()
        p.note(f"step of {name}", p.milliseconds(case.step, 30, 10), unit="ms")
        p.note(f"step of {name}: peak", torch.cuda.max_memory_allocated() / 2**30, unit="GiB")
        p.note(f"{name}, without gradients", p.milliseconds(case.evaluated, 30, 10), unit="ms")
        p.launches(case.step)
        p.note(f"step of {name}: kernels", p.launches(case.step)[0])


def prepare(p: probe.Probe) -> None:
    if p.lane == "cpu":
        p.triton_interpreter()
    p.megatron_cpu()


def reproduce(p: probe.Probe) -> None:
    prepare(p)
    check_work(p)
    for dtype in LIMITS:
        check_values(p, dtype)
    check_packed(p)
    check_neighbours(p)
    check_contexts(p)
    check_recomputed(p)
    if p.lane == "cuda":
        check_gpu(p)
    check_without_triton(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=54, package="megatron", minimal=minimal, prepare=prepare)
