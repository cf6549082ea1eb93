"""Megatron's indexed dataset, read and written: ``PREFIX.bin`` (tokens) and ``PREFIX.idx`` (where each document is).

Layout, little-endian (megatron/core/datasets/indexed_dataset.py of megatron-core 0.19.0): magic ``MMIDIDX\\0\\0``,
version u64 = 1, dtype code u8, sequence count S u64, document-index count D+1 u64, sequence lengths int32 [S], byte
pointers int64 [S], document indices int64 [D+1] (sequence numbers), then int8 [S] modes in multimodal sets only.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
REBUILD = "build it again: python -m model.data build --out DIR"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 where every id fits (vocab ≤ 65,536), else int32.

    Megatron's own rule stops at 65,499. Its readers and this one go by the code in the header.
    """
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.int32)


class IndexedWriter:
    """Append documents, one sequence each; the two files appear under their names when the ``with`` block ends well.

    ``dtype``: any of CODES. After an exception nothing is left behind.
    """

    def __init__(self, prefix: Path, dtype: np.dtype[Any]) -> None:
        self.prefix, self.dtype = prefix, np.dtype(dtype)
        self._code = {name: code for code, name in CODES.items()}[self.dtype.name]
        self._lengths: list[int] = []
        self._part = prefix.with_name(f".tmp-{os.getpid()}-{prefix.name}.bin")
        self._sink = self._part.open("wb")

    def __enter__(self) -> IndexedWriter:
        return self

    def append(self, values: NDArray[Any]) -> None:
        """Add one document, values [n] of any integer dtype; raises DataError if one does not fit the file's dtype."""
        limits = np.iinfo(self.dtype)
        if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
            raise DataError(f"{self.prefix}.bin: id {int(values.max())} does not fit {self.dtype.name}", REBUILD)
        if values.size > np.iinfo(np.int32).max:
            raise DataError(f"{self.prefix}.bin: a document of {values.size} tokens; the format allows 2^31 - 1")
        self._sink.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self._lengths.append(values.size)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        index = self._part.with_suffix(".idx")
        try:
            self._sink.close()
            if kind is None:
                index.write_bytes(self._index())
                # The index comes last: a reader that sees it sees its tokens too.
                self._part.replace(self.prefix.with_name(self.prefix.name + ".bin"))
                index.replace(self.prefix.with_name(self.prefix.name + ".idx"))
        finally:
            for part in (self._part, index):
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()

    def _index(self) -> bytes:
        lengths = np.array(self._lengths, dtype="<i4")  # [S]
        pointers = _offsets(lengths)[:-1] * self.dtype.itemsize  # [S]
        documents: NDArray[Any] = np.arange(len(lengths) + 1, dtype="<i8")  # [S + 1]
        head = HEADER.pack(MAGIC, 1, self._code, len(lengths), len(documents))
        return b"".join((head, lengths.tobytes(), pointers.astype("<i8").tobytes(), documents.tobytes()))


class IndexedDataset:
    """A memory-mapped dataset of documents. Raises DataError, naming file and fault, if it is damaged.

    Attributes: ``tokens`` [N] of the file's dtype and ``bounds`` int64 [D+1]: document d is
    ``tokens[bounds[d]:bounds[d+1]]``.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self._idx, self._bin = (prefix.with_name(prefix.name + end) for end in (".idx", ".bin"))
        for path in (self._idx, self._bin):
            if not path.is_file():
                raise DataError(f"{path}: no such file", REBUILD)
        raw = self._idx.read_bytes()
        self.dtype, sequences, documents = self._header(raw)
        lengths = np.frombuffer(raw, "<i4", sequences, HEADER.size)
        pointers = np.frombuffer(raw, "<i8", sequences, HEADER.size + 4 * sequences)
        indices = np.frombuffer(raw, "<i8", documents, HEADER.size + 12 * sequences)
        self.bounds = self._bounds(lengths, pointers, indices)
        self.tokens: NDArray[Any] = self._tokens(int(lengths.sum(dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, document: int) -> NDArray[Any]:
        if not 0 <= document < len(self):
            raise IndexError(document)
        return self.tokens[self.bounds[document] : self.bounds[document + 1]]

    def _refuse(self, path: Path, fault: str) -> DataError:
        return DataError(f"{path}: {fault}", REBUILD)

    def _header(self, raw: bytes) -> tuple[np.dtype[Any], int, int]:
        """(dtype, sequence count, document-index count), checked against the file's size."""
        if len(raw) < HEADER.size:
            raise self._refuse(self._idx, f"{len(raw)} bytes, shorter than the {HEADER.size}-byte header")
        magic, version, code, sequences, documents = HEADER.unpack_from(raw)
        if magic != MAGIC:
            raise self._refuse(self._idx, f"starts with {magic!r}, not {MAGIC!r}: no Megatron index")
        if version != 1:
            raise self._refuse(self._idx, f"version {version}, only 1 is known")
        if code not in CODES:
            raise self._refuse(self._idx, f"dtype code {code}, known are {min(CODES)} to {max(CODES)}")
        whole = HEADER.size + 12 * sequences + 8 * documents
        if len(raw) not in (whole, whole + sequences):
            raise self._refuse(self._idx, f"{len(raw)} bytes, its counts ask for {whole}: truncated or corrupt")
        return np.dtype(CODES[code]), sequences, documents

    def _bounds(self, lengths: NDArray[Any], pointers: NDArray[Any], indices: NDArray[Any]) -> NDArray[Any]:
        """Token offsets of the documents' ends, int64 [D+1]."""
        if lengths.size and int(lengths.min()) < 0:
            raise self._refuse(self._idx, f"sequence {int(lengths.argmin())} has a negative length")
        offsets = _offsets(lengths)
        wrong = np.flatnonzero(pointers != offsets[:-1] * self.dtype.itemsize)
        if wrong.size:
            raise self._refuse(self._idx, f"pointer of sequence {int(wrong[0])} is not where its predecessor ends")
        if not indices.size or indices[0] != 0 or indices[-1] != lengths.size or np.any(np.diff(indices) < 0):
            raise self._refuse(self._idx, f"document indices do not rise from 0 to the {lengths.size} sequences")
        return offsets[indices]

    def _tokens(self, count: int) -> NDArray[Any]:
        size, whole = self._bin.stat().st_size, count * self.dtype.itemsize
        if size != whole:
            raise self._refuse(self._bin, f"{size} bytes, the index asks for {whole}: truncated or corrupt")
        if not count:  # an empty file cannot be mapped
            return np.empty(0, self.dtype)
        return np.memmap(self._bin, self.dtype, "r")


def _offsets(lengths: NDArray[Any]) -> NDArray[Any]:
    """Exclusive running sum with the total last, int64 [S+1]."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
