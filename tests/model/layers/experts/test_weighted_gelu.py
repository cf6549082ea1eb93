"""The experts' fused activation: its kernels by the interpreter against fp64, and at the model's width on a GPU."""

import pytest
import torch
from scripted import run

LIMITS = {"fp32": 1e-6, "bf16": 8e-3, "no tokens": 1e-9}  # the interpreter cuts bf16 off: 2^-7


@pytest.fixture(scope="module")
def errors():
    return run("interpreted_weighted_gelu.py", TRITON_INTERPRET="1")


@pytest.mark.parametrize("case", LIMITS)
def test_value_and_gradients_are_fp64s(errors, case):
    assert len(errors[case]) == 3
    assert max(errors[case]) < LIMITS[case]


@pytest.mark.parametrize("weights", [torch.ones(3, dtype=torch.bfloat16), torch.ones(4), torch.ones(3, 1)])
def test_other_weights_are_refused(weights):
    pytest.importorskip("triton")
    from model.layers.experts.weighted_gelu import weighted_gelu

    with pytest.raises(ValueError, match="weights"):
        weighted_gelu(torch.ones(3, 8), weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_on_a_gpu_at_the_models_width(dtype, limit):
    import weighted_gelu_cases

    assert max(weighted_gelu_cases.errors(dtype, 3001, 896, "cuda")) < limit
