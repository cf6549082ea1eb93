"""What travels beside computation changes no loss, no gradient and no checkpoint; where it would, it is refused."""

import pytest
from train_kit import checkpoints, copy, good, held_out, measured, train

from model.families.sizes import SIZES
from model.loop import refusals
from model.step.megatron import Run
from patchlane.base.errors import PatchlaneError

pytestmark = pytest.mark.upstream
# Modules that read weights past the call of their owners: rows of Mamba-3, grouped experts, absorbed MLA.
PATHS = {1: ["mamba3=torch_rows", "moe=grouped_mm"], 2: ["mamba3=torch_rows"]}
COMMON = {"world": 2, "steps": 6, "evaluate_every": 3, "save_every": 3, "deterministic": True}
GRADS = {"overlap_grads": True, "bucket": 50_000}
WEIGHTS = GRADS | {"overlap_weights": True}


@pytest.fixture(scope="module")
def runs(stack, text, tmp_path_factory):
    """Run directories: in bf16, where a weight that is one update old tells, weights gathered each step and beside the
    forward; in fp32 with two expert-parallel ranks nothing overlapped, and everything."""
    folder = tmp_path_factory.mktemp("overlap")
    arms = {
        "grads": (1, GRADS, True),
        "weights": (1, WEIGHTS, True),
        "none": (2, {}, False),
        "all": (2, WEIGHTS, False),
    }
    for name, (ep, options, bf16) in arms.items():
        digests = {"weights": folder / f"{name}.txt"}
        precision = {"bf16" if bf16 else "fp32": True}
        good(train(stack, folder / name, text, ep=ep, path=PATHS[ep], **digests, **precision, **COMMON, **options))
    return folder


def test_weights_gathered_beside_the_forward_are_those_of_the_step(runs):
    assert measured(runs / "weights") == measured(runs / "grads")
    assert held_out(runs / "weights") == held_out(runs / "grads")
    assert (runs / "weights.txt").read_text() == (runs / "grads.txt").read_text()


def test_gradients_reduced_beside_the_backward_are_the_same(runs):
    """But for their norm, which is added up bucket by bucket."""
    for ours, theirs in zip(measured(runs / "all"), measured(runs / "none"), strict=True):
        assert ours[2:] == pytest.approx(theirs[2:], rel=1e-5, abs=2e-8)


def test_a_checkpoint_holds_the_weights_of_its_step(stack, text, runs, tmp_path):
    resumed = copy(runs / "weights", tmp_path / "resumed")
    assert checkpoints(resumed) == ["step_0000003", "step_0000006"]
    (resumed / "checkpoints" / "step_0000006").rename(tmp_path / "aside")
    good(train(stack, resumed, text, ep=1, path=PATHS[1], bf16=True, **COMMON, **GRADS))
    assert measured(resumed) == measured(runs / "grads")


@pytest.mark.parametrize(
    "run",
    [
        Run(overlap_weights=True),
        Run(bucket=1000),
        Run(overlap_grads=True, pipeline_parallel=2),
        Run(overlap_grads=True, cuda_graphs=True),
    ],
)
def test_what_cannot_overlap_is_refused(run):
    with pytest.raises(PatchlaneError):
        refusals.links(run)


def test_what_can_is_not():
    refusals.links(Run())
    refusals.links(Run(overlap_grads=True, bucket=1000))
    refusals.links(Run(overlap_grads=True, overlap_weights=True))


def test_a_field_that_the_data_lack_is_refused():
    size, run = SIZES["nam56r_tiny"], Run(overlap_grads=True)
    refusals.fields(size, run, size.structure.fields)
    refusals.fields(size, run.model_copy(update={"overlap_grads": False}), ())
    with pytest.raises(PatchlaneError):
        refusals.fields(size, run, ())
