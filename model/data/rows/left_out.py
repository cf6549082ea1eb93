"""Samples that a run never takes: those of the batches that led to a loss that spiked."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]  # [first, behind the last) by the number of the sample, in order, apart from each other


def place(taken: int, left_out: Spans) -> int:
    """The number of the sample that is taken after ``taken`` others."""
    number = taken
    for first, last in left_out:
        if number < first:
            break
        number += last - first
    return number


def merged(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same samples in order, without overlaps."""
    found: Spans = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        elif first < last:
            found.append((first, last))
    return found
