"""A split's files: tokens and side columns, each one indexed dataset or, where a size was asked for, several shards.

Shards are indexed datasets as Megatron knows them, ``train-00000.bin`` and on; no document is in two of them. The
columns are cut where the tokens are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.stored.indexed import IndexedDataset, IndexedWriter


class SplitWriter:
    """Write documents to ``FOLDER/SPLIT`` and their columns to ``FOLDER/SPLIT.FIELD``, in a ``with`` block.

    ``dtype``: of the tokens; columns are uint8. ``limit``: bytes of tokens in a shard, of which a longer document has
    one for itself; None for one file. After an exception the shard in hand is not there.
    """

    def __init__(
        self, folder: Path, split: str, dtype: np.dtype[Any], fields: Sequence[str], limit: int | None = None
    ) -> None:
        self.folder, self.split, self.dtype, self.fields, self.limit = folder, split, dtype, fields, limit
        self._shard, self._bytes = -1, 0

    def __enter__(self) -> SplitWriter:
        self._open()
        return self

    def append(self, ids: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add one document: ids [n], columns {field: [n]}. Raises DataError as ``IndexedWriter.append``."""
        size = ids.size * self.dtype.itemsize
        if self.limit is not None and self._bytes and self._bytes + size > self.limit:
            self._files.close()
            self._open()
        self._bytes += size
        for field, writer in self._writers.items():
            writer.append(ids if field is None else columns[field])

    def _open(self) -> None:
        self._shard, self._bytes = self._shard + 1, 0
        number = None if self.limit is None else self._shard
        self._files = contextlib.ExitStack()
        self._writers = {
            field: self._files.enter_context(
                IndexedWriter(
                    prefix(self.folder, self.split, field, number), self.dtype if field is None else np.dtype(np.uint8)
                )
            )
            for field in (None, *self.fields)
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.__exit__(kind, error, trace)


class Joined:
    """Indexed datasets one after the other, read as one: ``tokens`` and ``bounds`` as ``IndexedDataset`` has them."""

    def __init__(self, parts: Sequence[IndexedDataset]) -> None:
        starts = np.cumsum([0, *(len(part.tokens) for part in parts)])
        self.tokens = JoinedTokens([part.tokens for part in parts], starts)
        begins = [part.bounds[:-1] + start for part, start in zip(parts, starts[:-1].tolist(), strict=True)]
        self.bounds: NDArray[Any] = np.concatenate([*begins, starts[-1:]])

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, document: int) -> NDArray[Any]:
        if not 0 <= document < len(self):
            raise IndexError(document)
        return self.tokens[int(self.bounds[document]) : int(self.bounds[document + 1])]


class JoinedTokens:
    """Flat arrays [N] as one, without copying them: slices with both ends, and the length."""

    def __init__(self, parts: Sequence[NDArray[Any]], starts: NDArray[Any]) -> None:
        self._parts, self._starts = parts, starts  # starts int64 [parts + 1]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, wanted: slice) -> NDArray[Any]:
        first = int(np.searchsorted(self._starts[1:-1], wanted.start, side="right"))
        last = max(int(np.searchsorted(self._starts, wanted.stop, side="left")), first + 1)
        pieces = [
            part[max(wanted.start - start, 0) : max(wanted.stop - start, 0)]
            for part, start in zip(self._parts[first:last], self._starts[first:last].tolist(), strict=True)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def prefix(folder: Path, split: str, field: str | None = None, shard: int | None = None) -> Path:
    """Path without ``.bin``/``.idx`` of a split's tokens, or of one of its side columns; of one shard of it."""
    name = split if field is None else f"{split}.{field}"
    return folder / (name if shard is None else f"{name}-{shard:05d}")


def opened(folder: Path, split: str, field: str | None, files: Mapping[str, Any]) -> IndexedDataset | Joined:
    """A split's tokens or column, joined if its files, of which ``files`` holds the names, are shards.

    Raises DataError if one is not a whole indexed dataset.
    """
    count = 0
    while prefix(folder, split, field, count).name + ".idx" in files:
        count += 1
    if not count:
        return IndexedDataset(prefix(folder, split, field))
    return Joined([IndexedDataset(prefix(folder, split, field, shard)) for shard in range(count)])
