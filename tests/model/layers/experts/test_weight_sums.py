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


@pytest.mark.parametrize(
    ("sums", "ends"),
    [(torch.bfloat16, [1, 2]), (torch.float32, [1]), (torch.float32, [1.0, 2.0])],
)
def test_other_dtypes_and_another_number_of_ends_are_refused(sums, ends):
    pytest.importorskip("triton")
    from model.layers.experts.weight_sums import add_used

    ends = torch.tensor(ends, dtype=torch.int32 if isinstance(ends[0], int) else None)
    with pytest.raises(ValueError, match="ends"):
        add_used(torch.ones(2, 4, 3), ends, torch.ones(2, 4, 3, dtype=sums))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_at_the_models_width():
    import weight_sums_cases

    assert weight_sums_cases.right(torch.bfloat16, (896, 4096), 896 * 4096, "cuda")
