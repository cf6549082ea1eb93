"""Places of tokens within their documents."""

import pytest
import torch

from model.layers.common import documents


def test_places_begin_anew_with_each_document_and_empty_ones_take_none():
    cu_seqlens = torch.tensor([0, 0, 3, 3, 4, 6, 6]).int()
    assert documents.positions(cu_seqlens, 6).tolist() == [0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("cu_seqlens", "named"),
    [
        (torch.tensor([0, 5]).int(), r"\b6\b.*\[0, 5\]"),
        (torch.tensor([0, 4, 3, 6]).int(), r"\b6\b.*\[0, 4, 3, 6\]"),
        (torch.tensor([1, 6]).int(), r"\b6\b.*\[1, 6\]"),
        (torch.tensor([[0, 6]]).int(), r"torch.int32 \[1, 2\]"),
        (torch.tensor([0.0, 6.0]), r"torch.float32 \[2\]"),
    ],
)
def test_what_does_not_describe_the_stream_is_refused(cu_seqlens, named):
    with pytest.raises(ValueError, match=named):
        documents.positions(cu_seqlens, 6)
