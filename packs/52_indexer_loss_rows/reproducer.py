# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy<2.4", "einops", "hypothesis"]
# ///
"""DSA's indexer loss scores each query of packed sequences against every key of the packed batch, and masks the others.

A query sees keys of its own sequence only, and ``PackedSeqParams`` says on the host how long the longest is. What is
called is ``DSAttention.forward``, with an indexer that hands on given tensors. The work is counted by the elements that
operators write: on the meta device for large batches, and where values are compared with fp64.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from reproducers import probe


def minimal():
    """A packed batch of 8 sequences of 512 tokens: its loss makes a number for every pair of the 4096 tokens."""
    from types import SimpleNamespace as Some

    import torch
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer import MLATransformerConfig, enums
    from megatron.core.transformer.experimental_attention_variant import dsa

    x, bounds = torch.randn(4096, 1, 2, 8, requires_grad=True), torch.arange(0, 4097, 512)
    config = MLATransformerConfig(num_layers=1, num_attention_heads=2, dsa_indexer_loss_coeff=1.0)
    parts, groups = dsa.DSAttentionSubmodules(lambda: 0), Some(tp=Some(size=lambda: 1))
    layer = dsa.DSAttention(config, parts, 1, None, "", k_channels=8, pg_collection=groups)
    layer.index_topk, layer.indexer = 8, Some(forward_before_topk=lambda *_: (x, x.sum(2), x.sum(3)))
    dsa.DSAIndexerLossLoggingHelper.tracker["values"] = torch.zeros(1)
    packed = PackedSeqParams("thd", bounds, bounds, max_seqlen_q=512, max_seqlen_kv=512)
    with torch.profiler.profile(profile_memory=True) as profile:
        layer(x, x, x, None, x[0], x[0], None, enums.AttnMaskType.causal, None, packed)
    assert max(event.self_cpu_memory_usage for event in profile.events()) < 4 * 4096**2


FP32 = 1e-4  # of gradients, a tenth for the loss: fp32 sums of some hundred terms of either sign
BF16 = 4e-3  # gradients are rounded to bf16 for each block of rows, and their sum again: 2 x 2^-9 at most
LIMITS = {torch.float32: FP32, torch.bfloat16: BF16}
SCALE = 3.0  # of the loss's gradient: no power of two
COEFFICIENT = 0.1
VARIANT = "megatron.core.transformer.experimental_attention_variant."
DSA = VARIANT + "dsa"


@dataclass(frozen=True)
class Case:
    """A packed batch. ``lengths`` of its sequences in order, 0 for an empty one."""

    lengths: tuple[int, ...]
    heads: int = 2  # of the indexer
    d: int = 8
    np: int = 2  # of the attention
    hn: int = 16
    topk: int = 16
    absorbed: bool = False  # one key head, whose first channels are the values
    sparse: bool = False
    relu: bool = True
    rows: bool = False  # some query rows are left out of the loss
    alone: int | None = None  # all others are
    per_token: bool = False
    dtype: torch.dtype = torch.float32
    bounds: torch.dtype = torch.int32
    padded: bool = False  # bounds stand in cu_seqlens_*_padded, beside those without padding
    longest: str = ""  # what is said of it: how it is; "more"; "kv", which is more than q; "tensor"; "unknown"; "zero"
    frozen: int = 3  # that of q, w, k which wants no gradient; 3 is none
    strided: bool = False  # tensors are parts of larger ones, NaN elsewhere

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def spans(self) -> list[tuple[int, int]]:
        ends = list(itertools.accumulate(self.lengths))
        return [(end - n, end) for end, n in zip(ends, self.lengths, strict=True) if n]


class Given(torch.nn.Module):
    """An indexer whose queries, keys and weights are given."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.made: tuple[Tensor, ...] = ()

    def forward_before_topk(self, *_: Any) -> tuple[Tensor, ...]:
        return self.made


class Batch:
    """A case's tensors. q [t,1,h,d], w [t,1,h], k [t,1,d]; query, key, value [t,1,np,hn]."""

    def __init__(self, p: probe.Probe, case: Case, device: str, seed: int = 0) -> None:
        self.case, self.device = case, device
        self.random = torch.Generator(device="cpu" if device == "meta" else device).manual_seed(p.seed + seed)
        t, h = case.tokens, case.heads
        self.q, self.w, self.k = self.make(t, 1, h, case.d), self.make(t, 1, h), self.make(t, 1, case.d)
        self.query = self.make(t, 1, case.np, case.hn)
        self.key = self.make(t, 1, 1 if case.absorbed else case.np, case.hn)
        self.value = None if case.absorbed else self.make(t, 1, case.np, case.hn)
        self.kept: Tensor | None = None
        if case.rows:
            self.kept = torch.rand(t, generator=self.random, device=device) < 0.6
        if case.alone is not None:
            self.kept = torch.arange(t, device=device) == case.alone

    def make(self, *shape: int) -> Tensor:
        if self.device == "meta":
            return torch.empty(*shape, dtype=self.case.dtype, device="meta")
        made = torch.randn(shape, generator=self.random, device=self.device).to(self.case.dtype)
        if self.case.strided:
            wide = torch.full((*shape[:-1], 2 * shape[-1]), math.nan, dtype=made.dtype, device=self.device)
            wide[..., ::2] = made
            made = wide[..., ::2]
        return made

    def params(self, p: probe.Probe) -> Any:
        """The record of the packed sequences, as a new one for each forward."""
        case, packed = self.case, p.upstream("megatron.core.packed_seq_params").PackedSeqParams
        ends = list(itertools.accumulate(case.lengths, initial=0))
        bounds = torch.tensor(ends, dtype=case.bounds).to(self.device)
        fields: dict[str, Any] = {"cu_seqlens_q": bounds, "cu_seqlens_kv": bounds}
        if case.padded:
            fields = {f"{name}_padded": value for name, value in fields.items()}
            own = [0, *itertools.accumulate(n - n // 5 for n in case.lengths)]
            fields["cu_seqlens_q"] = fields["cu_seqlens_kv"] = torch.tensor(own, dtype=case.bounds).to(self.device)
        longest = max(case.lengths)
        said: Any = {"more": longest + 100, "tensor": torch.tensor(longest).to(self.device), "unknown": None, "zero": 0}
        first = 1 if case.longest == "kv" else said.get(case.longest, longest)
        made = packed("thd", **fields, max_seqlen_q=first, max_seqlen_kv=said.get(case.longest, longest))
        if self.kept is not None:
            made.real_token_mask_q = self.kept
        return made


class Done(NamedTuple):
    """What a layer made of a batch."""

    indices: Tensor
    loss: Tensor
    grads: list[Tensor]
    output: Tensor


class Layer:
    """DSAttention, which shares its indices with the next layer: there they can be seen."""

    def __init__(self, p: probe.Probe, case: Case, indexer: Any = Given, sub: Any = None, groups: Any = None) -> None:
        self.p, self.dsa, self.case = p, p.upstream(DSA), case
        mla, specs = p.upstream(VARIANT + "absorbed_mla"), p.upstream("megatron.core.transformer.spec_utils")
        self.causal = mla.AttnMaskType.causal
        latent = case.hn // 2 if case.absorbed else 3
        config = mla.MLATransformerConfig(
            num_layers=1,
            hidden_size=32,
            num_attention_heads=case.np,
            q_lora_rank=16,
            kv_lora_rank=latent,
            qk_pos_emb_head_dim=case.hn - latent if case.absorbed else 8,
            experimental_attention_variant="dsa",
            dsa_indexer_n_heads=case.heads,
            dsa_indexer_head_dim=case.d,
            dsa_indexer_topk=case.topk,
            dsa_indexer_topk_freq=2,
            dsa_indexer_loss_coeff=COEFFICIENT,
            dsa_indexer_use_sparse_loss=case.sparse,
            dsa_indexer_scoring_relu=case.relu,
            dsa_indexer_rotate_activation=False,
            calculate_per_token_loss=case.per_token,
            rope_type="rope",
            add_bias_linear=False,
            use_cpu_initialization=True,
        )
        groups = groups or SimpleNamespace(tp=SimpleNamespace(size=lambda: 1, rank=lambda: 0), cp=None)
        parts = self.dsa.DSAttentionSubmodules(indexer=specs.ModuleSpec(module=indexer, submodules=sub))
        self.layer = self.dsa.DSAttention(
            config, parts, 1, self.causal, "self", k_channels=case.hn, cp_comm_type="allgather", pg_collection=groups
        ).train()

    def forward(self, batch: Batch, params: Any, mask: Tensor | None = None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Output, loss as it is logged, and the leaves q, w and k of the call."""
        case, helper = batch.case, self.dsa.DSAIndexerLossLoggingHelper
        leaves = [t.detach().requires_grad_(n != case.frozen) for n, t in enumerate((batch.q, batch.w, batch.k))]
        self.layer.indexer.made = leaves[0], leaves[2], leaves[1]
        helper.tracker.clear()
        helper.tracker["values"] = torch.zeros(1, device=batch.device)
        x = torch.zeros(len(batch.q), 1, 4, device=batch.device)
        kind = self.causal if mask is None else None
        up = batch.make(case.np, 4, case.hn // 2) if case.absorbed else None
        tensors = batch.query, batch.key, batch.value, mask, x, x
        output = self.layer(*tensors, attn_mask_type=kind, packed_seq_params=params, up_v_weight=up)
        return output, helper.tracker["values"][0].clone(), leaves

    def run(self, batch: Batch, mask: Tensor | None = None) -> Done:
        params = batch.params(self.p)
        self.dsa.DSAIndexerLossAutoScaler.main_loss_backward_scale = torch.tensor(SCALE).to(batch.device)
        output, loss, leaves = self.forward(batch, params, mask)
        output.requires_grad_(output.requires_grad or batch.device == "meta").backward(torch.zeros_like(output))
        indices = getattr(params, self.layer._HOLDER_ATTR)[1]
        return Done(indices, loss, [t.grad for t in leaves if t.grad is not None], output.detach())


def norm(*tensors: Tensor) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def distance(got: Sequence[Tensor], true: Sequence[Tensor], least: float = 0.0) -> float:
    """The largest distance by norm, relative to the reference; infinite for others in number, shape or value."""
    if len(got) != len(true) or any(a.shape != b.shape for a, b in zip(got, true, strict=True)):
        return math.inf
    pairs = zip(got, true, strict=True)
    off = max(norm(a.double() - b.double()) / max(norm(b), least, 1e-30) for a, b in pairs)
    return math.inf if math.isnan(off) else off


def reference(batch: Batch, indices: Tensor) -> tuple[Tensor, list[Tensor], int]:
    """Loss and gradients in fp64, sequence by sequence, and how many rows have other keys than the best."""
    case, wrong = batch.case, 0
    leaves = [t.detach().double().requires_grad_() for t in (batch.q, batch.w, batch.k)]
    (q, w, k), query, key = (t[:, 0] for t in leaves), batch.query[:, 0].double(), batch.key[:, 0].double()
    weight = torch.ones(case.tokens, dtype=torch.float64, device=batch.device)
    if batch.kept is not None:
        weight = batch.kept.double()
    total = weight.sum() * 0
    for a, b in case.spans:
        scores = torch.einsum("shd,td->sht", q[a:b], k[a:b])
        scores = ((scores.relu() if case.relu else scores) * w[a:b, :, None]).sum(1)
        seen = torch.ones_like(scores, dtype=torch.bool).tril()
        own = indices[0, a:b].to(scores.device)
        inside = (own >= a) & (own < b)
        chosen = torch.zeros(b - a, b - a + 1, dtype=torch.long, device=scores.device)
        chosen.scatter_add_(1, torch.where(inside, own - a, b - a), torch.ones_like(own))
        twice, chosen = (chosen[:, :-1] > 1).any(1), chosen[:, :-1] > 0
        rest = scores.detach()
        least = rest.masked_fill(~chosen, math.inf).amin(1)
        most = rest.masked_fill(chosen | ~seen, -math.inf).amax(1)
        full = torch.arange(1, b - a + 1, device=scores.device).clamp(max=case.topk)
        bad = (
            twice
            | (chosen & ~seen).any(1)
            | (chosen.sum(1) != full)
            | ((own >= 0) & ~inside).any(1)
            | (own < -1).any(1)
        )
        wrong += int((bad | (least < most - 1e-4)).sum())  # ties within 1e-4
        if case.sparse:
            seen = seen & chosen
        attention = torch.einsum("shd,thd->hst", query[a:b], key[a:b].expand(-1, case.np, -1)) / math.sqrt(case.hn)
        target = attention.masked_fill(~seen, -math.inf).softmax(-1).sum(0) / case.np
        predicted = scores.masked_fill(~seen, -math.inf).log_softmax(-1).masked_fill(~seen, 0)
        terms = torch.special.xlogy(target, target.clamp_min(1e-300)) - target * predicted
        total = total + (terms.sum(-1) * weight[a:b]).sum()
    loss = COEFFICIENT * (total if case.per_token else total / weight.sum().clamp(min=1))
    wanted = [t for n, t in enumerate(leaves) if n != case.frozen]
    return loss.detach(), [SCALE * g for g in torch.autograd.grad(loss, wanted)], wrong


def errors(batch: Batch, done: Done) -> float:
    """The largest error over its limit; infinite for another form."""
    case, form = batch.case, (1, batch.case.tokens, min(batch.case.topk, batch.case.tokens))
    dtypes = [t.dtype for t in done.grads] == [case.dtype] * len(done.grads)
    if tuple(done.indices.shape) != form or done.indices.dtype != torch.int64 or not dtypes:
        return math.inf
    loss, grads, wrong = reference(batch, done.indices)
    limit, few = LIMITS[case.dtype], COEFFICIENT * 1e-2 * (case.tokens if case.per_token else 1)
    off = distance([done.loss], [loss], few) / (limit / 10)
    return math.inf if wrong else max(off, distance(done.grads, grads, few / 100) / limit)


def check_numbers(p: probe.Probe, name: str, case: Case, device: str) -> None:
    layer, batch = Layer(p, case), Batch(p, case, device)
    done = p.guard_attempt(f"{name}: forward and backward return", lambda: layer.run(batch))
    if done is not None:
        off = errors(batch, done)
        p.guard(f"{name}: loss, gradients and keys over their limits", off, 1, reference="fp64, by sequence")


def check_counted(p: probe.Probe) -> None:
    """Elements written for a query of a packed batch, over those for a query of one sequence."""

    def written(*lengths: int, **other: Any) -> float:
        case = Case(lengths, heads=32, d=64, np=32, hn=128, topk=16, dtype=torch.bfloat16, **other)
        layer, batch = Layer(p, case), Batch(p, case, "meta")
        return p.operators(lambda: layer.run(batch)).written / case.tokens

    for name, other in {"": {}, ", sparse, by tokens": {"sparse": True, "per_token": True}}.items():
        one, many = written(1024, **other), written(*[1024] * 12, **other)
        p.note(f"elements for a query of 1 sequence of 1024{name}", one)
        p.note(f"elements for a query of 12 sequences of 1024{name}", many)
        # a block of rows and the keys before it that some row may see are as two sequences; all of them are as twelve
        p.error(f"elements for a query, 12 sequences over 1{name}", many / one, 2.5, reference="the same", bug_above=6)


def check_drawn_work(p: probe.Probe, device: str) -> None:
    """The same where values are compared, with lengths that nobody chose."""
    worst = [0.0]
    one = Case((1024,), heads=1, np=1, hn=8)
    layer, alone = Layer(p, one), Batch(p, one, device)
    layer.run(alone)
    base = p.operators(lambda: layer.run(alone)).written / one.tokens

    def over(lengths: list[int], seed: int) -> float:
        taken = itertools.islice(itertools.cycle(lengths), -(-3072 * len(lengths) // sum(lengths)))
        case = replace(one, lengths=tuple(taken))
        layer, batch = Layer(p, case), Batch(p, case, device, seed)
        found: list[Done] = []
        count = p.operators(lambda: found.append(layer.run(batch))).written
        worst[0] = max(worst[0], errors(batch, found[0]))
        return count / case.tokens / base

    p.drawn(
        "elements for a query of some 3072, lengths drawn, over one sequence of 1024",
        over,
        1.8,
        space={"lengths": st.lists(st.integers(100, 300), min_size=1, max_size=8), "seed": st.integers(0, 9)},
        count=2,
        reference="the same",
        bug_above=2.4,
    )
    p.guard("where they are counted: errors over their limits", worst[0], 1, reference="fp64, by sequence")


FIXED = {
    # row 1024 is the last of the longest sequence: its first key is the first that a block from there on may need
    "a sequence that ends with row 1024": Case((200, 825, 75, 1, 199)),
    "that row alone": Case((200, 825, 75, 1, 199), alone=1024),
    "the same, sparse, rows left out": Case((200, 825, 75, 1, 199), sparse=True, rows=True, relu=False),
    "one sequence": Case((1500,), rows=True),
    "more keys to choose than a block has": Case((100, 0, *[150] * 9), topk=1300),
    "absorbed": Case((700, 300, 500), absorbed=True, hn=24),
    "no length known": Case((700, 300, 500), longest="unknown"),
    "a length on the device": Case((700, 300, 500), longest="tensor"),
    "a length of 0": Case((700, 300, 500), longest="zero"),
    "keys' length is the longer": Case((700, 300, 500), longest="kv"),
    "padded bounds": Case((700, 0, 300, 500), padded=True, bounds=torch.int64),
    "many of one row": Case((*[1] * 100, 930, *[1] * 50), topk=1),
    "bf16": Case((900, 800, 700), dtype=torch.bfloat16, per_token=True),
    "parts of NaN": Case((600, 500), strided=True),
    "a short batch": Case((40, 24, 0, 3)),
}
SPACE = {
    name: st.sampled_from(values)
    for name, values in {
        "heads": (1, 3),
        "d": (1, 8),
        "np": (1, 3),
        "topk": (1, 40, 1200),
        "absorbed": (False, True),
        "sparse": (False, True),
        "relu": (True, False),
        "rows": (False, True),
        "per_token": (False, True),
        "dtype": (torch.float32, torch.bfloat16),
        "bounds": (torch.int32, torch.int64),
        "padded": (False, True),
        "longest": ("", "more", "kv", "tensor", "unknown"),
        "frozen": (0, 1, 2, 3),
        "strided": (False, True),
    }.items()
}


def check_drawn(p: probe.Probe, device: str, count: int) -> None:
    def over(lengths: list[int], **drawn: Any) -> float:
        case = Case(tuple(lengths), **drawn)
        if not case.tokens:
            return 0.0
        batch = Batch(p, case, device, case.tokens)
        try:
            return errors(batch, Layer(p, case).run(batch))
        except Exception:  # then this check fails, and tells the simplest case that does it
            return math.inf

    lengths = st.lists(st.integers(0, 700), min_size=1, max_size=4)
    p.drawn(
        "drawn: errors over their limits", over, 1, space={"lengths": lengths, **SPACE}, count=count, reference="fp64"
    )


def check_neighbours(p: probe.Probe, device: str) -> None:
    """What the layer promises besides: inputs, calls that overlap, no gradients, other batches, host waits."""
    case = Case((500, 200, 400, 100), rows=True, relu=False)  # without ties
    layer, batch, other = (
        Layer(p, case),
        Batch(p, case, device),
        Batch(p, replace(case, lengths=(100, 1100)), device, 1),
    )
    first, second = layer.run(batch), layer.run(other)  # the second has a longer sequence
    p.guard("a second batch with a longer sequence", errors(other, second), 1, reference="fp64")
    tensors = [batch.q, batch.w, batch.k, batch.query, batch.key]
    copies, params = [t.clone() for t in tensors], [batch.params(p), other.params(p)]
    bounds = params[0].cu_seqlens_q.clone()
    before = set(vars(layer.layer)) | set(vars(params[0]))
    (one, _, own), (two, _, others) = layer.forward(batch, params[0]), layer.forward(other, params[1])
    two.backward(torch.zeros_like(two))
    one.backward(torch.zeros_like(one), retain_graph=True)
    once = [t.grad.clone() for t in own]
    one.backward(torch.zeros_like(one))
    p.guard("two forwards before a backward", distance(once, first.grads), 0, reference="one after the other")
    p.guard("the later one's", distance([t.grad for t in others], second.grads), 0, reference="one after the other")
    p.guard("a second backward", distance([t.grad for t in own], [2 * t for t in once]), 0, reference="as much again")
    changed = sum(
        not torch.equal(a, b) for a, b in zip([*tensors, params[0].cu_seqlens_q], [*copies, bounds], strict=True)
    )
    p.guard("inputs that were changed", changed, 0, reference="none")
    grown = set(vars(layer.layer)) | set(vars(params[0])) - {layer.layer._HOLDER_ATTR, layer.layer._LENGTH_HOLDER_ATTR}
    p.guard("attributes of layer or record that are new", len(grown - before), 0, reference="but for shared indices")
    queries = [weakref.ref(leaves[0]) for leaves in (own, others)]
    layer.layer.indexer.made = ()
    del one, two, own, others, once
    p.guard("queries that are kept after all is done", sum(q() is not None for q in queries), 0, reference="none")
    for name, mode in {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.items():
        with mode():
            silent = layer.forward(batch, batch.params(p))
        p.guard(f"{name}: output", distance([silent[0]], [first.output]), FP32, reference="the same with gradients")
        p.guard(f"{name}: loss", float(silent[1]), 0, reference="none is computed")
    for name, about in {
        "": {},
        ", rows left out": {"rows": True},
        ", a length on the device": {"longest": "tensor"},
    }.items():
        tokens = Case((500, 200, 400, 100), per_token=True, **about)
        layer, batch = Layer(p, tokens), Batch(p, tokens, device)
        layer.run(batch)
        params = [batch.params(p)]
        made = lambda: layer.forward(batch, params[0])[0].sum().backward()  # noqa: B023, E731
        p.guard(f"host waits by tokens{name}", p.waits(made).total(), 0, reference="none")
    masked = Case((600, 500))
    layer, batch = Layer(p, masked), Batch(p, masked, device)
    t = torch.arange(masked.tokens, device=device)
    hidden = (t[:, None] < t) | ((t[:, None] >= 600) != (t >= 600))
    done = p.guard_attempt("packed, with a mask: returns", lambda: layer.run(batch, hidden[None, None]))
    if done is not None:
        p.guard("packed, with a mask", errors(batch, done), 1, reference="fp64")
    unpacked = Batch(p, Case((1100,)), device)
    unpacked.params = lambda p: None  # type: ignore[method-assign]
    shared = Layer(p, unpacked.case)
    output, loss, leaves = shared.forward(unpacked, None)
    output.backward(torch.zeros_like(output))
    p.digest("not packed: output, loss and gradients", output.detach(), loss, *(t.grad for t in leaves))


def check_indexer(p: probe.Probe, device: str) -> None:
    """The real indexer, with its rotary embedding, whose table is as long as the longest sequence is said to be."""
    case = Case((500, 200, 600), d=16)
    mla, norms = p.upstream(VARIANT + "absorbed_mla"), p.upstream("megatron.core.transformer.torch_norm")
    dsa = p.upstream(DSA)

    class Duplicated(mla.ColumnParallelLinear):  # type: ignore[misc,name-defined]
        def __init__(self, *sizes: int, parallel_mode: str, **options: Any) -> None:
            super().__init__(*sizes, gather_output=False, **options)

    sub = dsa.DSAIndexerSubmodules(Duplicated, Duplicated, norms.WrappedTorchNorm, Duplicated)
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups(
        ["tp", "cp"]
    )
    torch.manual_seed(p.seed)
    layer, batch = Layer(p, case, dsa.DSAIndexer, sub, groups), Batch(p, case, device)
    layer.layer.to(device)
    params, x = batch.params(p), torch.randn(case.tokens, 1, 32, generator=batch.random, device=device)
    low = torch.randn(case.tokens, 1, 16, generator=batch.random, device=device)
    output = layer.layer(
        batch.query, batch.key, batch.value, None, x, low, attn_mask_type=layer.causal, packed_seq_params=params
    )
    output.backward(torch.zeros_like(output))
    batch.q, batch.k, batch.w = layer.layer.indexer.forward_before_topk(x, low, params)
    weights = list(layer.layer.indexer.parameters())
    _, grads, wrong = reference(batch, getattr(params, layer.layer._HOLDER_ATTR)[1])
    true = torch.autograd.grad([batch.q, batch.w, batch.k], weights, [g.float() for g in grads])
    off = math.inf if wrong else distance([t.grad for t in weights if t.grad is not None], true)
    p.guard("the real indexer: gradients of its parameters", off, FP32, reference="fp64, by sequence")


def check_ranks(p: probe.Probe) -> None:
    """Two ranks: half of the attention's heads each, or of each sequence."""
    case = Case((720, 1000, 480), np=4, per_token=True)  # 1100 rows a rank of context: more than a block

    def work(kind: str) -> Callable[[int], None]:
        def one(rank: int) -> None:
            p.megatron_cpu(**{f"{kind}_parallel_size": 2})
            collection = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection
            groups = collection.use_mpu_process_groups(["tp", "cp"])
            whole, share = (Batch(p, case, "cpu") for _ in range(2))
            rows = torch.arange(case.tokens)
            if kind == "context":
                parts = [torch.arange(a, b).chunk(4) for a, b in case.spans]
                rows = torch.cat([piece for part in parts for piece in (part[rank], part[3 - rank])])
                for name in ("q", "w", "k", "query", "key", "value"):
                    setattr(share, name, getattr(whole, name)[rows])
            else:
                for name in ("query", "key", "value"):
                    setattr(share, name, getattr(whole, name).chunk(2, 2)[rank])
            layer = Layer(p, replace(case, np=4 if kind == "context" else 2), groups=groups)
            done = layer.run(share)
            indices = torch.full((1, case.tokens, case.topk), -2)
            indices[:, rows] = done.indices
            if kind == "context":
                torch.distributed.all_reduce(indices, torch.distributed.ReduceOp.MAX)
            _, grads, wrong = reference(whole, indices)
            off = math.inf if wrong else distance(done.grads, [g[rows] for g in grads])
            p.guard(f"{kind} parallel rank {rank}: gradients", off, FP32, reference="fp64, one rank")

        return one

    for kind in ("tensor_model", "context"):
        p.ranks(2, work(kind))


def note_times(p: probe.Probe) -> None:
    """Forward and backward of three sequences of 4096 tokens in bf16, and of twelve of 1024."""
    for heads, lengths in itertools.product((8, 32), ((4096,) * 3, (1024,) * 12)):
        name = f"{len(lengths)} sequences of {lengths[0]}, {heads} heads of indexer and attention"
        case = Case(lengths, heads=heads, d=64, np=heads, hn=128, topk=256, dtype=torch.bfloat16)
        try:
            p.note(name, p.milliseconds(partial(Layer(p, case).run, Batch(p, case, "cuda")), 5, 2), unit="ms")
            p.note(f"{name}: peak", torch.cuda.max_memory_allocated() / 2**30, unit="GiB")
        except torch.OutOfMemoryError:
            p.note(name, "more memory than the GPU has")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def reproduce(p: probe.Probe) -> None:
    device = p.lane
    if device == "cpu":
        p.upstream(DSA)
        check_ranks(p)
    else:
        p.skip("two ranks", "two GPUs; the cpu lane has them")
    p.megatron_cpu()
    check_counted(p)
    check_drawn_work(p, device)
    for name, case in FIXED.items():
        check_numbers(p, name, case, device)
    check_drawn(p, device, 6 if device == "cpu" else 30)
    check_neighbours(p, device)
    check_indexer(p, device)
    if device == "cuda":
        note_times(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=52, package="megatron", minimal=minimal)
