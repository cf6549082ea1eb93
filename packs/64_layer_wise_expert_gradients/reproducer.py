# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging", "hypothesis"]
# ///
"""LayerWiseDistributedOptimizer drops expert biases' gradients from norm and count where expert and dense TP differ.

A parameter that tensor-parallel ranks hold alike is counted by the first of them. Of an expert's that is the first
of the expert tensor-parallel group, which optimizers are told as ``expert_tp_group``. Nobody tells the optimizers below
the layer-wise one, nor its ``count_zeros``, so the first dense tensor-parallel rank counts. With TP 2 and ETP 1 the
other rank's experts are not in the norm: it is too small, and gradients are clipped too little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal() -> None:
    """An expert's bias of ones on each of two ranks, on a CPU, with TP 2, EP 2 and ETP 1."""
    import os
    import tempfile

    import torch
    from megatron.core import optimizer, parallel_state, process_groups_config
    from megatron.core.optimizer import layer_wise_optimizer as layer_wise

    store, rank = "file://" + tempfile.mktemp(), int(os.fork() == 0)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(2, 1, expert_model_parallel_size=2, expert_tensor_parallel_size=1)
    groups = process_groups_config.ProcessGroupCollection.use_mpu_process_groups()
    bias = torch.nn.Parameter(torch.ones(8))
    bias.allreduce, bias.grad, sgd = False, torch.ones(8), torch.optim.SGD([bias], 1.0)
    one = optimizer.FP32Optimizer(sgd, optimizer.OptimizerConfig(), None)
    got = layer_wise.LayerWiseDistributedOptimizer([one], one.config, groups).get_grad_norm()
    print(f"rank {rank}: norm {got:.3f}, should be 4", flush=True)
    os._exit(0) if rank else os.wait()
    assert got > 3.9


# fp32 rounds a norm of whole numbers to 6e-8 of it, its square root and the clipping's division alike
FP32 = 1e-5
BF16 = 2.0**-7  # of parameters that are rounded to it
KINDS = ("dense shard", "dense copy", "expert shard", "expert copy")
SEPARATE = "mtp"


@dataclass(frozen=True)
class Topology:
    """Sizes of tensor, expert and expert tensor parallelism."""

    tp: int
    ep: int
    etp: int

    def __str__(self) -> str:
        return f"TP {self.tp}, EP {self.ep}, ETP {self.etp}"

    def places(self, kind: str) -> Iterator[tuple[int, ...]]:
        """Of each different part of a parameter, where in these dimensions it lies."""
        if kind == "dense shard":
            return ((at,) for at in range(self.tp))
        if kind == "dense copy":
            return iter([()])
        if kind == "expert shard":
            return product(range(self.ep), range(self.etp))
        return ((at,) for at in range(self.ep))


# the bug where an expert's copy is not at the first dense rank, or is at several of the first expert ranks
HIT = (Topology(2, 2, 1), Topology(1, 1, 2))
ALL = (*HIT, Topology(1, 2, 1))


def gradient(seed: int, kind: str, number: int, place: tuple[int, ...], size: int) -> Tensor:
    """Whole numbers [size] of one part of a parameter, a third of them zeros; the same on every rank that holds it."""
    mixed = seed
    for value in (KINDS.index(kind), number, len(place), *place):
        mixed = (mixed * 1009 + value + 1) % 2**31
    return torch.randint(-1, 2, (size,), generator=torch.Generator().manual_seed(mixed)).float()


SIZES = {"dense shard": (12, 5), "dense copy": (7, 3, 4), "expert shard": (10, 6), "expert copy": (9, 4, 11)}


def truth(topology: Topology, seed: int, kinds: tuple[str, ...]) -> tuple[float, int]:
    """The norm of all different parts, and their zeros, in fp64."""
    square, zeros = 0.0, 0
    for kind in kinds:
        for number, size in enumerate(SIZES[kind]):
            for place in topology.places(kind):
                part = gradient(seed, kind, number, place, size)
                square, zeros = square + float(part.double().square().sum()), zeros + int((part == 0).sum())
    return math.sqrt(square), zeros


class Training:
    """Parameters of this rank under the layer-wise optimizer, with gradients."""

    def __init__(self, p: probe.Probe, topology: Topology, seed: int, kinds: tuple[str, ...], **options: Any) -> None:
        self.state, self.topology, self.seed = p.upstream("megatron.core.parallel_state"), topology, seed
        optim = p.upstream("megatron.core.optimizer")
        layers = p.upstream("megatron.core.tensor_parallel.layers")
        self.half = options.pop("bf16", False)
        separate = options.pop("separate", ())
        dtype = torch.bfloat16 if self.half else torch.float32
        settings = {"lr": 1.0, "clip_grad": 0.0, "log_num_zeros_in_grad": True, "optimizer": "sgd", **options}
        config = optim.OptimizerConfig(bf16=self.half, params_dtype=dtype, **settings)
        self.parameters: list[tuple[str, nn.Parameter, Tensor]] = []
        for kind in kinds:
            for number, size in enumerate(SIZES[kind]):
                value: Any = nn.Parameter(torch.zeros(size, dtype=dtype, device=torch.cuda.current_device()))
                layers.set_tensor_model_parallel_attributes(value, kind.endswith("shard"), 0, 1)
                value.allreduce = not kind.startswith("expert")
                if kind in separate:
                    value.grad_norm_group = SEPARATE
                grad = gradient(seed, kind, number, self.place(kind), size).to(value.device)
                value.main_grad = grad.clone()
                self.parameters.append((kind, value, grad))
        bases = []
        for expert in (False, True):
            mine = [value for kind, value, _ in self.parameters if kind.startswith("expert") == expert]
            if mine:
                bases.append(torch.optim.SGD([{"params": mine, "is_expert_parallel": expert}], lr=1.0))
        if not self.half:
            bases = [optim.FP32Optimizer(base, config, None) for base in bases]
        self.groups = p.upstream("megatron.core.process_groups_config").ProcessGroupCollection.use_mpu_process_groups()
        wise = p.upstream("megatron.core.optimizer.layer_wise_optimizer").LayerWiseDistributedOptimizer
        self.optimizer = wise(bases, config, self.groups)

    def place(self, kind: str) -> tuple[int, ...]:
        state = self.state
        expert, part = state.get_expert_model_parallel_rank(), state.get_expert_tensor_parallel_rank()
        return {
            "dense shard": (state.get_tensor_model_parallel_rank(),),
            "dense copy": (),
            "expert shard": (expert, part),
            "expert copy": (expert,),
        }[kind]


def off(got: Any, want: float) -> float:
    return abs(float(got) - want) / want


def numbers(p: probe.Probe, topology: Topology, rank: int) -> None:
    """Norms and counts of zeros, of all parameters and of experts alone, in fp32 and bf16."""
    for half, kinds in product((False, True), (KINDS, ("expert copy",), KINDS[:3])):
        made = Training(p, topology, p.seed, kinds, bf16=half)
        assert made.optimizer.prepare_grads() is False
        norm, zeros = truth(topology, p.seed, kinds)
        got, counted = made.optimizer.get_grad_norm(), made.optimizer.count_zeros()
        again = made.optimizer.get_grad_norm(), made.optimizer.count_zeros()
        if rank:
            continue
        name = f"{topology}: {'bf16' if half else 'fp32'}: {', '.join(kinds)}"
        hit = topology in HIT and "expert copy" in kinds
        judge = partial(p.error, bug_above=1e-3) if hit else p.guard
        judge(f"{name}: norm", off(got, norm), FP32, reference="the norm of all different parts in fp64")
        judge(f"{name}: zeros", abs(counted - zeros), 0, reference="counted")
        p.guard(f"{name}: asked again", again != (got, counted), 0, reference="the same")


def steps(p: probe.Probe, topology: Topology, rank: int) -> None:
    """A step: what it returns, and by how much it clips; and with experts' copies in a group of norms of its own."""
    for half, separate in product((False, True), ((), ("expert copy",))):
        made = Training(p, topology, p.seed + 1, KINDS, bf16=half, clip_grad=1.0, separate=separate)
        done, got, counted = made.optimizer.step()
        norm, _ = truth(topology, p.seed + 1, tuple(kind for kind in KINDS if kind not in separate))
        apart, _ = truth(topology, p.seed + 1, separate) if separate else (1.0, 0)
        zeros = truth(topology, p.seed + 1, KINDS)[1]
        worst = 0.0
        for kind, value, grad in made.parameters:
            want = -grad.double() / (apart if kind in separate else norm)
            worst = max(worst, float((value.detach().double() - want).abs().max()) * norm)
        worst = max(p_all(worst))
        if rank:
            continue
        name = f"{topology}: step in {'bf16' if half else 'fp32'}" + (", experts' norm apart" if separate else "")
        hit = partial(p.error, bug_above=0.01)
        judge: Any = hit if topology in HIT else p.guard
        # the 1e-6 that clipping adds to a norm of some ten is 1e-7 of it
        judge(f"{name}: updates", worst, BF16 if half else FP32, reference="gradients over their norm in fp64")
        (p.guard if separate or topology not in HIT else hit)(f"{name}: norm", off(got, norm), FP32, reference="fp64")
        (hit if topology in HIT else p.guard)(f"{name}: zeros", abs(counted - zeros), 0, reference="counted")
        p.guard(f"{name}: took it", not done, 0, reference="True")


def p_all(value: float) -> list[float]:
    """``value`` of every rank."""
    made: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(made, value)
    return made


def beside(p: probe.Probe, topology: Topology, rank: int) -> None:
    """Under another optimizer that chains it, as Muon's is beside Adam's."""
    made = Training(p, topology, p.seed + 2, ("expert copy",))
    other = Training(p, topology, p.seed + 2, ("dense copy",))
    chained = p.upstream("megatron.core.optimizer").ChainedOptimizer([made.optimizer, other.optimizer])
    for one in (made, other):
        one.optimizer.prepare_grads()
    zeros = truth(topology, p.seed + 2, ("dense copy", "expert copy"))[1]
    counted = chained.count_zeros()
    if rank == 0:
        judge: Any = partial(p.error, bug_above=1) if topology in HIT else p.guard
        judge(f"{topology}: chained: zeros", abs(counted - zeros), 0, reference="counted")


def without_groups(p: probe.Probe, rank: int) -> None:
    """Groups that are not handed over, which the argument allows: those of the process serve, and experts have none."""
    optim = p.upstream("megatron.core.optimizer")
    wise = p.upstream("megatron.core.optimizer.layer_wise_optimizer").LayerWiseDistributedOptimizer
    bias: Any = nn.Parameter(torch.zeros(8, device=torch.cuda.current_device()))
    bias.grad = torch.ones_like(bias)
    config = optim.OptimizerConfig(lr=1.0, optimizer="sgd")
    made = wise([optim.FP32Optimizer(torch.optim.SGD([bias], lr=1.0), config, None)], config)
    norm, zeros = made.get_grad_norm(), made.count_zeros()
    if rank == 0:
        p.guard("no groups: norm", off(norm, math.sqrt(8)), FP32, reference="of the first tensor-parallel rank")
        p.guard("no groups: zeros", zeros, 0, reference="none")


def work(p: probe.Probe, rank: int) -> None:
    for number, topology in enumerate(ALL):
        sizes = {
            "tensor_model_parallel_size": topology.tp,
            "expert_model_parallel_size": topology.ep,
            "expert_tensor_parallel_size": topology.etp,
        }
        if number == 0:
            p.megatron_cpu(**sizes)
        state = p.upstream("megatron.core.parallel_state")
        if number:
            state.destroy_model_parallel()
            state.initialize_model_parallel(**sizes)
        numbers(p, topology, rank)
        if topology.tp == 2:  # gloo gathers no parts of unlike sizes, and a chain counts within tensor-parallel ranks
            steps(p, topology, rank)
            beside(p, topology, rank)
            without_groups(p, rank)


def reproduce(p: probe.Probe) -> None:
    p.ranks(2, partial(work, p))


if __name__ == "__main__":
    probe.main(reproduce, pack=64, package="megatron", minimal=minimal)
