"""Each invariant names the fault that breaks it within the step that has it, and no other one does."""

import json
import re

import pytest
from train_kit import good

pytestmark = pytest.mark.upstream
BOTH = ["losses", "moments", "updates", "gradients", "norm", "moving", "counts", "biases", "documents"]
RUNS = {  # ranks, recipe, options, faults
    "bf16": (2, {"bf16": True}, {}, [*BOTH, "balance", "weights", "masters", "precision"]),
    "fp32": (2, {"bf16": False}, {}, [*BOTH, "balance", "weights"]),
    # weights are gathered from their masters in each step
    "beside": (2, {"bf16": True}, {"overlap_grads": True, "overlap_weights": True}, ["masters", "moving", "documents"]),
    "experts": (2, {"bf16": False}, {"expert_parallel": 2}, ["gradients", "norm", "counts", "balance", "documents"]),
    "stages": (
        2,
        {"bf16": False},
        {"pipeline_parallel": 2},
        ["gradients", "norm", "counts", "balance", "documents", "copies"],
    ),
    "muon": (1, {"bf16": True, "optimizer": "muon"}, {}, ["moments", "updates", "moving"]),
    "v4": (2, {"bf16": True, "size": "v4_tiny"}, {}, [*BOTH, "weights", "masters", "precision"]),
}
NAMES = {"copies": "weights"}  # of faults that are not called as the invariant that sees them


@pytest.mark.parametrize("name", ["bf16", *(pytest.param(x, marks=pytest.mark.long) for x in RUNS if x != "bf16")])
def test_each_fault_is_named_by_its_invariant_alone(name, stack, text):
    world, recipe, options, faults = RUNS[name]
    given = str(text), faults, options
    ended = [child.wait() for child in stack.ranks(world, "planted_invariants:found", *given, **recipe)]
    good(ended)
    said = [one.value for one in ended]
    assert all(one == said[0] for one in said)  # every rank judges alike
    told = {fault: {*re.findall(r"^step 1: (\w+): ", text, re.MULTILINE)} for fault, text in said[0].items()}
    wanted = {fault: {NAMES.get(fault, fault)} for fault in faults}
    assert told == {"healthy": set(), **wanted}, json.dumps(said[0], indent=1)
