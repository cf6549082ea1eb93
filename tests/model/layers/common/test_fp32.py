"""What stays fp32, and what is computed so."""

import pytest
import torch

from model.layers.common import fp32


@pytest.mark.parametrize(
    ("given", "computed"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_values_are_computed_in_fp32_or_more(given, computed):
    x = torch.ones(2, dtype=given)
    assert fp32.wide(x).dtype == computed and fp32.wide(x).tolist() == [1, 1]


def test_what_is_marked_is_the_tensor_itself():
    x = torch.nn.Parameter(torch.ones(2))
    assert not fp32.kept(x) and fp32.keep(x) is x and fp32.kept(x)
