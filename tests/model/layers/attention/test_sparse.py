"""The indexer's loss row by row against upstream's over the whole stream: the same choice, loss and gradients."""

import re

import pytest
import tiny
from train_kit import good, measured, train

pytestmark = pytest.mark.upstream
ROW, ROWS, INDEX, TOPK = 32, 3, 8, 6
HEADS = 16  # fewer, and a score is 0 because every head's ReLU is shut: ties, of which the top-k takes any
CUTS = (0, 5, 32, 64, 70, 96)  # documents: two in the first row, one is the second, two in the third
FP32 = 2e-6


def given():
    """(q, weights, k), leaves, and what else FusedDSAIndexerLoss takes after them, for packed documents."""
    import torch
    from torch import randn

    T, make = ROW * ROWS, torch.Generator().manual_seed(3)
    leaves = [
        randn(T, 1, HEADS, INDEX, generator=make),
        randn(T, 1, HEADS, generator=make),
        randn(T, 1, INDEX, generator=make),
    ]
    query, key = (randn(T, 1, heads, 16, generator=make) for heads in (HEADS, 1))
    number = torch.bucketize(torch.arange(T), torch.tensor(CUTS[1:]), right=True)
    starts, ends = torch.tensor(CUTS)[number], torch.arange(1, T + 1)
    groups = tiny.layer(5).self_attention.core_attention.pg_collection
    rest = (
        query,
        key.expand(-1, -1, HEADS, -1),
        0.25,
        TOPK,
        0.5,
        None,
        False,
        groups,
        starts,
        ends,
        None,
        None,
        False,
        True,
    )
    return [leaf.requires_grad_() for leaf in leaves], rest


def compared():
    """Indices that differ, errors of the loss and of the gradients, of rows against the stream; with positions too."""
    import torch
    from megatron.core.transformer.experimental_attention_variant import dsa

    from model.layers.attention.sparse import RowLoss

    leaves, rest = given()
    want, ideal = dsa.FusedDSAIndexerLoss.apply(*leaves, *rest)
    wanted = torch.autograd.grad(3 * ideal, leaves)
    rows = []
    for positions in (None, torch.arange(ROW * ROWS)):
        got, loss = RowLoss(dsa.FusedDSAIndexerLoss, ROW).apply(*leaves, *rest[:10], positions, *rest[11:])
        grads = torch.autograd.grad(3 * loss, leaves)
        errors = [tiny.error(a, b) for a, b in zip(grads, wanted, strict=True)]
        rows.append((int((got != want).sum()), tiny.error(loss, ideal), *errors))
    return rows, ideal.item(), int((want < 0).sum())


def refused():
    """What is said to a mask, to invalid rows, to a loss that is a sum, and to a stream that is not whole rows."""
    import torch
    from megatron.core.transformer.experimental_attention_variant import dsa

    from model.layers.attention.sparse import RowLoss

    leaves, rest = given()
    mask = (*rest[:5], torch.zeros(1), *rest[6:])
    rows, summed = (*rest[:11], torch.ones(1), *rest[12:]), (*rest[:12], True, rest[13])
    said = []
    for row, other in ((ROW, mask), (ROW, rows), (ROW, summed), (ROW + 1, rest)):
        try:
            RowLoss(dsa.FusedDSAIndexerLoss, row).apply(*leaves, *other)
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_row_at_a_time_is_the_whole_stream(megatron):
    rows, loss, none = megatron.call(compared)
    assert loss > 0.01 and none > 0
    for differ, *errors in rows:
        assert differ == 0 and max(errors) < FP32


def test_what_is_not_whole_rows_of_packed_documents_is_refused(megatron):
    *kinds, length = megatron.call(refused)
    assert len(kinds) == 3 and all("indexer=rows" in message for message in kinds)
    assert re.findall(r"\d+", length) == ["96", "33"]


def test_training_by_rows_is_training_on_the_stream(stack, text, tmp_path):
    common = {"steps": 3, "micro_batch": 3, "evaluate_every": 9, "save_every": 0, "fp32": True, "deterministic": True}
    common["learning_rate"] = 1e-6  # an update takes the sign of a gradient that is rounding, and routing follows
    for path in ("rows", "stream"):
        good(train(stack, tmp_path / path, text, path=f"indexer={path}", **common))
    ours, theirs = measured(tmp_path / "rows"), measured(tmp_path / "stream")
    assert len(ours) == 3
    for got, want in zip(ours, theirs, strict=True):
        assert got == pytest.approx(want, rel=FP32, abs=2e-8)
