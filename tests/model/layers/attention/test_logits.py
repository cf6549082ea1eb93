"""The largest attention logit against all of them, computed at once."""

import pytest
import torch

from model.layers.attention import logits

CUTS = torch.tensor([0, 3, 3, 8, 20, 24], dtype=torch.int32)


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("row", [None, 8])
def test_it_is_the_largest_that_a_query_may_see(heads, row, monkeypatch):
    monkeypatch.setattr(logits, "CHUNK", 7)
    cuts = CUTS if row is None else torch.tensor([0, 3, 8, 16, 24], dtype=torch.int32)
    torch.manual_seed(0)
    query, key = torch.randn(24, 4, 6), torch.randn(24, heads, 6)
    document = torch.bucketize(torch.arange(24), cuts[1:].long(), right=True)
    seen = (document[:, None] == document[None, :]).tril()
    whole = torch.einsum("qnd,knd->nqk", query, key.expand(-1, 4, -1)).masked_fill(~seen, -torch.inf)
    found = logits.largest(query, key, cuts, 0.5, row)
    assert found.dtype is torch.float32 and found.item() == pytest.approx(0.5 * whole.max().item(), rel=1e-6)
    assert found < 0.5 * torch.einsum("qnd,knd->nqk", query, key.expand(-1, 4, -1)).max()
