"""Blocks of a row's queries."""

import pytest
import torch

from model.layers.common import blocks


@pytest.mark.parametrize("tokens", [0, 1, 5, 10, 11])
def test_blocks_hold_each_row_once_and_no_more_than_their_device_takes(monkeypatch, tokens):
    monkeypatch.setitem(blocks.QUERIES, "cpu", 5)
    found = blocks.blocks(torch.zeros(tokens, 2))
    rows = list(range(tokens))
    assert [row for block in found for row in rows[block]] == rows
    assert [block.stop - block.start for block in found] == [5] * (tokens // 5) + [tokens % 5] * (tokens % 5 > 0)


def test_a_device_without_a_size_of_its_own_has_a_cpus(monkeypatch):
    monkeypatch.setitem(blocks.QUERIES, "cpu", 5)
    assert [block.stop for block in blocks.blocks(torch.zeros(8, 2, device="meta"))] == [5, 8]
