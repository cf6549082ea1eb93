"""Blocks of a row's queries, whose products exist at a time."""

from __future__ import annotations

from torch import Tensor

QUERIES = {  # 512 chosen entries of 512 channels for each query take 1 MiB in fp32
    "cpu": 64,
    "cuda": 512,  # in smaller ones a GPU waits for their launches
}


def blocks(query: Tensor) -> list[slice]:
    """Of the rows of ``query`` [T, ...], on its device."""
    tokens, each = len(query), QUERIES.get(query.device.type, QUERIES["cpu"])
    return [slice(start, min(start + each, tokens)) for start in range(0, tokens, each)]
