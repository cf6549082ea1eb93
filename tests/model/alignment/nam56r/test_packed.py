"""A row's documents, one by one."""

import pytest
import torch

from model.alignment.nam56r import packed
from model.families.nam56r import TINY


@pytest.mark.parametrize(("variant", "bounds"), [(0, [0, 6, 12]), (1, [0, 9, 10, 12, 12])])
def test_both_layouts_have_as_many_tokens(variant, bounds):
    row = packed.row(TINY, 6, variant, 0)
    assert row.cu.tolist() == bounds and row.cu.dtype == torch.int32 and len(row.tokens) == 12
    assert {name: len(column) for name, column in row.fields.items()} == {"structure": 12, "dep_level": 12}


def test_tokens_ahead_are_of_the_same_document():
    row = packed.row(TINY, 6, 1, 0)
    assert row.ahead(1).tolist() == [*range(8), 10]
    assert row.ahead(2).tolist() == [*range(7)]


def test_a_document_has_its_own_tokens_columns_and_choices():
    row = packed.row(TINY, 6, 1, 0)
    keys, experts = torch.rand(12, 12) > 0.5, torch.rand(12, 8) > 0.5
    first, second, third = row.documents({"5.taken": keys, "2.taken": experts})
    assert first.tokens + second.tokens + third.tokens == row.tokens.tolist()
    assert third.fields["dep_level"] == row.fields["dep_level"][10:].tolist()
    assert torch.equal(third.other["5.taken"], keys[10:, 10:]) and torch.equal(third.other["2.taken"], experts[10:])
