"""A kept run with a profile of known numbers, to predict from."""

import json

import recorded

from model.families.sizes import SIZES
from model.profile.bottlenecks import Cost, Profile
from model.records.records import to_line

GPU = "NVIDIA H200"
# seconds a step of each kind on one rank; none runs beside another
KINDS = {
    "GEMM": 0.400,
    "grouped GEMM": 0.080,
    "Mamba-3 MIMO bwd_bwd": 0.150,
    "M²RNN": 0.040,
    "elementwise": 0.100,
    "optimizer": 0.030,
}
COMPUTING, IDLE = 0.800, 0.050


def profile(kinds=KINDS, links=None, before=None, **changed):
    """The profile of one step: ``kinds``, then ``links``, each alone, and the rest idle."""
    links = links or {}
    alone = sum(links.values())
    busy = sum(kinds.values()) + alone
    costs = [Cost(name=k, kind=k, seconds=s, calls=1, share=0.1) for k, s in (kinds | links).items()]
    values = {
        "device": GPU,
        "first_step": 14,
        "steps": 1,
        "step_seconds": busy + 0.070,
        "steps_before": 10,
        "kinds": costs,
        "top": [],
        "seconds_before": busy + IDLE if before is None else before,
        "busy": busy,
        "idle": 0.070,
        "exposed_communication": alone,
    }
    return Profile(**(values | changed))


def keep(
    folder,
    size="nam56r_wide",
    ranks=2,
    rows=3,
    accumulate=1,
    profiled=None,
    speed=10_000.0,
    steps=30,
    peak=100.0,
    **options,
):
    """A folder with metrics.jsonl, run.json, receipt.json and, if ``profiled``, profile.json; returns it."""
    folder.mkdir(parents=True)
    layout = {"expert_parallel": 1, "pipeline_parallel": 1, "row": 4096, "paths": {}} | options
    setup = {
        "size": SIZES[size].model_dump(mode="json"),
        "ranks": ranks,
        "run": layout,
        "recipe": {"micro_batch": rows, "accumulate": accumulate},
        "project": {"sha": "0" * 40, "changed": False},
    }
    (folder / "run.json").write_text(json.dumps(setup))
    records = [
        recorded.step(n, tokens_per_s_per_gpu=speed, gpu=GPU, peak_gib=peak, peaks_gib=[peak - 1, peak + 1])
        for n in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_bytes(b"".join(map(to_line, records)))
    (folder / "receipt.json").write_text("{}")
    if profiled is not None:
        (folder / "profile.json").write_text(profiled.model_dump_json())
    return folder
