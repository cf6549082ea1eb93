"""DeepSeek-V4's kernels: run by Triton's interpreter and on a GPU against their torch twins in fp64, and compiled."""

import importlib.util

import pytest
import torch
from scripted import run

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
QUICK = ("few chosen entries", "heads", "three streams", "an indexer of few", "overlapping windows", "gates")
FP32 = 2e-6  # sums of some hundred terms
BF16 = 8e-3  # a result's own rounding, 2^-9 of it, and that of probabilities and what comes of them
PRODUCTS = {"attend", "query_gradients", "key_gradients", "scored", "among", "among_gradients", "entry_gradients"}
PRODUCTS |= {"mapped", "map_gradients", "read_gradients"}


def over(found, limit):
    return {name: errors for name, errors in found.items() if not max(errors) < limit}


@needs_triton
def test_values_and_every_gradient_are_those_of_torch():
    said = run("interpreted_v4_kernels.py", *QUICK, TRITON_INTERPRET="1")
    found = said["cases"]
    assert set(found) == set(QUICK) and over(found, FP32) == {}
    assert said["installed"] == {
        "sliding": [["CoreAttention", 0, False]],
        "csa": [["Compressor"], ["CoreAttention", 4, True]],
        "hca": [["Compressor"], ["CoreAttention", 8, False]],
        "streams": [["HyperConnection"], ["HyperHead"]],
        "norms": [["WideRMSNorm"]],
    }


@needs_triton
@pytest.mark.long
def test_so_are_those_of_other_sizes_and_of_a_whole_network():
    found = run("interpreted_v4_kernels.py", TRITON_INTERPRET="1")
    assert len(found["cases"]) == 19 and over(found["cases"], FP32) == {}
    assert len(found["network"]) > 100 and {k: x for k, x in found["network"].items() if not x < 1e-4} == {}


@needs_triton
@pytest.mark.long
def test_kernels_compile_for_hopper_and_fit_its_registers(tmp_path):
    compiled = run("compiled_v4_kernels.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert {name: found["spilled"] for name, found in compiled.items() if found["spilled"] > 512} == {}
    assert {name.split()[0] for name, found in compiled.items() if found["mma"]} == PRODUCTS


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "case",
    [
        ("attended", 64, 512, 128, 0, 0, 64),
        ("attended", 64, 512, 128, 128, 0, 64),
        ("attended", 64, 512, 128, 4, 100, 64),
        ("attended", 128, 512, 128, 4, 512, 0),
        ("attended", 16, 128, 128, 4, 32, 64),
        ("attended", 4, 32, 32, 4, 8, 16),
        ("scored", 64, 128, 4, 100),
        ("scored", 16, 64, 4, 32),
        ("pooled", 512, 4, True),
        ("pooled", 512, 128, False),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_on_a_gpu_at_the_models_widths(case, seed):
    import v4_kernels_cases as cases

    kind, *sizes = case
    errors = cases.errors(kind, seed, "cuda", torch.bfloat16, cases.lengths(seed, 900), *sizes)
    rest = errors[1:] if kind == "scored" else errors
    assert max(rest) < BF16 and (kind != "scored" or errors[0] == 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "case",
    [
        ("normed", (300, 64, 512), False, 64),
        ("normed", (4096, 512), True, 64),
        ("normed", (5000, 4096), True, 0),
        ("around", 300, 4, 4096, 20),
        ("around", 70, 4, 1024, 20),
        ("around", 100, 4, 4096, 0),
        ("gated", 999, 2048, 10.0),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_rows_on_a_gpu_at_the_models_widths(case):
    import v4_kernels_cases as cases

    kind, *sizes = case
    errors = cases.errors(kind, 0, "cuda", torch.bfloat16, *sizes)
    assert max(errors) < BF16


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_bits_every_time():
    from model.layers.common import documents
    from model.layers.deepseek_v4.compressor import Visible, windows
    from model.layers.deepseek_v4.hybrid import kernels
    from model.layers.deepseek_v4.indexer import Projected

    cu, T = torch.tensor([0, 700, 1900], dtype=torch.int32, device="cuda"), 1900
    found, place = windows(cu, T, 4), documents.positions(cu, T)
    made = [torch.randn(*s, device="cuda").bfloat16() for s in ((T, 64, 512), (T, 512), (64,), (T // 4, 512))]
    leaves = [x.requires_grad_() for x in made]
    scores = [torch.randn(*s, device="cuda").bfloat16() for s in ((T, 64, 128), (T // 4, 128), (T, 64))]

    def once():
        chosen = kernels.select(Projected(*scores), Visible(found.begin, found.seen), 100)
        visible = Visible(found.begin, found.seen, chosen)
        output, mass = kernels.core_attention(*leaves[:3], place, 128, leaves[3], visible, None, True)
        return [chosen, output, mass, *torch.autograd.grad(output, leaves, torch.ones_like(output))]

    first = once()
    assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(first, once(), strict=True))
