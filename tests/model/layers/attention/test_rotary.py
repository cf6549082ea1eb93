"""The rotary embedding's kernel, as it is compiled for a GPU."""

import re

import pytest
import torch


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
