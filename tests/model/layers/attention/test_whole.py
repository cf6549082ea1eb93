"""Queries, keys and values that are written whole, against Megatron's: by the interpreter, and on a GPU."""

import pytest
from scripted import run

LIMITS = {"fp32": 2e-6, "fp16": 1e-3}  # a few roundings of 2^-24 and 2^-11
DTYPES = list(LIMITS)
JOINED = 1  # latents of one head


@pytest.mark.upstream
@pytest.mark.long
def test_tensors_and_all_gradients_are_megatrons_and_no_heads_are_joined():
    found = run("interpreted_whole.py", "cases", TRITON_INTERPRET="1")
    assert len(found) == 6
    for number, each in enumerate(found):
        dtype, whole = DTYPES[number % 2], number > 3
        for what, (error, before, joined, compared) in each.items():
            assert error < LIMITS[dtype], (number, what, error)
            assert joined < before and compared >= 10, (number, what)
            assert whole or joined == JOINED
        assert each.keys() == {"dense layer" if whole else "dense"}


@pytest.mark.upstream
@pytest.mark.long
def test_the_model_trains_as_it_did():
    losses, gradients, all_there, kinds, told = run("interpreted_whole.py", "model", TRITON_INTERPRET="1")
    assert max(losses, gradients) < 1e-4 and all_there
    assert kinds == ["RotaryTables"]
    assert told  # of a step that is diagnosed: the layers' parts keep the model's own configuration


def at_the_models_sizes(heads):
    """Three rows of 4,096 tokens in bf16, documents of 1 to 4,096; a model as a CPU has it, so that nothing else is by
    kernels."""
    import torch
    import whole_cases

    from model.families.sizes import SIZES

    size = SIZES["nam56r_tiny"]
    size = size.model_copy(
        update={"heads": heads, "attention": SIZES["nam56r"].attention, "indexer": SIZES["nam56r"].indexer}
    )
    cuts = (0, 1, 700, 701, 4096, 8192, 9000, 12_288)
    return whole_cases.case(size, torch.bfloat16, (cuts, 4097), "cuda")


@pytest.mark.upstream
@pytest.mark.gpu
@pytest.mark.parametrize("heads", [28, 32])
def test_on_a_gpu_at_the_models_sizes(gpu, heads):
    found = gpu.call(at_the_models_sizes, heads)
    assert found.keys() == {"dense"}
    for error, before, joined, compared in found.values():
        assert error < 2e-2 and joined < before and compared >= 10
