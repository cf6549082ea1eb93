# /// script
# requires-python = ">=3.11"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging"]
# ///
"""A DSA layer under context parallelism reads sequence lengths back from the device in every forward pass.

Each read stops the host until the device has caught up, and makes CUDA graph capture of the layer impossible. Without
context parallelism the layer of 0.19.0 has no such read; an earlier state of main had six. CPU lane: two gloo ranks,
and a dispatch mode that counts the operations which would wait for a GPU. CUDA lane: two ranks with a GPU each and
NCCL; PyTorch's own count of synchronising calls, then real capture, and replay with new inputs against eager.
"""

from __future__ import annotations

import itertools
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reproducers import probe

S, B, HIDDEN, HEADS, TOPK, WORLD = 128, 2, 256, 4, 32, 2  # tokens over all ranks, batch, width, heads
QK, V, LORA = 48, 32, 64  # widths of a query or key, a value and the compressed query
VARIANT = "megatron.core.transformer.experimental_attention_variant."
WAITS = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim")
REFUSAL = "uniform per-rank sequence lengths"


class Duplicated(nn.Linear):
    """Megatron's linear layers return (output, bias); the one for duplicated weights exists in TE only."""

    def __init__(self, rows: int, columns: int, *, config: Any, **_: Any) -> None:
        super().__init__(rows, columns, bias=False, dtype=config.params_dtype)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


def layer(p: probe.Probe, cp: int) -> Any:
    """The real DSAttention with its indexer and indexer loss, in bf16, for ``cp`` context parallel ranks."""
    dsa = p.upstream(VARIANT + "dsa")
    configs = p.upstream("megatron.core.transformer.transformer_config")
    norm = p.upstream("megatron.core.transformer.torch_norm").WrappedTorchNorm
    spec = p.upstream("megatron.core.transformer.spec_utils").ModuleSpec
    causal = p.upstream("megatron.core.transformer.enums").AttnMaskType.causal
    collection = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection
    groups = collection.use_mpu_process_groups(required_pgs=["tp", "cp"])
    if cp == 1:
        groups.cp = groups.tp  # this rank alone
    config = configs.MLATransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, use_cpu_initialization=True, add_bias_linear=False,
        q_lora_rank=LORA, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=V, rope_type="rope",
        rotary_base=10000, rotary_percent=1.0, apply_rope_fusion=False, attention_dropout=0.0, hidden_dropout=0.0,
        experimental_attention_variant="dsa", dsa_indexer_n_heads=4, dsa_indexer_head_dim=32, dsa_indexer_topk=TOPK,
        dsa_indexer_loss_coeff=0.1, bf16=True, params_dtype=torch.bfloat16, context_parallel_size=cp,
        cp_comm_type="allgather",
    )  # fmt: skip
    parts = dsa.DSAIndexerSubmodules(
        linear_wq_b=Duplicated, linear_wk=Duplicated, k_norm=norm, linear_weights_proj=Duplicated
    )
    submodules = dsa.DSAttentionSubmodules(indexer=spec(module=dsa.DSAIndexer, submodules=parts))
    torch.manual_seed(p.seed)
    built = dsa.DSAttention(
        config=config, submodules=submodules, layer_number=1, attn_mask_type=causal, attention_type="self",
        softmax_scale=QK**-0.5, k_channels=QK, v_channels=V, cp_comm_type="allgather", pg_collection=groups,
    )  # fmt: skip
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


def step(p: probe.Probe, model: Any, given: list[Tensor]) -> list[Tensor]:
    """One forward and backward; the output and the gradients of query, key, value and the indexer's weights."""
    causal = p.upstream("megatron.core.transformer.enums").AttnMaskType.causal
    leaves = [t.requires_grad_() for t in given[:3]]
    out = model(*leaves, None, x=given[3], qr=given[4], attn_mask_type=causal)  # [S or S / WORLD, B, HEADS * V]
    wanted = [*leaves, *model.parameters()]
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), wanted)]


class Reads(TorchDispatchMode):
    """Where operations are called whose result the host must know: values, sizes and indices by bool tensors."""

    def __init__(self, tree: str) -> None:
        super().__init__()
        self.tree, self.places = tree, Counter[str]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(op).split(".")[1]
        by_bool = name.startswith("index") and any(
            isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)
            for t in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if name in WAITS or by_bool:
            frames = [f for f in traceback.extract_stack() if f.filename.startswith(self.tree)]
            place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"
            self.places[place] += 1
        return op(*args, **(kwargs or {}))


def reads(p: probe.Probe, call: Callable[[], Any]) -> Counter[str]:
    """The places where ``call`` makes the host wait: by the dispatch mode, or as PyTorch warns of them on a GPU."""
    if p.lane == "cpu":
        with Reads(str(p.tree.resolve())) as spy:
            call()
        return spy.places
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in said if "synchronizing CUDA operation" in str(w.message)]
    return Counter(f"{w.filename.rpartition('/')[2]}:{w.lineno}" for w in waits)


def check_reads(p: probe.Probe, model: Any, cp: int, rank: int) -> None:
    """Count in the second step: what is read once and kept does not matter."""
    mine = [share(t, rank) for t in inputs(p.seed)] if cp > 1 else inputs(p.seed)
    first = reads(p, lambda: step(p, model, mine))
    later = reads(p, lambda: step(p, model, mine))
    if rank == 0:
        p.error(f"CP={cp}: host reads in a later forward and backward", sum(later.values()), 0,
                reference="none needed: the host knows all shapes", bug_above=1)  # fmt: skip
        for name, places in (("first", first), ("later", later)):
            text = ", ".join(f"{place} x{count}" for place, count in sorted(places.items()))
            p.note(f"CP={cp}: host reads in the {name} step", text or "none")


def norm_off(measured: Tensor, reference: Tensor) -> float:
    return ((measured.double() - reference.double()).norm() / reference.double().norm()).item()


def check_result(p: probe.Probe, alone: Any, split: Any, rank: int) -> None:
    """Two ranks compute what one computes."""
    whole = step(p, alone, inputs(p.seed))[0]
    mine = step(p, split, [share(t, rank) for t in inputs(p.seed)])
    if p.lane == "cpu":  # a GPU sums gradients in any order
        p.digest(f"rank {rank}: CP=2 output and gradients", *mine)
    p.guard(f"rank {rank}: CP=2 output", norm_off(mine[0], share(whole, rank)), 2**-6,  # bf16, and a few tied tokens
            reference="the same tokens with CP=1")  # fmt: skip


def refused(call: Callable[[], Any]) -> None:
    """``call`` must say that the lengths differ."""
    try:
        call()
    except RuntimeError as error:
        if re.search(REFUSAL, str(error)):
            return
        raise
    raise AssertionError("not refused")


def check_refusals(p: probe.Probe, split: Any, rank: int, lengths: list[int]) -> None:
    """Ranks of different lengths must all notice before the keys are gathered; each may have seen its own before.

    Shorter sequences come in larger batches, so that sizes in bytes agree and no collective notices on its own.
    """
    given = [t[: S // WORLD].reshape(lengths[rank], -1, *t.shape[2:]) for t in inputs(p.seed)]
    which = " and ".join(map(str, lengths))
    p.guard_attempt(f"rank {rank}: refuses lengths {which}", lambda: refused(lambda: step(p, split, given)))


def check_masks(p: probe.Probe) -> None:
    """What the reads of an earlier state of main decided: a mask that is no [start, end) per row is declined."""
    masking, b, k, device = p.upstream(VARIANT + "dsa_masking"), 2, 8, torch.cuda.current_device()
    causal = torch.full((S, S), float("-inf"), device=device).triu(1)
    holed, batched, rows = causal.clone(), causal.expand(b, S, S).clone(), torch.arange(S, device=device)
    holed[5, 2] = batched[1, 5, 2] = float("-inf")
    cases: dict[str, dict[str, Any]] = {
        "a mask with a hole": {"mask": holed},
        "masks that differ in the batch": {"mask": batched},
        "keys in another order": {"varlen_starts": torch.zeros_like(rows), "varlen_ends": rows + 1,
                                  "key_positions": rows.flip(0)},
    }  # fmt: skip
    bounds = partial(masking.build_fused_indexer_varlen_bounds, sq=S, skv=S, device=rows.device)
    nothing: dict[str, Any] = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
    accepted: list[str] = []

    def ask() -> None:
        accepted.extend(name for name, case in cases.items() if bounds(**{**nothing, **case}) is not None)

    p.error("host reads in the fused indexer's bounds", sum(reads(p, ask).values()), 0,
            reference="decided by the arguments given", bug_above=1)  # fmt: skip
    p.guard("masks accepted that the fused indexer cannot express", len(accepted), 0, reference=", ".join(cases))
    chosen = torch.randint(-1, S, (b, S, k), generator=torch.Generator().manual_seed(p.seed))  # -1: no token
    expected = torch.full((b, S, S), float("-inf"))
    found = expected.to(rows.device, copy=True)
    masking.scatter_topk_into_index_mask(found, chosen.to(rows.device))
    for at, token in zip(itertools.product(range(b), range(S), range(k)), chosen.flatten().tolist(), strict=True):
        if token >= 0:
            expected[at[0], at[1], token] = 0
    p.guard("entries of the index mask that are wrong", int((found.cpu() != expected).sum()), 0, reference="one by one")


def capture(p: probe.Probe, model: Any, given: list[Tensor]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """Warm up on a side stream, then capture one step; the first error inside the capture is the one raised."""
    side, graph, errors = torch.cuda.Stream(), torch.cuda.CUDAGraph(), list[Exception]()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(p, model, given)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's own threads may call CUDA
            try:
                made = step(p, model, given)
            except Exception as error:
                errors.append(error)
                raise
    except Exception as ending:
        raise (errors or [ending])[0] from None
    return graph, made


def milliseconds(call: Callable[[], Any]) -> float:
    """Median of 9 device times after 2 unmeasured calls."""
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[2:])[4]


def check_capture(p: probe.Probe, model: Any, cp: int, rank: int) -> None:
    """Capture on one input, replay on another; a failed capture leaves the process unfit for more."""

    def local(seed: int) -> list[Tensor]:
        return [share(t, rank) if cp > 1 else t for t in inputs(seed)]

    static, new = local(p.seed), local(p.seed + 1)
    signature = probe.Signature("RuntimeError", "(?i)captur", VARIANT.replace(".", "/") + "dsa.py")
    done = p.attempt(f"rank {rank}: capture with CP={cp}", lambda: capture(p, model, static), signature)
    if done is None:
        return
    graph, made = done
    eager = step(p, model, new)
    with torch.no_grad():
        for kept, t in zip(static, new, strict=True):
            kept.copy_(t)
    for t in made:
        t.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    worst = max(norm_off(t, expected) for t, expected in zip(made, eager, strict=True))
    p.error(f"rank {rank}: replay with CP={cp} on new inputs", worst, 2**-7,
            # the same kernels; gradients are summed by atomics in any order and rounded to bf16
            reference="eager step: output and gradients", bug_above=0.1)  # fmt: skip
    same = sum(torch.equal(t, expected) for t, expected in zip(made, eager, strict=True))
    replay, call = milliseconds(graph.replay), milliseconds(lambda: step(p, model, new))
    if rank == 0:
        p.note(f"CP={cp}: tensors bitwise equal to eager", f"{same} of {len(made)}")
        p.note(f"CP={cp}: replayed step", replay, unit="ms")
        p.note(f"CP={cp}: eager step", call, unit="ms")


def work(p: probe.Probe, parts: str, rank: int) -> None:
    """What one rank does; ``parts`` are those that may share a process."""
    p.megatron_cpu(context_parallel_size=WORLD)
    alone, split = layer(p, 1), layer(p, WORLD)
    if "2" in parts:
        check_reads(p, split, WORLD, rank)
        check_result(p, alone, split, rank)
        if p.lane == "cuda":
            check_capture(p, split, WORLD, rank)
    if "1" in parts and rank == 0:
        check_reads(p, alone, 1, rank)
        check_masks(p)
        if p.lane == "cuda":
            check_capture(p, alone, 1, rank)
    if "r" in parts:
        check_refusals(p, layer(p, WORLD), rank, [S // 2, S // 4])
        if p.lane == "cpu":  # rank 0 has checked its length before, rank 1 has not
            check_refusals(p, split, rank, [S // 2, S // 8])


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cuda":
        p.skip("lengths that differ after a step in which they agreed", "a device-side assertion ends the process")
    for parts in ("21r",) if p.lane == "cpu" else ("2", "1", "r"):
        p.ranks(WORLD, partial(work, p, parts))


if __name__ == "__main__":
    probe.main(reproduce, pack=1, package="megatron")
