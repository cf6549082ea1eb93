# /// script
# requires-python = ">=3.12"
# dependencies = ["megatron-core==0.19.0", "torch>=2.8", "triton==3.6.0", "numpy", "packaging"]
# ///
"""A fully reshardable checkpoint of the distributed optimizer shifts all that lies beyond a padded bucket.

The state is gathered bucket by bucket without the padding at each bucket's end, then cut into parameters at offsets
that count that padding. So masters and moments from the second bucket on are saved shifted, and what is then missing
at the end is filled with zeros. Several buckets come with ``overlap_grad_reduce``, or with an embedding that pipeline
stages share. Values are numbered, so that any element out of its place is seen.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from reproducers import probe


def minimal():
    """Two parameters of 100 ones, a bucket each; as it stands on a GPU. The second bucket's lose 28 to zeros."""
    import torch
    from megatron.core import distributed, optimizer, parallel_state
    from megatron.core.transformer import MegatronModule, TransformerConfig

    torch.distributed.init_process_group(store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model = MegatronModule(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1))
    model.a, model.b = (torch.nn.Parameter(torch.ones(100, device="cuda")) for _ in "ab")
    zero = {"use_distributed_optimizer": True}
    options = distributed.DistributedDataParallelConfig(overlap_grad_reduce=True, bucket_size=1, **zero)
    chunk = distributed.DistributedDataParallel(model.config, options, model)
    adam = optimizer.get_megatron_optimizer(optimizer.OptimizerConfig(lr=1e-3, **zero), [chunk])
    adam.step()
    form = {"distrib_optim_sharding_type": "fully_reshardable"}
    state = adam.sharded_state_dict(model.sharded_state_dict(), metadata=form)["param_state"]
    assert state[1]["param"].data.all(), "zeros are saved for parameters of ones"


FORM = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}
KEYS = ("param", "exp_avg", "exp_avg_sq")
PAD = 128  # elements; a bucket ends at a multiple of this and of the data-parallel size
BETAS = (0.5, 0.75)  # with whole gradients up to 2**12 both moments of the first step are exact in fp32
RATE = 2.0**-6


@dataclass(frozen=True)
class Case:
    """Parameters in the order of the model; buckets of a chunk are filled from its last one on."""

    shapes: tuple[tuple[int, ...], ...]
    bucket_size: int | None = 1  # elements after which a bucket is closed: each parameter its own
    shared: int | None = None  # place of an embedding that pipeline stages share, which has its own bucket
    dtype: torch.dtype = torch.float32
    memory_efficient: bool = False  # gathered by gloo on rank 0
    chunks: int = 1  # of the model, as virtual pipeline stages have: one optimizer with a buffer of each
    padded_further: bool = False  # to 2**16 elements, for NCCL
    experts: bool = False  # have every other parameter, whose buffer belongs to other ranks


CASES = {
    "two buckets": Case(((100,), (7, 13))),
    "four buckets, bf16": Case(((3, 50), (130,), (5, 5, 7), (129, 2)), dtype=torch.bfloat16),
    "shared embedding": Case(((40, 8), (8, 9), (11,)), bucket_size=None, shared=0),
    "two parameters a bucket, gathered on one rank": Case(
        ((17, 9), (33,), (64,), (90,)), bucket_size=70, memory_efficient=True, padded_further=True
    ),
}
HEALTHY = {
    "one bucket": Case(((100,), (7, 13)), bucket_size=None),
    "buckets without padding": Case(((2, PAD), (PAD,), (64, 4))),
}


def drawn(seed: int, chunks: int = 1) -> Case:
    """11 to 25 parameters of drawn shapes, one large; an odd multiple of less than 18 never fills a bucket."""
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(10, 25, (), generator=generator))
    sizes = torch.randint(1, 9, (count, 2), generator=generator).tolist()
    return Case(((17, 17), *((2 * a + 1, b) for a, b in sizes)), chunks=chunks)


def crowded(seed: int) -> Case:
    """Sixty parameters of drawn shapes, some thirty in each of two buckets."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 9, (60, 2), generator=generator).tolist()
    return Case(tuple((a, b) for a, b in sizes), bucket_size=800)


class Trained:
    """A model of one step of training under the distributed optimizer; ``truth`` is what a checkpoint must hold."""

    def __init__(self, p: probe.Probe, case: Case) -> None:
        transformer = p.upstream("megatron.core.transformer")
        ddp, optim = p.upstream("megatron.core.distributed"), p.upstream("megatron.core.optimizer")
        config = transformer.TransformerConfig(
            num_layers=1,
            hidden_size=8,
            num_attention_heads=1,
            bf16=case.dtype == torch.bfloat16,
            params_dtype=case.dtype,
        )
        self.case, self.modules = case, [transformer.MegatronModule(config) for _ in range(case.chunks)]
        generator = torch.Generator().manual_seed(p.seed)
        device = torch.cuda.current_device()
        for at, shape in enumerate(case.shapes):
            value = nn.Parameter(torch.randn(shape, generator=generator).to(device, case.dtype))
            value.shared_embedding = at == case.shared
            value.allreduce = not (case.experts and at % 2)  # by which Megatron knows experts' parameters
            self.modules[at * case.chunks // len(case.shapes)].register_parameter(f"p{at}", value)
        named = dict(pair for module in self.modules for pair in module.named_parameters())
        before = {name: value.detach().double() for name, value in named.items()}
        options = ddp.DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            grad_reduce_in_fp32=True,
            bucket_size=case.bucket_size,
            overlap_grad_reduce=case.bucket_size is not None,  # as bucket_size has no effect without
            pad_buckets_for_high_nccl_busbw=case.padded_further,
        )
        self.chunks = [ddp.DistributedDataParallel(config, options, module) for module in self.modules]
        settings = optim.OptimizerConfig(
            lr=RATE,
            min_lr=RATE,
            weight_decay=0.0,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            clip_grad=0.0,
            bf16=config.bf16,
            params_dtype=case.dtype,
            use_distributed_optimizer=True,
        )
        self.adam = optim.get_megatron_optimizer(settings, self.chunks)
        self.truth: dict[str, dict[str, Tensor]] = {}
        count = 0
        for name, value in named.items():
            grad = torch.arange(1, value.numel() + 1, device=device).add(count).double().view_as(value)
            count += value.numel()
            value.main_grad.copy_(grad)
            # the first step of AdamW, bias corrections included, moves each element by the rate
            self.truth[name] = {
                "param": before[name] - RATE,
                "exp_avg": grad * (1 - BETAS[0]),
                "exp_avg_sq": grad**2 * (1 - BETAS[1]),
            }
        if not self.adam.step()[0] or count >= 2**12:
            raise probe.CannotTest("the optimizer took no step")

    @property
    def buffers(self) -> list[Any]:
        return [buffer for chunk in self.chunks for buffer in chunk.buffers]

    def state(self, loading: bool = False) -> Any:
        form = FORM | {"distrib_optim_fully_reshardable_mem_efficient": self.case.memory_efficient}
        model = {f"model{at}": module.sharded_state_dict() for at, module in enumerate(self.modules)}
        return self.adam.sharded_state_dict(model, is_loading=loading, metadata=form)

    def entries(self, loading: bool = False) -> dict[str, Tensor]:
        """{name in the checkpoint: tensor} of masters and moments."""
        held = self.state(loading)
        parts = [held] if "param_state" in held else held.values()  # experts have an optimizer of their own
        entries = [entry for part in parts for entry in part["param_state"].values()]
        return {sharded.key: sharded.data for entry in entries for sharded in entry.values()}

    def wrong(self, key: str, held: dict[str, Tensor]) -> int:
        """Elements that are not what they should be, all of them where a tensor is absent or of another shape."""
        count = 0
        for name, truth in self.truth.items():
            exact, value = truth[key], held.get(f"optimizer.state.{key}.{name}")
            if value is None or value.shape != exact.shape or value.dtype != torch.float32:
                count += exact.numel()
            else:  # moments are exact, masters rounded by the step: each differs from others by far more
                limit = 0.0 if key != "param" else 1e-5
                count += int(((value.double().cpu() - exact.cpu()).abs() > limit).sum())
        return count


def check(p: probe.Probe, name: str, trained: Trained, held: dict[str, Tensor]) -> None:
    """The bug: each of masters and moments is saved at its place."""
    for key in KEYS:
        p.error(
            f"{name}: elements of {key} saved wrong",
            trained.wrong(key, held),
            0,
            reference="AdamW's first step in closed form, fp64",
            bug_above=1,
        )


def check_case(p: probe.Probe, name: str, case: Case) -> None:
    trained = Trained(p, case)
    inner = [bucket for buffer in trained.buffers for bucket in buffer.buckets[:-1]]
    if len(trained.buffers) < case.chunks or all(bucket.numel_unpadded == bucket.grad_data.numel() for bucket in inner):
        raise probe.CannotTest(f"{name}: this tree makes no padded bucket before another")
    held = p.guard_attempt(f"{name}: state is made", trained.entries)
    if held is not None:
        check(p, name, trained, held)
    check_neighbours(p, name, trained)


class Warned(logging.Handler):
    """In this ``with``, how many warnings are logged."""

    def __enter__(self) -> Warned:
        self.count = 0
        logging.getLogger().addHandler(self)
        return self

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.levelno >= logging.WARNING

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


def check_neighbours(p: probe.Probe, name: str, trained: Trained) -> None:
    """What is loaded into has the parameters' shapes, and the other formats keep what they had."""
    with Warned() as warned:
        wanted = p.guard_attempt(f"{name}: template to load into is made", lambda: trained.entries(loading=True))
    p.error(
        f"{name}: warnings that a template lacks elements",
        warned.count,
        0,
        reference="offsets of the state without padding",
        bug_above=1,
    )
    shapes = {
        f"optimizer.state.{key}.{param}": value["param"].shape for param, value in trained.truth.items() for key in KEYS
    }
    wrong = sum((wanted or {}).get(key, torch.empty(0)).shape != shape for key, shape in shapes.items())
    p.guard(f"{name}: templates of another shape", wrong, 0, reference="the parameters' shapes")
    inner = getattr(trained.adam, "chained_optimizers", [trained.adam])[0]
    gathered = inner.get_parameter_state_dp_zero()
    flat = [tensors[key] for at in range(len(inner.buffers)) for tensors in gathered[at].values() for key in KEYS]
    p.digest(f"{name}: state gathered for the format of one file", *flat)


def check_healthy(p: probe.Probe, name: str, case: Case) -> None:
    """Neighbours without the bug: no padding, or nothing behind it."""
    trained = Trained(p, case)
    held = trained.entries()
    for key in KEYS:
        p.guard(
            f"{name}: elements of {key} saved wrong",
            trained.wrong(key, held),
            0,
            reference="AdamW's first step in closed form, fp64",
        )


def check_order(p: probe.Probe) -> None:
    """Upstream loads a parameter from the entry of its number in the buffers."""
    trained = Trained(p, crowded(p.seed))
    named = {value: name for module in trained.modules for name, value in module.named_parameters()}
    order = [named[value] for buffer in trained.buffers for value in buffer.param_index_map]
    held = trained.state()["param_state"]
    wrong = sum(
        sharded.key != f"optimizer.state.{key}.{name}"
        for number, name in enumerate(order)
        for key, sharded in held[number].items()
    )
    p.guard("many parameters a bucket: entries of another parameter", wrong, 0, reference="the order of the buffer")


def check_memory(p: probe.Probe) -> None:
    """What a state holds in memory while it is written."""
    case = crowded(p.seed + 1)
    held = Trained(p, case).entries()
    owned = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in held.values()}
    needed = sum(value.numel() * value.element_size() for value in held.values())
    p.guard(
        "many parameters a bucket: bytes held for each of the state",
        sum(owned.values()) / needed,
        4,
        reference="each element once, and padding",
    )


def check_file(p: probe.Probe) -> None:
    """A checkpoint that Megatron wrote, read back as plain tensors."""
    checkpointing = p.upstream("megatron.core.dist_checkpointing")
    trained = Trained(p, CASES["two buckets"])
    with tempfile.TemporaryDirectory() as folder:
        checkpointing.save({"optimizer": trained.state()}, folder)
        held = checkpointing.load_plain_tensors(folder)
    check(p, "two buckets, read back from the disk", trained, held)


def check_ranks(p: probe.Probe) -> None:
    """Three data-parallel ranks, each with a third of every bucket, which ends at a multiple of 3 * PAD."""

    def work(rank: int) -> None:
        p.megatron_cpu()
        trained = Trained(p, CASES["four buckets, bf16"])
        held = trained.entries()  # on all: gathered by all
        if rank == 0:
            check(p, "three ranks", trained, held)
        trained = Trained(p, crowded(p.seed))  # many lie in other ranks' shards
        held = trained.entries()
        if rank == 2:
            check(p, "three ranks, many parameters a bucket", trained, held)
        efficient = Trained(p, replace(drawn(p.seed + 1, 2), memory_efficient=True))
        state = efficient.state()["param_state"]
        if rank == 0:
            held = {sharded.key: sharded.data for entry in state.values() for sharded in entry.values()}
            check(p, "three ranks, gathered on one of them", efficient, held)
        parallel = p.upstream("megatron.core.parallel_state")
        parallel.destroy_model_parallel()
        parallel.initialize_model_parallel(expert_model_parallel_size=3)
        trained = Trained(p, replace(crowded(p.seed + 1), experts=True))  # experts' buckets end at a multiple of PAD
        held = trained.entries()
        if rank == 1:
            check(p, "three ranks, an expert each", trained, held)

    p.ranks(3, work)


def prepare(p: probe.Probe) -> None:
    """For ``minimal``, which starts Megatron by itself."""
    p.megatron_cpu()
    p.upstream("megatron.core.parallel_state").destroy_model_parallel()
    torch.distributed.destroy_process_group()


def reproduce(p: probe.Probe) -> None:
    if p.lane == "cpu":
        check_ranks(p)
    else:
        p.skip("three ranks", "three GPUs; the cpu lane has them")
    p.megatron_cpu()
    more = {f"drawn, seed {p.seed + at}, chunks {at + 1}": drawn(p.seed + at, at + 1) for at in range(3)}
    for name, case in (CASES | more).items():
        check_case(p, name, case)
    for name, case in HEALTHY.items():
        check_healthy(p, name, case)
    check_file(p)
    check_order(p)
    check_memory(p)


if __name__ == "__main__":
    probe.main(reproduce, pack=37, package="megatron", minimal=minimal, prepare=prepare)
