"""The kernels around M²RNN's recurrence: by Triton's interpreter, compiled for a GPU that is not here, and on one."""

import importlib.util

import pytest
import torch
from scripted import run

LIMITS = {"fp32": 2e-6, "bf16": 2**-7}  # a result is rounded once, and the interpreter cuts off
COMPARED = {"conv": 4, "gate": 5, "mixer": 12}
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def errors():
    return run("interpreted_around.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize(
    "case", ["conv fp32", "conv fp32, width 2", "conv bf16", "gate fp32", "gate bf16", "mixer fp32"]
)
def test_values_and_every_gradient_are_torchs(errors, case):
    assert len(errors[case]) == COMPARED[case.split()[0]]
    assert max(errors[case]) < LIMITS["bf16" if "bf16" in case else "fp32"]


@needs_triton
def test_kernels_compile_for_hopper_and_fit_its_registers(tmp_path):
    compiled = run("compiled_around.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert {name: taken["spilled"] for name, taken in compiled.items()} == {
        "conv_silu_forward": 0,
        "conv_silu_backward": 0,
        "gated_forward": 0,
        "gated_backward": 0,
    }


@needs_triton
@pytest.mark.parametrize(
    ("x", "weight", "place"),
    [((4, 3), (2, 4), 4), ((4, 3), (3, 4), 3)],
)
def test_other_shapes_are_refused(x, weight, place):
    from model.layers.m2rnn import around

    with pytest.raises(ValueError, match="strides"):
        around.conv_silu(torch.ones(x), torch.ones(weight), torch.ones(3), torch.arange(place))
    with pytest.raises(ValueError, match="strides"):
        around.conv_silu(torch.ones(3, 4).t(), torch.ones(3, 4), torch.ones(3), torch.arange(4))


@needs_triton
def test_fp64_is_refused():
    from model.layers.m2rnn import around

    x = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="float64"):
        around.conv_silu(x, torch.ones(3, 4), torch.ones(3), torch.arange(4))
    with pytest.raises(ValueError, match="float64"):
        around.gated(x, x, torch.ones(3), x)


@needs_triton
@pytest.mark.parametrize("wrong", ["dtype", "shape", "skip", "stride"])
def test_other_gates_are_refused(wrong):
    from model.layers.m2rnn import around

    y, skip = torch.ones(4, 3), torch.ones(3)
    v = {"dtype": y.half(), "shape": torch.ones(4, 2), "stride": torch.ones(3, 4).t()}.get(wrong, y)
    with pytest.raises(ValueError, match="skip"):
        around.gated(y, v, skip.half() if wrong == "skip" else skip, y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-8)])
def test_on_a_gpu_at_the_models_sizes(dtype, limit):
    import around_cases

    assert max(around_cases.conv(dtype, [700, 1, 33, 1024, 0, 64, 2], 944, 4, "cuda")) < limit
    assert max(around_cases.gate(dtype, 1824, 816, "cuda")) < limit
