"""The tokens of row r of epoch e: documents in a shuffled order, joined into a stream, cut into rows, shuffled.

Cut c is S + 1 tokens, the stream from c·S on, so that every token but the first is a label once. The rest at the
stream's end (at most S tokens) is dropped for this epoch. Row r is cut c = ``order(epoch)[r]``, because neighbouring
cuts may hold one long document and a step's rows should not. A row depends on (seed, epoch, row) alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.data.errors import DataError
from model.data.stored.shards import JoinedTokens


class Spans(NamedTuple):
    """Pieces of documents in reading order, S + 1 tokens in all: ``[starts[i], stops[i])`` of the file, int64 [k].

    Neighbouring pieces are of different documents; only the first piece may begin inside its document.
    """

    starts: NDArray[Any]
    stops: NDArray[Any]

    def gather(self, values: NDArray[Any] | JoinedTokens) -> NDArray[Any]:
        """The row's part of a flat column ``values`` [N]: [S + 1]."""
        return np.concatenate([values[a:b] for a, b in zip(self.starts.tolist(), self.stops.tolist(), strict=True)])

    def begins(self) -> NDArray[Any]:
        """Place in the row at which each piece begins, int64 [k]; the first is 0."""
        return np.concatenate(([0], np.cumsum(self.stops - self.starts)[:-1]))


class Packing:
    """Rows over documents that lie at ``bounds`` int64 [D+1]. Raises DataError if they do not fill one row."""

    def __init__(self, bounds: NDArray[Any], sequence_length: int, seed: int) -> None:
        if sequence_length < 1:
            raise DataError(f"sequence length {sequence_length}", "a sequence length of 1 or more")
        self.sequence_length, self.seed = sequence_length, seed
        if not 0 <= seed < 1 << 63:
            raise DataError(f"seed {seed}", "a seed from 0 to 2^63 - 1")
        filled = np.flatnonzero(np.diff(bounds))
        self._starts, self._lengths = bounds[filled], np.diff(bounds)[filled]  # [documents] each
        tokens = int(self._lengths.sum())
        self.rows = (tokens - 1) // sequence_length if tokens else 0
        if not self.rows:
            raise DataError(
                f"{tokens} tokens do not fill a row of {sequence_length} + 1",
                "a shorter sequence, or a dataset with more text (a higher --valid-percent for its valid split)",
            )
        self._epoch = -1

    def row(self, epoch: int, row: int) -> Spans:
        """The pieces of row ``row`` < ``rows`` of ``epoch``."""
        begin = int(self.order(epoch)[row]) * self.sequence_length
        end = begin + self.sequence_length + 1
        first = int(np.searchsorted(self._offsets, begin, side="right")) - 1
        last = int(np.searchsorted(self._offsets, end, side="left"))
        at = self._shift[first:last]  # [k], file position minus stream position
        starts = at + np.maximum(self._offsets[first:last], begin)
        stops = at + np.minimum(self._offsets[first + 1 : last + 1], end)
        return Spans(starts, stops)

    def order(self, epoch: int) -> NDArray[Any]:
        """Each row's cut in ``epoch``, int64 [rows]."""
        self._shuffle(epoch)
        return self._order

    def _shuffle(self, epoch: int) -> None:
        """Hold the order of ``epoch``."""
        if epoch == self._epoch:
            return
        # The generator's definition fixes its raw words; numpy may change how permutation() uses them.
        generator = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))
        order = np.argsort(generator.random_raw(len(self._lengths)), kind="stable")
        self._offsets: NDArray[Any] = np.concatenate(([0], np.cumsum(self._lengths[order])))  # [documents + 1]
        self._shift: NDArray[Any] = self._starts[order] - self._offsets[:-1]  # [documents]
        self._order: NDArray[Any] = np.argsort(generator.random_raw(self.rows), kind="stable")  # [rows]
        self._epoch = epoch
