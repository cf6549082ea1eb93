# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""On two pipeline ranks the interleaved schedule without ``overlap_p2p_comm`` takes activations for gradients.

Between two ranks the one before is the one after as well. ``_batched_p2p_ops`` and ``_communicate_shapes`` list what
goes to and comes from the previous rank first on both, and messages between two ranks are matched by their order alone:
what a rank sends back is what the other one receives as sent forward, and the other way round. Nothing is raised, as
both have one shape. Stages here permute channels and change signs, so that all values are whole numbers and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice, permutations, product
from math import inf, prod
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import Tensor, nn

from reproducers import probe


def minimal() -> None:
    """Both ranks send 1 forward and -1 back, on a CPU; each prints what came from the one before and the one after."""
    import os
    import tempfile

    import torch
    from megatron.core import ModelParallelConfig
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    torch.cuda.current_device = lambda: "cpu"  # where Megatron puts what it receives
    store, rank = "file://" + tempfile.mktemp(), int(os.fork() == 0)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    config = ModelParallelConfig(pipeline_dtype=torch.float32, batch_p2p_sync=False)
    exchange, one = P2PCommunicator(torch.distributed.group.WORLD, config), torch.ones(1)
    before, after = exchange.send_forward_backward_recv_forward_backward(one, -one, True, True, (1,))
    print(f"rank {rank}: {before.item()} should be 1, {after.item()} should be -1", flush=True)
    os._exit(0) if rank else os.wait()
    assert before == 1


WAIT = 60.0  # seconds for a step of a few numbers
Shape = tuple[int, ...]
WHOLE = 8  # values drawn are whole numbers up to this; bf16 has all up to 256


@dataclass(frozen=True)
class Options:
    """Of Megatron's configuration; by default they are its own."""

    batched: bool = True
    overlap: bool = False
    flush: bool = False  # overlap in warm-up and cool-down too
    variable: bool = False  # shapes are told before

    def settings(self) -> dict[str, bool]:
        return {
            "batch_p2p_comm": self.batched,
            "overlap_p2p_comm": self.overlap,
            "overlap_p2p_comm_warmup_flush": self.flush,
            "variable_seq_lengths": self.variable,
        }


@dataclass(frozen=True)
class Case:
    """A step by Megatron's schedule: ``batches`` micro-batches through ``chunks`` stages on each rank."""

    chunks: int = 2
    batches: int = 4
    group: int = 0  # micro-batches that a chunk has in turn beyond one a rank
    options: Options = Options()
    hidden: int = 6
    tokens: tuple[int, ...] = (3,)  # of each micro-batch in turn
    rows: int = 2
    dtype: torch.dtype = torch.float32
    freed: bool = False  # outputs are freed once they are sent
    forward_only: bool = False


class Stage(nn.Module):
    """y = x W in fp32 for x [tokens, rows, hidden], which come and go in another dtype."""

    def __init__(self, config: Any, kind: Any, weight: Tensor, chunk: int | None) -> None:
        super().__init__()
        self.config, self.model_type, self.vp_stage = config, kind, chunk
        self.weight, self.given = nn.Parameter(weight), None

    def set_input_tensor(self, given: list[Tensor | None]) -> None:
        (self.given,) = given

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.given is None else self.given
        return (x.float() @ self.weight).to(self.config.pipeline_dtype)


def drawn(case: Case, stages: int, seed: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Signed permutations [stages, h, h], and inputs and targets [tokens, rows, h] of each micro-batch, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(2, (stages, case.hidden), generator=generator) * 2.0 - 1
    order = [torch.randperm(case.hidden, generator=generator) for _ in range(stages)]
    weights = torch.stack([torch.diag(sign)[:, place] for sign, place in zip(signs, order, strict=True)])
    lengths = [case.tokens[at % len(case.tokens)] for at in range(case.batches)]
    whole = partial(torch.randint, 1, WHOLE + 1, generator=generator, dtype=torch.float32)
    inputs, targets = ([whole((length, case.rows, case.hidden)) for length in lengths] for _ in range(2))
    return weights, inputs, targets


def truth(weights: Tensor, inputs: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, list[float]]:
    """Gradients of all weights and the loss (y target).sum() of each micro-batch, by formulas in fp64."""
    weights, gradients, losses = weights.double(), torch.zeros_like(weights, dtype=torch.float64), list[float]()
    for x, target in zip(inputs, targets, strict=True):
        at = [x.double().flatten(0, 1)]
        for weight in weights:
            at.append(at[-1] @ weight)
        back = target.double().flatten(0, 1)
        losses.append(float((at[-1] * back).sum()))
        for number in reversed(range(len(weights))):
            gradients[number] += at[number].T @ back
            back = back @ weights[number].T
    return gradients, losses


def step(p: probe.Probe, case: Case) -> int:
    """Numbers of this rank, gradients and losses, that a step gets wrong."""
    state = p.upstream("megatron.core.parallel_state")
    rank, ranks = state.get_pipeline_model_parallel_rank(), state.get_pipeline_model_parallel_world_size()
    interleaved = case.chunks > 1
    config = p.upstream("megatron.core.transformer").TransformerConfig(
        num_layers=ranks * case.chunks,
        hidden_size=case.hidden,
        num_attention_heads=1,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=case.chunks if interleaved else None,
        microbatch_group_size_per_vp_stage=ranks + case.group,
        pipeline_dtype=case.dtype,
        deallocate_pipeline_outputs=case.freed,
        calculate_per_token_loss=True,
        moe_token_dispatcher_type="alltoall",  # without experts, too, the only one beside variable_seq_lengths
        **case.options.settings(),
    )
    kind = p.upstream("megatron.core.enums").ModelType.encoder_or_decoder
    device = torch.cuda.current_device()
    weights, inputs, targets = drawn(case, ranks * case.chunks, p.seed + state.get_data_parallel_rank())
    model = [
        Stage(config, kind, weights[chunk * ranks + rank].to(device), chunk if interleaved else None)
        for chunk in range(case.chunks)
    ]

    def forward(batches: Iterator[tuple[Tensor, Tensor]], stage: Stage) -> tuple[Tensor, Callable[[Tensor], Any]]:
        x, target = (value.to(device) for value in next(batches))

        def loss(y: Tensor) -> Any:
            total = (y.float() * target).sum()
            return total, torch.tensor(1, dtype=torch.int, device=device), total.detach().clone()

        return stage(x.to(case.dtype)), loss

    state.set_virtual_pipeline_model_parallel_world_size(case.chunks if interleaved else None)
    schedules = p.upstream("megatron.core.pipeline_parallel.schedules")
    run = getattr(schedules, f"forward_backward_pipelining_with{'' if interleaved else 'out'}_interleaving")
    found = within(
        f"rank {rank}: {case}",
        lambda: run(
            forward_step_func=forward,
            data_iterator=[iter(zip(inputs, targets, strict=True)) for _ in model],
            model=model,
            num_microbatches=case.batches,
            seq_length=case.tokens[0],
            micro_batch_size=case.rows,
            forward_only=case.forward_only,
        ),
    )
    gradients, losses = truth(weights, inputs, targets)
    wrong = 0
    if rank == ranks - 1:
        wrong += sum(got.item() != want for got, want in zip(found, losses, strict=True))
    for chunk, stage in enumerate(model):
        want = gradients[chunk * ranks + rank]
        got = torch.zeros_like(want) if stage.weight.grad is None else stage.weight.grad.double().cpu()
        wrong += 0 if case.forward_only else int((got != want).sum())
    return wrong


def within(name: str, call: Callable[[], Any]) -> Any:
    """The value of ``call``; RuntimeError if it takes longer than ``WAIT``, as it does where a message never comes."""

    def work() -> Any:
        if torch.cuda.is_available():
            torch.cuda.set_device(dist.get_rank())
        return call()

    made = futures.ThreadPoolExecutor(1).submit(work)
    if not futures.wait([made], WAIT).done:
        raise RuntimeError(f"{name}: hangs")
    return made.result()


@contextmanager
def without_gpu() -> Iterator[None]:
    """Sends and receives without tags, which gloo heeds and NCCL does not have; and no stream is being captured."""
    module = dist.distributed_c10d

    def untagged(real: Callable[..., Any], *args: Any, tag: int = 0, **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    named = {name: partial(untagged, getattr(module, name)) for name in ("isend", "irecv")}
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False))
        for name, place in product(named, (dist, module)):
            patches.enter_context(mock.patch.object(place, name, named[name]))
        yield


def exchanged(ring: Any, sent: tuple[bool, ...], shapes: list[Shape]) -> int:
    """Messages that this rank of a ring gets otherwise than they were sent.

    ``sent`` and ``shapes``: of what rank 0 sends to the next one and to the previous one, then of rank 1's, and so on.
    """
    size, rank = ring.pp_group.size(), ring.pp_group.rank()

    def message(of: int, back: int) -> Tensor | None:
        number = 2 * (of % size) + back
        values = torch.arange(prod(shapes[number]), dtype=torch.float32, device=torch.cuda.current_device())
        return (values + 1000 * number).view(shapes[number]) if sent[number] else None

    forward, back = message(rank - 1, 0), message(rank + 1, 1)
    found = within(
        f"rank {rank} of {size}: {ring.config}, {sent}",
        lambda: ring.send_forward_backward_recv_forward_backward(
            message(rank, 0), message(rank, 1), forward is not None, back is not None, shapes[0]
        ),
    )
    return sum(
        (got is None) != (want is None) or (want is not None and not torch.equal(got, want))
        for got, want in zip(found, (forward, back), strict=True)
    )


def rings(p: probe.Probe, group: Any, options: Options, shapes: list[Shape]) -> int:
    """``exchanged`` over all that the ranks of a ring may send or not at once."""
    config = p.upstream("megatron.core").ModelParallelConfig(pipeline_dtype=torch.float32, **options.settings())
    ring = p.upstream("megatron.core.pipeline_parallel.p2p_communication").P2PCommunicator(group, config)
    return sum(exchanged(ring, sent, shapes) for sent in product((True, False), repeat=2 * group.size()))


def orders(count: int) -> list[Shape]:
    """``count`` shapes of 24 numbers each, no two neighbours alike."""
    return list(islice(cycle(permutations((2, 3, 4))), count))


ALIKE: list[Shape] = [(2, 3, 4)] * 6
VARIABLE = Options(variable=True)
UNBATCHED, OVERLAPPED = Options(batched=False), Options(batched=False, overlap=True)
LENGTHS = (3, 5, 1, 4)
# {name: (case, whether it has the bug)} of two pipeline ranks
STEPS = {
    "two chunks": (Case(), True),
    "three chunks, bf16, outputs freed": (Case(3, 8, 1, dtype=torch.bfloat16, freed=True), True),
    "two chunks, shapes told, of one length": (Case(options=VARIABLE), True),
    "two chunks, forward only": (Case(forward_only=True), False),
    "two chunks, not batched": (Case(options=UNBATCHED), False),
    "two chunks, overlapped": (Case(options=OVERLAPPED), False),
    "two chunks, overlapped, shapes told": (Case(options=replace(OVERLAPPED, variable=True), tokens=LENGTHS), False),
    "two chunks, overlapped throughout, shapes told": (
        Case(options=replace(OVERLAPPED, flush=True, variable=True), tokens=LENGTHS),
        False,
    ),
    "a chunk a rank": (Case(1), False),
    "a chunk a rank, shapes told": (Case(1, options=VARIABLE, tokens=LENGTHS), False),
}
EXCHANGES = {
    "batched": ((Options(), ALIKE), True),
    "batched, shapes told": ((VARIABLE, orders(4)), True),
    "not batched, shapes told": ((replace(UNBATCHED, variable=True), orders(4)), True),
    "not batched": ((UNBATCHED, ALIKE), False),
}


def any_step(ranks: int, several: bool) -> st.SearchStrategy[Case]:
    """Interleaved steps that Megatron accepts on ``ranks``, of one length, or of ``several``, which are then told."""
    options = [VARIABLE, replace(UNBATCHED, variable=True)] if several else [Options(), VARIABLE]

    def accepted(case: Case) -> bool:
        turn = ranks + case.group
        left = case.batches % turn
        warm = case.batches * case.chunks <= 2 * (ranks - 1) + (case.chunks - 1) * turn
        # Megatron wants turns of at least as many as there are ranks. Where a rank's warm-up is all it has to do
        # forward, shapes that are told never arrive over gloo, on any number of ranks: another bug.
        return case.batches >= turn and (left == 0 or left >= ranks) and not (warm and case.options.variable)

    return st.builds(
        Case,
        chunks=st.integers(2, 4),
        batches=st.integers(ranks, 9),
        group=st.integers(0, 2),
        options=st.sampled_from(options),
        hidden=st.integers(2, 9),
        tokens=st.lists(st.integers(1, 7), min_size=2 if several else 1, max_size=4 if several else 1).map(tuple),
        rows=st.integers(1, 3),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
        freed=st.booleans(),
    ).filter(accepted)


def total(own: float) -> float:
    """The sum of all ranks' numbers."""
    value = torch.tensor(float(own))
    dist.all_reduce(value)
    return float(value)


def draw(p: probe.Probe, name: str, space: st.SearchStrategy[Case], count: int, bug_above: float = inf) -> None:
    """Check ``name``: the most wrong numbers of all ranks over drawn steps. Rank 0 draws, the others follow."""

    def measure(case: Case) -> float:
        dist.broadcast_object_list([case])
        return total(step(p, case))

    if dist.get_rank() == 0:
        p.drawn(name, measure, 0, space={"case": space}, count=count, reference="formulas", bug_above=bug_above)
        dist.broadcast_object_list([None])
        return
    while True:
        told: list[Case | None] = [None]
        dist.broadcast_object_list(told)
        if told[0] is None:
            return
        total(step(p, told[0]))


def pipeline(p: probe.Probe, ranks: int) -> Any:
    """Megatron with ``ranks`` pipeline ranks; their group."""
    state = p.upstream("megatron.core.parallel_state")
    state.destroy_model_parallel()
    p.megatron_cpu(pipeline_model_parallel_size=ranks)
    return state.get_pipeline_model_parallel_group()


def two_and_two(p: probe.Probe) -> dict[str, int]:
    """{check: what this rank gets wrong} as one of two pipeline ranks; of four both are even, or both odd."""
    group = pipeline(p, 2)
    wrong = {f"{name}: messages": rings(p, group, *how) for name, (how, _) in EXCHANGES.items()}
    wrong |= {f"{name}: numbers": step(p, case) for name, (case, _) in STEPS.items()}
    draw(p, "drawn steps of one length: numbers that are wrong", any_step(2, several=False), 8, bug_above=1)
    if total(sum(wrong.values())) == 0:  # else messages of another shape end the step in an error
        draw(p, "drawn steps of several lengths: numbers that are wrong", any_step(2, several=True), 12)
    return wrong


def more_than_two(p: probe.Probe) -> dict[str, int]:
    """The same as one of four pipeline ranks, and of a ring of three."""
    pipeline(p, 4)
    case = Case(batches=8)
    wrong = {"four pipeline ranks: numbers": step(p, case)}
    told = replace(case, options=VARIABLE, tokens=LENGTHS)
    wrong["four pipeline ranks, shapes told: numbers"] = step(p, told)
    three = dist.new_group([0, 1, 2])
    if dist.get_rank() < 3:
        wrong["three in a ring: messages"] = rings(p, three, Options(), ALIKE)
        wrong["three in a ring, shapes told: messages"] = rings(p, three, VARIABLE, orders(6))
    return wrong


BUGS = {f"{name}: messages" for name, (_, bug) in EXCHANGES.items() if bug}
BUGS |= {f"{name}: numbers" for name, (_, bug) in STEPS.items() if bug}


def reproduce(p: probe.Probe) -> None:
    four = p.lane == "cpu" or torch.cuda.device_count() > 3  # counted without touching one

    def work(rank: int) -> dict[str, int]:
        with without_gpu() if p.lane == "cpu" else nullcontext():
            return two_and_two(p) | (more_than_two(p) if four else {})

    if p.lane == "cpu":
        p.upstream("megatron.core.pipeline_parallel.schedules")  # once for all ranks, which are forked
    found = p.ranks(4 if four else 2, work)
    for name in found[0]:
        wrong = sum(one.get(name, 0) for one in found)
        reference = "what was sent" if name.endswith("messages") else "formulas in fp64"
        if name in BUGS:
            p.error(f"{name} that are wrong", wrong, 0, reference=reference, bug_above=1)
        else:
            p.guard(f"{name} that are wrong", wrong, 0, reference=reference)
    if not four:
        p.skip("more than two pipeline ranks", "four GPUs; the cpu lane has them")


if __name__ == "__main__":
    probe.main(reproduce, pack=60, package="megatron", minimal=minimal)
