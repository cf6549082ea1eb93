"""The indexer's loss of rows by the kernels: by the interpreter, what it refuses, its code, and on a GPU."""

import pytest
from scripted import run

pytestmark = pytest.mark.long
ROUNDING = 1e-6  # relative error norms of fp32 arithmetic
WEIGHTS = 4e-3  # a gradient in bf16 is rounded once as it is made, and once as it is scaled
CANCELLED = 5e-5  # a query's loss is a difference of two entropies
HALF = 2e-2  # a few bf16 roundings in a row; a wrong term is of order 1


def interpreted(*arguments):
    return run("interpreted_divergence.py", *arguments, TRITON_INTERPRET="1")


@pytest.mark.upstream
def test_choice_loss_and_gradients_are_fp64s_and_pack_12s():
    *found, half, coarse = interpreted("cases")
    assert len(found) == 14
    for errors in (of[what] for of in found for what in ("fp64", "pack 12")):
        assert errors[0] == 0 and max(errors) < ROUNDING
    for differ, loss, q, weights, k in half.values():
        assert differ == 0 and max(loss, q, k) < ROUNDING and weights < WEIGHTS
    assert coarse[0] == 0 and max(coarse) < ROUNDING


@pytest.mark.upstream
def test_a_querys_keys_and_a_tiles_bounds_are_pack_12s():
    found = interpreted("masked")
    assert found == [[0] * 6] * 4


@pytest.mark.upstream
def test_a_querys_divergence_and_its_slope_keep_both_epsilons():
    found = interpreted("kernel")
    assert len(found) == 6
    for loss, slope in (errors for of in found for errors in of):
        assert loss < CANCELLED and slope < 4 * ROUNDING


@pytest.mark.upstream
def test_gradients_are_made_where_they_are_asked_for():
    same, asks, made, one_leaf = interpreted("evaluated")
    assert (same, asks, one_leaf) == (True, False, 0)
    assert made == ["attention_target"] * 3 + ["index_scores_backward"]


@pytest.mark.upstream
def test_a_models_indexer_learns_the_same_without_pack_12s_loss():
    error, largest, with_kernels, without = interpreted("model")
    assert error < 1e-3 and largest > 1e-6  # targets and scores of a new model are alike, and cancel
    assert (with_kernels, without) == (0, 1)


def refused():
    """What is said to each kind of call that the kernels are not for; the last is of a stream in part rows."""
    from types import SimpleNamespace

    import torch

    from model.layers.attention.divergence import KernelLoss

    def groups(size):
        return SimpleNamespace(tp=SimpleNamespace(size=lambda: size))

    q, k, bounds = torch.ones(6, 1, 2, 8), torch.ones(6, 1, 8), torch.ones(6, dtype=torch.int64)
    plain = [q, q[..., 0], k, q, q, 1.0, 2, 1.0, None, False, groups(1), bounds, bounds, None, None, False, True]
    changes = {0: q.transpose(2, 3), 4: q.half(), 8: k, 10: groups(2), 11: None, 13: bounds, 14: bounds, 15: True}
    said = []
    for at, other, row in [
        *((*change, 3) for change in changes.items()),
        (0, q, 4),
        (0, q.repeat(2001, 1, 1, 1), 8193),
    ]:
        try:
            KernelLoss(row).apply(*plain[:at], other, *plain[at + 1 :])
        except ValueError as error:
            said.append(str(error))
    return said


@pytest.mark.upstream
def test_what_the_kernels_are_not_for_is_refused(megatron):
    pytest.importorskip("triton")
    said = megatron.call(refused)
    assert len(said) == 10
    assert all("indexer=triton" in message for message in said[:8])
    assert all("is not rows of" in message for message in said[8:])


@pytest.mark.upstream
@pytest.mark.parametrize("keys", [96, 4096, 8192])
def test_a_rows_scores_stay_in_a_gpus_registers(keys):
    pytest.importorskip("triton")
    found = run("compiled_divergence.py", str(keys))
    assert {name: of["spilled"] for name, of in found.items()} == dict.fromkeys(found, 0)
    assert (
        len(found) == 6 and max(of["registers"] for of in found.values()) <= 128
    )  # two programs of 256 threads or one


def on_a_gpu(sparse):
    """Three rows of 1,024 by the models' sizes: see divergence_cases.case, against upstream by rows; and launches."""
    import divergence_cases
    import torch
    from gpu_cases import random
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.experimental_attention_variant import dsa
    from row_loss import RowLoss
    from torch.profiler import ProfilerActivity, profile

    from model.layers.attention.divergence import KernelLoss

    row, cuts = 1024, torch.tensor([0, 1, 700, 1024, 2048, 2500, 3072], device="cuda")
    tokens = int(cuts[-1])
    leaves = [random(tokens, 1, 32, 64), random(tokens, 1, 32, seed=1), random(tokens, 1, 64, seed=2)]
    query, key = random(tokens, 1, 28, 128, seed=3), random(tokens, 1, 1, 128, seed=4).expand(-1, -1, 28, -1)
    ends = torch.arange(1, tokens + 1, device="cuda")
    starts = cuts[torch.searchsorted(cuts[1:], ends - 1, right=True)]
    groups = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
    rest, found, launches = (query, key, starts, ends, 256, True), [], []
    for loss in (KernelLoss(row), RowLoss(dsa.FusedDSAIndexerLoss, row)):
        divergence_cases.by(loss, leaves, rest, sparse, groups)  # compiles
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            found.append(divergence_cases.by(loss, leaves, rest, sparse, groups))
            torch.cuda.synchronize()
        launches.append(sum(event.device_type.name == "CUDA" for event in profiled.events()))
    (indices, *got), (chosen, *want) = found
    differ = (indices != chosen).float().mean().item()
    return launches, differ, *(divergence_cases.error(*pair) for pair in zip(got, want, strict=True))


@pytest.mark.upstream
@pytest.mark.gpu
@pytest.mark.parametrize("sparse", [False, True])
def test_on_a_gpu_rows_are_chosen_and_trained_as_by_pack_12(gpu, sparse):
    (ours, theirs), differ, loss, *gradients = gpu.call(on_a_gpu, sparse)
    assert differ == 0  # the same scores by the same kernel, and torch's own choice of them
    assert loss < 1e-5 and max(gradients) < HALF
    assert ours < 70 and theirs > 4 * ours  # torch takes some twenty for a choice of keys
