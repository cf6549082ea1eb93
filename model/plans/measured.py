"""Kept runs as measurements: what each computed, the seconds of its step, and its profile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from model.definition.memory import Layout
from model.families.nam56r import Size
from model.families.sizes import recorded
from model.profile.bottlenecks import Profile
from model.profile.kernel_kinds import COMMUNICATION
from model.reports import benchmarks, limit
from model.reports.benchmarks import KeptRun
from patchlane.base.errors import PatchlaneError
from reproducers.record.schema import ROOT

FOLDER = ROOT / "receipts" / "train"
REMEDY = f"name a folder in {FOLDER.relative_to(ROOT)} with run.json and profile.json of one stage on GPUs"


@dataclass(frozen=True)
class Job:
    """What a run computes in a step, and what it overlaps. ``row``: tokens of a row."""

    size: Size
    layout: Layout
    row: int
    accumulate: int = 1
    recompute: bool = False
    overlap_grads: bool = False
    overlap_weights: bool = False

    def __post_init__(self) -> None:
        if self.overlap_weights and not self.overlap_grads:
            raise ValueError("weights are gathered beside the forward pass only where gradients are overlapped too")
        if self.overlap_grads and self.layout.pipeline > 1:
            raise ValueError("nothing is overlapped between pipeline stages: model.train refuses it")

    @property
    def tokens(self) -> int:
        """Of a step, on one data-parallel rank."""
        return self.layout.micro_batch * self.accumulate * self.row


@dataclass(frozen=True)
class Measured:
    """A kept run with a profile of one stage."""

    run: KeptRun
    job: Job
    profile: Profile
    computing: float  # seconds of a step in which kernels other than communication ran
    idle: float  # seconds of a step in which no kernel ran, without the profiler

    @property
    def kinds(self) -> dict[str, float]:
        """Seconds a step of each kind of kernel that computes, scaled so that what overlaps counts once."""
        found = {k.name: k.seconds for k in self.profile.kinds if not k.name.startswith(COMMUNICATION)}
        once = self.computing / sum(found.values())
        return {name: seconds * once for name, seconds in found.items()}

    def communication(self, collective: str) -> float:
        """Seconds a step of NCCL's kernels of a ``collective``; 0 without any."""
        start = f"{COMMUNICATION} {collective}"
        return sum(kind.seconds for kind in self.profile.kinds if kind.name.startswith(start))


def job(run: KeptRun) -> Job | None:
    """What a kept run computed; None where it was kept without the run.json of its last start."""
    if not run.setup or run.moved:
        return None
    recipe, options = run.setup["recipe"], run.setup["run"]
    stages, expert = options["pipeline_parallel"], options["expert_parallel"]
    return Job(
        recorded(run.setup["size"]),
        Layout(run.setup["ranks"] // stages, expert, stages, recipe["micro_batch"]),
        options["row"],
        recipe["accumulate"],
        bool(options.get("recompute")),
        bool(options.get("overlap_grads")),
        bool(options.get("overlap_weights")),
    )


def read(run: Path) -> Measured:
    """The kept run of this folder, or of this name. Raises PatchlaneError if it cannot be the base of a prediction."""
    folder = run if run.is_dir() else FOLDER / run
    if not folder.is_dir():
        raise PatchlaneError(f"{run} is no kept run", REMEDY)
    kept, profile = benchmarks.read(folder), limit.read(folder)
    try:
        did = job(kept)
    except (KeyError, TypeError, ValidationError, ValueError) as error:
        raise PatchlaneError(f"{folder.name}/run.json: {type(error).__name__}: {error}", REMEDY) from error
    own = profile.own if profile else None
    if profile is None or own is None or own.computing is None:
        raise PatchlaneError(f"{folder.name} has no profile of a GPU", REMEDY)
    if did is None or did.layout.pipeline > 1:
        raise PatchlaneError(f"{folder.name}: its profile is not of a known layout of one stage", REMEDY)
    busy = own.computing + (own.communicating or 0.0)
    seconds = profile.seconds_before or profile.step_seconds
    return Measured(kept, did, profile, own.computing, max(0.0, seconds - busy))
