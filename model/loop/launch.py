"""Start a rank: the overlay on its import path, torch.distributed, Megatron's groups and generators."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from model.definition.recipes import Recipe
from model.kinds.run import Options, Run
from model.layers.captured import graphs
from model.loop.ranks import meeting
from model.patched import overlay as overlays
from model.patched.overlay import Overlay
from patchlane.base.errors import PatchlaneError
from reproducers.probe.lanes import megatron
from reproducers.probe.ranks import Rank

# Between the seeds of two pipeline stages. Megatron-LM takes 100, which is also Megatron-Core's step between the seeds
# of expert-parallel ranks: a stage's experts would be those of the stage before, one rank on.
STAGE_SEEDS = 100_000


@dataclass(frozen=True)
class World:
    """This process among its peers by torchrun's numbers; a single one without torchrun."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0


def world() -> World:
    """This process's World, from RANK, WORLD_SIZE and LOCAL_RANK, which torchrun sets."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    return World(*(int(os.environ.get(name, default)) for name, default in zip(names, "010", strict=True)))


def device() -> str:
    """ "cuda" if torch sees a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def hopper() -> bool:
    """Whether torch sees a GPU of compute capability 9.0, such as an H100 or an H200."""
    import torch

    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0))


def queues() -> str:
    """By how much CUDA scales its queues of launches, which it reads as it starts: 4x unless CUDA_SCALE_LAUNCH_QUEUES
    says otherwise. With 1x a host may be 1,024 launches ahead, an eighth of a micro-batch of NAM56R. It gets ahead in
    backward passes, which it launches faster than a GPU runs them, and needs that in forward passes, which it does not.
    """
    return os.environ.setdefault("CUDA_SCALE_LAUNCH_QUEUES", "4x")


def run_of(recipe: Recipe, options: Options, paths: dict[str, str], cuda_graphs: bool) -> Run:
    """The run of a recipe on this host; ``paths``: those that are asked for. Call it before anything starts CUDA.

    Late reads were measured with one stage and without graphs on GPUs, and are taken unasked only there.
    """
    found = queues()
    on_cpu = device() == "cpu"
    unasked = not on_cpu and recipe.pipeline_parallel == 1 and not cuda_graphs
    return Run(
        **options.model_dump(exclude={"late_reads"}),
        late_reads=unasked if options.late_reads is None else options.late_reads,
        expert_parallel=recipe.expert_parallel,
        pipeline_parallel=recipe.pipeline_parallel,
        bf16=recipe.bf16,
        cuda_graphs=cuda_graphs,
        on_cpu=on_cpu,
        hopper=hopper(),
        row=recipe.sequence,
        paths=paths,
        launch_queues=None if on_cpu else found,
    )


def nccl(run: Run) -> dict[str, str]:
    """The variables that NCCL reads where ``run`` says how many thread blocks its collectives take."""
    return dict.fromkeys(("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"), str(run.nccl_ctas)) if run.nccl_ctas else {}


def data_parallel(place: World, run: Run) -> int:
    """Data-parallel ranks. Raises PatchlaneError if pipeline and expert parallelism do not divide the world."""
    if place.size % run.pipeline_parallel or place.size // run.pipeline_parallel % run.expert_parallel:
        raise PatchlaneError(
            f"{place.size} ranks cannot be {run.pipeline_parallel} pipeline stages of {run.expert_parallel} "
            "expert-parallel ranks",
            "torchrun --nproc-per-node a multiple of pipeline_parallel times expert_parallel",
        )
    return place.size // run.pipeline_parallel


def first_seed(seed: int, place: World, run: Run) -> int:
    """The seed of this rank's first weights: ``seed`` on rank 0, another on each pipeline stage.

    Where weights are initialised on the host each expert-parallel rank has its own too: Megatron's generators for
    experts are of GPUs alone. All else a stage then broadcasts from its first rank. Megatron numbers the ranks of a
    stage one after the other (``parallel_state``, order "tp-cp-ep-dp-pp" @ core_v0.19.0).
    """
    stage, rank = divmod(place.rank, data_parallel(place, run))
    return seed + STAGE_SEEDS * stage + (rank % run.expert_parallel if run.on_cpu else 0)


def stop() -> None:
    """Free NCCL's communicators in order, so that no other rank fails at its end."""
    import torch.distributed as dist

    dist.destroy_process_group()


def start(place: World, overlay: Overlay, run: Run, seed: int, own: Mapping[str, object] | None = None) -> None:
    """Start this rank, once a process, before Megatron is imported. Ranks meet through torchrun's rendezvous, and no
    collective of theirs waits for longer than ``run.wait_limit``.

    ``seed``: of the first weights (``first_seed``). ``own``: what ``hosts.alike`` compares before Megatron makes its
    groups, in which ranks of another layout would wait for each other. Raises PatchlaneError where it differs.
    """
    data_parallel(place, run)
    if overlay.device == "cpu":
        os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron's small fusions compile for 20 s there and gain nothing
    overlays.activate(overlay)
    import torch
    import torch.distributed as dist

    from model.loop.ranks import hosts  # it imports torch

    if run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    if overlay.device == "cuda":
        torch.cuda.set_device(place.local_rank)
        os.environ |= nccl(run)
    dist.init_process_group(
        "gloo" if overlay.device == "cpu" else "cpu:gloo,cuda:nccl",
        store=meeting.store(place.rank, place.size, run.wait_limit),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=run.wait_limit),
    )
    hosts.alike(own or {})
    seed = first_seed(seed, place, run)
    limit: dict[str, Any] = {"distributed_timeout_minutes": run.wait_limit / 60}  # Megatron makes a timedelta of it
    megatron.start_megatron(
        importlib.import_module,
        seed,
        Rank(place.rank, place.size),
        expert_model_parallel_size=run.expert_parallel,
        pipeline_model_parallel_size=run.pipeline_parallel,
        **limit,
    )
    if run.cuda_graphs:
        graphs.seed(seed + 1234)
