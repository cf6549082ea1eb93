"""M²RNN's Triton kernels: run by Triton's interpreter against fp64, and compiled for a GPU that is not here."""

import importlib.util

import pytest
import torch
from scripted import run

# fp32: sums of a few dozen terms. 16 bits: the result's own rounding, 2^-8 and 2^-11, that of h, and, where inputs are
# bf16, of h's gradient.
LIMITS = {"fp32": 1e-6, "fp32, odd sizes, one lane": 1e-6, "bf16": 1e-2, "fp16": 7e-4}
pytestmark = pytest.mark.long
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def interpreted():
    return run("interpreted_m2rnn.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("case", LIMITS)
def test_values_and_every_gradient_are_the_references(interpreted, case):
    errors = interpreted["errors"]
    assert set(errors[case]) == {"y", "q", "k", "v", "log_f", "W"}
    assert {name: error for name, error in errors[case].items() if not error < LIMITS[case]} == {}


@needs_triton
@pytest.mark.parametrize("case", LIMITS)
def test_states_that_are_kept_change_no_bit(interpreted, case):
    assert interpreted["unlike"][case] == []


@needs_triton
@pytest.mark.parametrize("bits", ["16", "32"])
def test_kernels_compile_for_hopper_and_fit_its_registers(tmp_path, bits):
    compiled = run("compiled_m2rnn.py", bits, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert {name: found["spilled"] for name, found in compiled.items() if found["spilled"] > 64} == {}
    multiply = {name for name, found in compiled.items() if found["mma"]}
    assert multiply == (set(compiled) - {"m2rnn_read"} if bits == "16" else set())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_on_a_gpu_at_the_models_sizes(dtype, limit):
    import m2rnn_cases

    errors = m2rnn_cases.errors(dtype, [700, 1, 33, 1024, 0, 64, 2, 31, 96, 5], 44, 64, 16, "cuda", spread=0.05)
    assert {name: error for name, error in errors.items() if not error < limit} == {}
    assert m2rnn_cases.kept(dtype, [700, 1, 33, 0, 64, 5], 44, 64, 16, "cuda") == []
