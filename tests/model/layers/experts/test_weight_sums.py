"""Experts' weight gradients added to Megatron's: by the interpreter, and at the model's width on a GPU."""

import pytest
import torch
from scripted import run


def test_sums_are_exact_and_experts_without_rows_are_not_read():
    assert run("interpreted_weight_sums.py", TRITON_INTERPRET="1") == [True, True, True]


@pytest.mark.parametrize(
    ("product", "sums"),
    [
        (torch.ones(2, 4, 3), torch.ones(2, 3, 4)),
        (torch.ones(2, 3, 4).transpose(1, 2), torch.ones(2, 4, 3)),
        (torch.ones(2, 4, 3), torch.ones(2, 3, 4).transpose(1, 2)),
    ],
)
def test_what_is_not_dense_or_of_one_shape_is_refused(product, sums):
    pytest.importorskip("triton")
    from model.layers.experts.weight_sums import add_used

    with pytest.raises(ValueError, match="shape"):
        add_used(product, torch.tensor([1, 2], dtype=torch.int32), sums)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_at_the_models_width():
    import weight_sums_cases

    assert weight_sums_cases.right(torch.bfloat16, (896, 4096), 896 * 4096, "cuda")
