"""Of whole documents: what later tokens change, and what one token gives."""

import torch

from model.alignment.nam56r import drawn
from model.alignment.nam56r.formulas import whole
from model.families.nam56r import TINY

WEIGHTS = {name: tensor.double() for name, tensor in drawn.weights(TINY, 0, faint=False).items()}


def said(tokens):
    fields = {name: [0] * len(tokens) for name in TINY.structure.fields}
    return whole.document(whole.Document(tokens, fields, {}), WEIGHTS, TINY, drawn.A_FLOOR)


def test_a_token_changes_nothing_before_it():
    one, other = said([5, 6, 7, 8]), said([5, 6, 7, 9])
    assert torch.equal(one["logits"][:3], other["logits"][:3]) and not torch.equal(one["logits"], other["logits"])
    assert torch.equal(one["MTP-1.logits"][:2], other["MTP-1.logits"][:2])


def test_a_document_of_one_token_has_no_mtp_and_no_loss():
    one = said([5])
    assert one["logits"].shape == (1, TINY.vocab) and "MTP-1.logits" not in one
    found = whole.losses([one, said([5, 6, 7])], [[5], [5, 6, 7]], TINY)
    alone = whole.losses([said([5, 6, 7])], [[5, 6, 7]], TINY)
    assert found["lm"] == alone["lm"] and found["mtp"] == alone["mtp"] and found["aux"] != alone["aux"]
