"""The rotary embedding as one kernel: by the interpreter, what it leaves to Megatron, and on a GPU."""

import re

import pytest
import torch
from scripted import run


@pytest.mark.upstream
@pytest.mark.long
def test_results_are_megatrons_in_fp16_and_close_elsewhere():
    """The interpreter rounds to bf16 in a way of its own, and fp32's product and sum are rounded once."""
    found = run("interpreted_rotary.py", TRITON_INTERPRET="1")
    assert len(found) == 48
    assert [one for one in found[16:32] if one != {"result": 0.0, "gradient": 0.0}] == []
    assert all(error < 0.07 for one in found[:16] for error in one.values())  # 2^-6 of numbers up to 4
    assert all(error < 2e-6 for one in found[32:] for error in one.values())


@pytest.mark.parametrize(
    ("shape", "freqs", "options"),
    [
        ((4, 1, 2, 8), (4, 1, 1, 4), {}),  # some channels are not turned
        ((4, 3, 2, 8), (4, 3, 1, 8), {}),  # other angles in each sequence
        ((4, 2, 8), (4, 1, 8), {}),
        ((0, 1, 2, 8), (0, 1, 1, 8), {}),
        ((4, 1, 2, 8), (4, 1, 1, 8), {"rotary_interleaved": True}),
        ((4, 1, 2, 8), (4, 1, 1, 8), {"inverse": True}),
    ],
)
def test_what_the_kernel_does_not_take_is_megatrons(shape, freqs, options):
    pytest.importorskip("triton")
    from model.layers.attention.rotary import rotating

    asked = []
    rotate = rotating(lambda t, freqs, *rest, **more: asked.append((t.shape, freqs.shape, *rest, more)))
    rotate(torch.ones(shape), torch.ones(freqs), **options)
    more = {name: value for name, value in options.items() if name != "rotary_interleaved"}
    assert asked == [(shape, freqs, "rotary_interleaved" in options, False, 1.0, more)]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("paired", [False, True])
def test_a_gpu_rounds_each_product_before_the_sum_and_moves_many_numbers_at_a_time(paired, back, monkeypatch):
    pytest.importorskip("triton")
    from compiled import Launches

    from model.layers.attention import rotary

    launches = Launches(rotary.rotate_kernel)
    monkeypatch.setattr(rotary, "rotate_kernel", launches)
    whole = torch.empty(4, 1, 32, 192, dtype=torch.bfloat16)  # of queries 64 channels of 192 turn
    table = torch.empty(4, 1, 1, 64, dtype=torch.bfloat16)
    for x in (whole[..., 128:], whole[..., :64].contiguous()):
        rotary.rotated(x, table, table, paired, back)
    for made in launches.ptx:
        products = made.count("mul.rn.bf16 ") + 2 * made.count("mul.rn.bf16x2 ")
        assert "fma" not in made and products == 4 * 32 * 32 // 128  # of one of 128 threads
        assert not re.search(r"(ld|st)\.global\S*\.b16", made)
    assert len(launches.ptx) == 2


@pytest.mark.upstream
@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 28, 32])
def test_on_a_gpu_at_the_models_sizes(gpu, heads):
    import rotary_cases

    for layout in ("whole", "part"):
        found = gpu.call(rotary_cases.case, torch.bfloat16, (4096, 1, heads, 64), True, "cuda", layout)
        assert found == {"result": 0.0, "gradient": 0.0}
