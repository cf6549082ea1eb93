# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""A DSA layer makes the host wait for the GPU in every step, so CUDA graph capture of it fails.

The backward of its indexer loss copies a constant from pageable memory; under context parallelism its forward copies a
sequence length and reads the lengths of all ranks back. An earlier state of main read six more values in every step.
CPU lane: two gloo ranks, and a dispatch mode that counts the calls which would wait for a GPU. CUDA lane: two ranks, a
GPU each, NCCL; PyTorch's own count of synchronising calls, then real capture, and replay against eager. With one GPU
that is done without context parallelism only, and the rest as on the CPU lane. What is counted is also right: against
fp64 or, under context parallelism, against one rank.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reproducers import probe


def minimal():
    """The backward of the indexer loss copies a constant from pageable memory: the host waits for the GPU."""
    from types import SimpleNamespace
    from unittest import mock

    import torch
    from megatron.core.transformer.experimental_attention_variant.dsa import FusedDSAIndexerLoss

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, query, key = (torch.randn(16, 1, 2, 32, device=device, requires_grad=True) for _ in range(3))
    weights = torch.rand(16, 1, 2, device=device, requires_grad=True)
    k = torch.randn(16, 1, 32, device=device, requires_grad=True)
    groups = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    args = (q, weights, k, query, key, 32**-0.5, 4, 1.0, None, False, groups)
    _, loss = FusedDSAIndexerLoss.apply(*args)
    with mock.patch("torch.tensor", wraps=torch.tensor) as copies:  # blocking, if for a GPU
        loss.backward()
    print(f"torch.tensor called in the backward: {copies.call_count} times, should be 0")
    assert copies.call_count == 0


S, B, HIDDEN, HEADS, TOPK, WORLD = 128, 2, 256, 4, 32, 2  # tokens over all ranks, batch, width, heads
MANY = 4  # ranks of which one can differ that is no neighbour
QK, V, LORA = 48, 32, 64  # widths of a query or key, a value and the compressed query
VARIANT = "megatron.core.transformer.experimental_attention_variant."


class Duplicated(nn.Linear):
    """Megatron's linear layers return (output, bias); the one for duplicated weights exists in TE only."""

    def __init__(self, rows: int, columns: int, *, config: Any, **_: Any) -> None:
        super().__init__(rows, columns, bias=False, dtype=config.params_dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def causal(p: probe.Probe) -> Any:
    return p.upstream("megatron.core.transformer.enums").AttnMaskType.causal


def layer(p: probe.Probe, cp: int, group: Any = None) -> Any:
    """The real DSAttention with its indexer and indexer loss, in bf16, for ``cp`` context parallel ranks.

    ``group``: in place of Megatron's own.
    """
    dsa, configs = p.upstream(VARIANT + "dsa"), p.upstream("megatron.core.transformer.transformer_config")
    norm = p.upstream("megatron.core.transformer.torch_norm").WrappedTorchNorm
    spec = p.upstream("megatron.core.transformer.spec_utils").ModuleSpec
    groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
    if cp == 1:
        groups.cp = groups.tp  # this rank alone
    if group is not None:
        groups.cp = group
    config = configs.MLATransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        add_bias_linear=False,
        q_lora_rank=LORA,
        kv_lora_rank=64,
        qk_head_dim=32,
        qk_pos_emb_head_dim=16,
        v_head_dim=V,
        rope_type="rope",
        rotary_base=10000,
        rotary_percent=1.0,
        apply_rope_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        experimental_attention_variant="dsa",
        dsa_indexer_n_heads=4,
        dsa_indexer_head_dim=32,
        dsa_indexer_topk=TOPK,
        dsa_indexer_loss_coeff=0.1,
        bf16=True,
        params_dtype=torch.bfloat16,
        context_parallel_size=cp,
        cp_comm_type="allgather",
    )
    parts = dsa.DSAIndexerSubmodules(
        linear_wq_b=Duplicated, linear_wk=Duplicated, k_norm=norm, linear_weights_proj=Duplicated
    )
    submodules = dsa.DSAttentionSubmodules(indexer=spec(module=dsa.DSAIndexer, submodules=parts))
    torch.manual_seed(p.seed)
    built = dsa.DSAttention(
        config=config,
        submodules=submodules,
        layer_number=1,
        attn_mask_type=causal(p),
        attention_type="self",
        softmax_scale=QK**-0.5,
        k_channels=QK,
        v_channels=V,
        cp_comm_type="allgather",
        pg_collection=groups,
    )
    dsa.DSAIndexerLossAutoScaler.set_loss_scale(torch.ones((), device=torch.cuda.current_device()))  # as schedules do
    return built.to(torch.bfloat16).to(torch.cuda.current_device()).train()


def inputs(seed: int) -> list[Tensor]:
    """query, key [S, B, HEADS, QK], value [S, B, HEADS, V], x [S, B, HIDDEN], qr [S, B, LORA]: all ranks' tokens."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(HEADS, QK), (HEADS, QK), (HEADS, V), (HIDDEN,), (LORA,)]
    made = [torch.randn(S, B, *shape, generator=generator).bfloat16() for shape in shapes]
    return [t.to(torch.cuda.current_device()) for t in made]


def share(t: Tensor, rank: int) -> Tensor:
    """Megatron's zigzag: of 2 WORLD chunks of tokens, rank r has chunk r and the r-th from the end."""
    chunks = t.chunk(2 * WORLD)
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def step(p: probe.Probe, model: Any, given: list[Tensor], backward: bool = True) -> list[Tensor]:
    """One forward and backward; the output and the gradients of query, key, value and the indexer's weights."""
    leaves = [t.requires_grad_() for t in given[:3]]
    out = model(*leaves, None, x=given[3], qr=given[4], attn_mask_type=causal(p))  # [S or S / WORLD, B, HEADS * V]
    wanted = [*leaves, *model.parameters()] if backward else []
    return [out.detach(), *(torch.autograd.grad(out.float().square().sum(), wanted) if backward else ())]


def check_waits(p: probe.Probe, model: Any, cp: int, rank: int) -> None:
    """Count in the second step: what is read once and kept does not matter. What it computes is checked as well."""
    mine = [share(t, rank) for t in inputs(p.seed)] if cp > 1 else inputs(p.seed)
    step(p, model, mine)
    places = p.waits(partial(step, p, model, mine))
    if rank == 0:
        p.error(
            f"CP={cp}: waits in a later forward and backward",
            places.total(),
            0,
            reference="none needed: the host knows all shapes",
            bug_above=1,
        )
        p.note(f"CP={cp}: places of these waits", str(places))
    if cp > 1:
        known = [[t[: len(t) * eighths // 8] for t in mine] for eighths in (8, 7, 5, 4, 3)]

        def alternate() -> None:
            for given in known:
                step(p, model, given)
            with torch.no_grad():  # as evaluation and the first pass of recomputation
                for given in known:
                    step(p, model, given, backward=False)

        alternate()
        places = p.waits(alternate)
        if rank == 0:
            p.error(
                f"CP={cp}: waits where five known lengths alternate",
                places.total(),
                0,
                reference="none needed: the host knows all shapes",
                bug_above=1,
            )


def norm_off(measured: Tensor, reference: Tensor) -> float:
    return ((measured.double() - reference.double()).norm() / reference.double().norm()).item()


def check_alone(p: probe.Probe, alone: Any) -> None:
    """What one rank computes where its waits are counted; the first TOPK tokens attend to all before them."""
    given = inputs(p.seed)
    made = step(p, alone, given)
    if p.lane == "cpu":  # a GPU sums gradients in any order
        p.digest("CP=1 output and gradients", *made)
    query, key, value = (t.detach()[:TOPK].double() for t in given[:3])
    score = torch.einsum("sbhd,tbhd->bhst", query.requires_grad_(), key) * QK**-0.5
    future = torch.ones(TOPK, TOPK, dtype=torch.bool, device=score.device).triu(1)
    out = torch.einsum("bhst,tbhd->sbhd", score.masked_fill(future, float("-inf")).softmax(-1), value).flatten(2)
    (grad,) = torch.autograd.grad(out.square().sum(), query)
    for name, t, true in (("output", made[0], out.detach()), ("gradient of query", made[1], grad)):
        # bf16 rounds probabilities and results to 2**-9, and the gradient what it starts from
        p.guard(f"CP=1 {name}, first {TOPK} tokens", norm_off(t[:TOPK], true), 2**-6, reference="fp64 attention")


def check_result(p: probe.Probe, alone: Any, split: Any, rank: int) -> None:
    """Two ranks compute what one computes, at either length that they know: output, and gradients of all it takes."""
    for length in (S, S // 2):
        given, name = [t[:length] for t in inputs(p.seed)], f"rank {rank}: CP=2" + ", half as long" * (length < S)
        whole = step(p, alone, given)
        mine = step(p, split, [share(t, rank) for t in given])
        if p.lane == "cpu":  # a GPU sums gradients in any order
            p.digest(f"{name} output and gradients", *mine)
        p.guard(
            f"{name} output",
            norm_off(mine[0], share(whole[0], rank)),
            2**-6,  # bf16, and a few tied tokens
            reference="the same tokens with CP=1",
        )
        off = [norm_off(t, share(true, rank)) for t, true in zip(mine[1:4], whole[1:4], strict=True)]
        for t, true in zip(mine[4:], whole[4:], strict=True):  # the indexer's loss is a mean over a rank's own tokens
            total = t.float()
            torch.distributed.all_reduce(total)
            off.append(norm_off(total / WORLD, true))
        p.guard(
            f"{name} gradients",
            max(off),
            2**-5,  # two sums of bf16 gradients, and a few tied tokens
            reference="the same tokens with CP=1; weights: the mean over ranks",
        )


def agreed(good: bool) -> bool:
    """Whether it went well on all ranks; where it did not, one may have missed a collective and all had better end."""
    bad = torch.full((), float(not good), device=torch.cuda.current_device())
    torch.distributed.all_reduce(bad)
    return float(bad) == 0


def refused(call: Callable[[], Any], said: str = "uniform per-rank sequence lengths") -> bool:
    """``call`` must say that the lengths differ."""
    try:
        call()
    except RuntimeError as error:
        assert re.search(said, str(error)), error
        return True
    raise AssertionError("not refused")


def refuses(p: probe.Probe, split: Any, rank: int, lengths: list[int], what: str = "") -> bool:
    """Ranks of different lengths must all notice before the keys are gathered; each may have seen its own before.

    Shorter sequences come in larger batches, so that sizes in bytes agree and no collective notices on its own.
    """
    given = [t[: S // WORLD].reshape(lengths[rank], -1, *t.shape[2:]) for t in inputs(p.seed)]
    name = f"rank {rank}: refuses lengths {' and '.join(map(str, lengths))}{what}"
    return agreed(bool(p.guard_attempt(name, lambda: refused(lambda: step(p, split, given)))))


class OnDevice(Exception):
    """A device's assertion, after which the process is of no use."""


def assert_on_device(held: Tensor, *_: Any) -> None:
    if not bool(held):
        raise OnDevice


def by_the_host() -> Any:
    """In this ``with`` what only a device would refuse is no RuntimeError."""
    return mock.patch.object(torch, "_assert_async", assert_on_device)


def check_lengths(p: probe.Probe, alone: Any, split: Any, rank: int) -> None:
    """Every way in which ranks can differ; ``split`` knows S // 2 and S // 4, not S // 8.

    On a GPU only the first is survived; ``check_device_refuses`` has the second.
    """
    new = layer(p, WORLD)
    if not refuses(p, new, rank, [S // 2, S // 4]):
        return
    with by_the_host():  # nobody has agreed on them meanwhile
        if not refuses(p, new, rank, [S // 2, S // 4], ", asked again"):
            return
    compare = p.upstream(VARIANT + "dsa")._validate_nonpacked_cp_uniform_length
    group = p.upstream("megatron.core.parallel_state").get_context_parallel_group()
    ask = partial(compare, cp_size=WORLD, device=torch.cuda.current_device())
    taken = (("each alike", S, group), ("all keys", WORLD * S, group), ("no group", S, None))
    for what, skv, given in taken:
        call = partial(ask, sq=S, skv=skv, cp_group=given)  # as before the fix: without what has been seen
        p.guard_attempt(f"rank {rank}: takes lengths, {what}", lambda call=call: (call(), call()))
    for what, given in (("", group), (", no group", None)):
        call = partial(ask, sq=S, skv=S + 1, cp_group=given)
        p.guard_attempt(f"rank {rank}: refuses keys of another length{what}", lambda call=call: refused(call))
    if p.lane == "cpu":  # on a GPU the device refuses, which ends the process
        done = refuses(p, split, rank, [S // 2, S // 4], ", each known")
        # rank 0 has checked its length before, rank 1 has not
        done = done and refuses(p, split, rank, [S // 2, S // 8])
        if done:
            with Elsewhere():  # a comparison without values would find nothing
                done = refuses(p, split, rank, [S // 2, S // 4], ", no default device")
        if done and refuses(p, split, rank, [S // 8, S // 2]):
            check_drawn_lengths(p, alone, rank)


def check_device_refuses(p: probe.Probe, rank: int) -> None:
    """On a GPU lengths that differ, each known, are refused by the host, or by a device that is of no use from then on.

    Nothing is asked of the other rank after it. NCCL's watchdog would end the process before it tells what it saw.
    """
    os.environ |= {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}
    p.megatron_cpu(context_parallel_size=WORLD, distributed_timeout_minutes=1)
    model, lengths = layer(p, WORLD), [S // 2, S // 4]

    def late(length: int) -> None:
        step(p, model, [t[: S // WORLD].reshape(length, -1, *t.shape[2:]) for t in inputs(p.seed)])
        torch.cuda.synchronize()

    for length in lengths:
        late(length)
    call = partial(refused, partial(late, lengths[rank]), "uniform per-rank sequence lengths|device-side assert")
    p.guard_attempt(f"rank {rank}: refuses lengths {' and '.join(map(str, lengths))}, each known, on its GPU", call)


def check_many(p: probe.Probe, rank: int) -> None:
    """Two lengths over MANY ranks in each way: no rank takes them where any differs, none refuses them where not."""
    p.lane = "cpu"  # in this rank's process alone: as many GPUs are not needed
    p.megatron_cpu(context_parallel_size=MANY, distributed_timeout_minutes=1)
    compare = p.upstream(VARIANT + "dsa")._validate_nonpacked_cp_uniform_length
    group = p.upstream("megatron.core.parallel_state").get_context_parallel_group()
    wrong = torch.zeros(())
    for lengths in itertools.product((S // 2, S // 4), repeat=MANY):
        alike, own = len(set(lengths)) == 1, lengths[rank]
        call = partial(compare, sq=own, skv=own, cp_size=MANY, cp_group=group, device=wrong.device)
        try:
            call() if alike else refused(call)
        except (AssertionError, RuntimeError):
            wrong += 1
    torch.distributed.all_reduce(wrong)
    if rank == 0:
        p.guard(f"CP={MANY}: lengths taken or refused wrongly", float(wrong), 0, reference="one by one, of all ranks")
    pair = torch.distributed.new_group([0, 1])
    if rank < WORLD:
        step(p, layer(p, WORLD, pair), [share(t, rank) for t in inputs(p.seed)])
    with by_the_host():  # two of the ranks have agreed on S // 2 in another group
        refuses(p, layer(p, MANY), rank, [S // 2, S // 2, *[S // 4] * (MANY - 2)], " after another group")


def check_drawn_lengths(p: probe.Probe, alone: Any, rank: int) -> None:
    """Lengths of both ranks, one pair after the other through one layer: taken where they agree, else refused."""
    from hypothesis import strategies as st

    def measure(pairs: list[tuple[int, int]]) -> float:
        model, wrong = layer(p, WORLD), torch.zeros(())
        for lengths in pairs:
            whole = [t.reshape(WORLD * lengths[rank], -1, *t.shape[2:]) for t in inputs(p.seed)]
            call = partial(step, p, model, [share(t, rank) for t in whole], backward=False)
            if lengths[0] != lengths[1]:
                refused(call)
            else:
                true = share(step(p, alone, whole, backward=False)[0], rank)
                wrong += not norm_off(call()[0], true) <= 2**-6  # as in check_result
        torch.distributed.all_reduce(wrong)  # ranks that judge alike draw alike
        return float(wrong)

    length = st.sampled_from([S // 2, S // 4, S // 8])
    alike = length.map(lambda n: (n, n))
    space = {"pairs": st.lists(alike | st.tuples(length, length), min_size=2, max_size=4)}
    p.drawn(
        f"rank {rank}: lengths judged or used wrongly, drawn",
        measure,
        0,
        space=space,
        count=4,
        reference="taken where they agree, and as with CP=1",
    )


class Elsewhere(TorchFunctionMode):  # type: ignore[misc]
    """What is made without a device has no values, as if the default device were another than that of the inputs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = getattr(func, "__name__", "") in ("full", "tensor", "zeros", "ones", "empty", "arange")
        return func(*args, **({"device": "meta"} if made else {}) | (kwargs or {}))


def check_devices(p: probe.Probe, split: Any, rank: int) -> bool:
    """Every tensor is made on the inputs' device, in a first and in a later step."""
    mine, model = [share(t, rank) for t in inputs(p.seed)], layer(p, WORLD)

    def elsewhere() -> list[Tensor]:
        with Elsewhere():
            step(p, model, mine)
            return step(p, model, mine)

    made = p.guard_attempt(f"rank {rank}: CP=2, no default device", elsewhere)
    if not agreed(made is not None):
        return False
    unlike = sum(not torch.equal(t, true) for t, true in zip(made or [], step(p, split, mine), strict=True))
    p.guard(f"rank {rank}: CP=2, no default device: tensors that differ", unlike, 0, reference="the same step without")
    return True


def check_loss(p: probe.Probe) -> None:
    """The backward of the indexer's loss at drawn shapes, dtypes and options: right, and without a wait."""
    from hypothesis import strategies as st

    fused, device = p.upstream(VARIANT + "dsa").FusedDSAIndexerLoss, torch.cuda.current_device()
    groups, waited = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1)), [0]

    def measure(
        sizes: tuple[int, int, int],
        heads: tuple[int, int],
        topk: int,
        sparse: bool,
        relu: bool,
        per_token: bool,
        dtype: torch.dtype,
        default: torch.dtype,
    ) -> float:
        (b, sq, more), (indexing, n), generator = sizes, heads, torch.Generator().manual_seed(p.seed)
        sk, d = sq + more, 8
        random = partial(torch.randn, generator=generator)
        # q, weights, k of the indexer; earlier states of main lose gradients where a probability is next to nothing
        leaves = [random(sq, b, indexing, d) / 16, random(sq, b, indexing), random(sk, b, d)]
        leaves = [t.to(device, dtype).requires_grad_() for t in leaves]
        query, key = (random(s, b, n, d).to(device, dtype) for s in (sq, sk))
        mask = torch.full((sq, sk), float("-inf"), device=device).triu(1 + more)
        chosen, loss = fused.apply(
            *leaves,
            query,
            key,
            d**-0.5,
            min(topk, sk),
            0.25,
            mask,
            sparse,
            groups,
            None,
            None,
            None,
            None,
            per_token,
            relu,
        )
        found = list[Tensor]()
        torch.set_default_dtype(default)
        try:
            places = p.waits(lambda: found.extend(torch.autograd.grad(loss, leaves, retain_graph=True)))
        finally:
            torch.set_default_dtype(torch.float32)
        waited[0] += places.total()
        try:
            with Elsewhere():  # called by hand, as autograd's calls ask no mode
                again = fused.backward(loss.grad_fn, None, torch.ones_like(loss))[:3]
        except (RuntimeError, NotImplementedError):  # something has no values
            return math.inf
        exact = [t.detach().double().requires_grad_() for t in leaves]
        score = torch.einsum("sbhd,tbd->bsht", exact[0], exact[2])
        score = ((score.relu() if relu else score) * exact[1].transpose(0, 1)[..., None]).sum(2)  # [b, sq, sk]
        open_ = (mask == 0).expand(b, sq, sk)
        if sparse:
            kept = torch.zeros(b, sq, sk + 1, dtype=torch.bool, device=device)
            kept.scatter_(2, chosen.long().where(chosen >= 0, sk), True)
            open_ = open_ & kept[..., :sk]
        attention = torch.einsum("sbhd,tbhd->bhst", query.double(), key.double()) * d**-0.5
        target = attention.masked_fill(~open_[:, None], float("-inf")).softmax(-1).mean(1)
        rest = score.masked_fill(~open_, float("-inf")).log_softmax(-1).masked_fill(~open_, 0)
        total = -0.25 * (target * rest).sum() / (1 if per_token else b * sq)  # KL, but for what has no gradient
        true = torch.autograd.grad(total, exact)
        off = max(
            sum((t.double() - grad).square().sum() for t, grad in zip(each, true, strict=True)) ** 0.5
            for each in (found, again)
        )
        size = sum(grad.square().sum() for grad in true) ** 0.5  # 0 where one key is open or ReLU lets nothing pass
        return float(off / (size + 0.25 / (1 if per_token else b * sq)))

    # mostly batch times length is no number of bf16; with per_token it does not count
    lengths = st.integers(2, 19) | st.integers(257, 270) | st.integers(257, 270)
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 2**-7)):
        space = {
            "sizes": st.tuples(st.integers(1, 3), lengths, st.integers(0, 3)),
            "heads": st.tuples(st.integers(1, 3), st.integers(1, 3)),
            "topk": st.integers(2, 8),
            "sparse": st.booleans(),
            "relu": st.booleans(),
            "per_token": st.sampled_from([False, False, False, True]),
            "dtype": st.just(dtype),
            "default": st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
        }
        p.drawn(
            f"gradients of the indexer's loss, {str(dtype)[6:]}, drawn",
            measure,
            limit,
            space=space,
            count=12,
            reference="fp64 autograd of the loss",
        )
    p.error(
        "waits in the backward of the indexer's loss, drawn",
        waited[0],
        0,
        reference="none needed: the host knows all shapes",
        bug_above=1,
    )


def check_masks(p: probe.Probe) -> None:
    """What the reads of an earlier state of main decided: a mask that is no [start, end) per row is declined."""
    masking, b, k, device = p.upstream(VARIANT + "dsa_masking"), 2, 8, torch.cuda.current_device()
    plain = torch.full((S, S), float("-inf"), device=device).triu(1)
    holed, batched, rows = plain.clone(), plain.expand(b, S, S).clone(), torch.arange(S, device=device)
    holed[5, 2] = batched[1, 5, 2] = float("-inf")
    cases: dict[str, dict[str, Any]] = {
        "a mask with a hole": {"mask": holed},
        "masks that differ in the batch": {"mask": batched},
        "keys in another order": {
            "varlen_starts": torch.zeros_like(rows),
            "varlen_ends": rows + 1,
            "key_positions": rows.flip(0),
        },
    }
    bounds = partial(masking.build_fused_indexer_varlen_bounds, sq=S, skv=S, device=rows.device)
    nothing: dict[str, Any] = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
    accepted: list[str] = []

    def ask() -> None:
        accepted.extend(name for name, case in cases.items() if bounds(**{**nothing, **case}) is not None)

    p.error(
        "waits in the fused indexer's bounds",
        p.waits(ask).total(),
        0,
        reference="decided by the arguments given",
        bug_above=1,
    )
    p.guard("masks accepted that the fused indexer cannot express", len(accepted), 0, reference=", ".join(cases))
    chosen = torch.randint(-1, S, (b, S, k), generator=torch.Generator().manual_seed(p.seed))  # -1: no token
    expected = torch.full((b, S, S), float("-inf"))
    found = expected.to(rows.device, copy=True)
    masking.scatter_topk_into_index_mask(found, chosen.to(rows.device))
    for i, row, j in (chosen >= 0).nonzero().tolist():
        expected[i, row, chosen[i, row, j]] = 0
    p.guard("entries of the index mask that are wrong", int((found.cpu() != expected).sum()), 0, reference="one by one")


def check_capture(p: probe.Probe, model: Any, cp: int, rank: int) -> None:
    """Capture on one input, replay on another; a failed capture leaves the process unfit for more, so it comes last."""
    signature = probe.Signature("RuntimeError", "(?i)captur", VARIANT.replace(".", "/") + "dsa.py")
    for what, backward in (("forward", False), ("forward and backward", True)):
        static, new = ([share(t, rank) if cp > 1 else t for t in inputs(p.seed + i)] for i in range(2))
        call = partial(step, p, model, static, backward)
        done = p.attempt(f"rank {rank}: capture of {what}, CP={cp}", partial(p.graph, call), signature)
        if done is None:
            return
        graph, made = done
        eager, again = step(p, model, new, backward), step(p, model, new, backward)
        with torch.no_grad():
            for kept, t in zip(static, new, strict=True):
                kept.copy_(t)
            for t in made:
                t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        worst, itself = (max(map(norm_off, run, eager)) for run in (made, again))
        p.note(f"rank {rank}: eager {what}, CP={cp}, run twice", itself)
        p.error(
            f"rank {rank}: replay of {what}, CP={cp}, new inputs",
            worst,
            2**-5,
            # the same kernels, but atomics sum gradients in any order: up to 2**-6.6 seen, eager run twice is noted
            reference="eager: output and gradients",
            bug_above=0.1,
        )
        same = sum(torch.equal(t, expected) for t, expected in zip(made, eager, strict=True))
        p.note(f"rank {rank}: replay of {what}, CP={cp}: bitwise equal", f"{same} of {len(made)} tensors")


def work(p: probe.Probe, parts: str, rank: int) -> None:
    """What one rank does; ``parts`` are those that may share a process.

    What both ranks take part in comes first, so that neither waits long for the other: a collective that the other has
    left out fails after a minute, not after Megatron's 30.
    """
    p.megatron_cpu(context_parallel_size=p.rank.world, distributed_timeout_minutes=1)
    alone = layer(p, 1)
    split = layer(p, WORLD) if p.rank.world == WORLD else None
    if "2" in parts:
        check_waits(p, split, WORLD, rank)
        check_result(p, alone, split, rank)
        if p.lane == "cuda":
            check_capture(p, split, WORLD, rank)
        elif not check_devices(p, split, rank):  # of code that both lanes share
            return
    if "r" in parts:
        check_lengths(p, alone, split, rank)
    if "1" in parts and rank == 0:
        check_waits(p, alone, 1, rank)
        check_alone(p, alone)
        check_loss(p)
        check_masks(p)
        if p.lane == "cuda":
            check_capture(p, alone, 1, rank)


def work_on_cpu(p: probe.Probe, parts: str, rank: int) -> None:
    """The same in this rank's process alone, as on the cpu lane."""
    p.lane = "cpu"
    work(p, parts, rank)


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        p.upstream("megatron.core")  # once, for all ranks
    p.ranks(MANY, partial(check_many, p))
    if p.lane == "cpu":
        return p.ranks(WORLD, partial(work, p, "2r1"))
    if torch.cuda.device_count() < WORLD:  # counted without touching one
        p.skip("capture with CP=2", "needs two GPUs; its waits are counted on the CPU")
        p.ranks(WORLD, partial(work_on_cpu, p, "2r"))
        return p.ranks(1, partial(work, p, "1"))
    for parts in ("2", "1", "r"):
        p.ranks(WORLD, partial(work, p, parts))
    p.ranks(WORLD, partial(check_device_refuses, p))
    return None


if __name__ == "__main__":
    probe.main(reproduce, pack=1, package="megatron", minimal=minimal)
