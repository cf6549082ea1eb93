"""From documents to token ids and side columns, in this process or in several, in the corpus's order."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.columns.structure import token_columns
from model.data.errors import DataError
from model.data.source import tokenizers
from model.data.source.corpus import Document
from model.data.stored.dataset import Split
from model.data.stored.indexed import token_dtype

IN_FLIGHT = 8  # documents a worker may have waiting: bounds memory


@dataclass(frozen=True)
class EncodedDocument:
    """``ids`` [n]: the dataset's dtype, EOD last; ``columns`` {field: uint8 [n]}, 0 at EOD; ``size``: bytes of text."""

    split: Split
    ids: NDArray[Any]
    columns: dict[str, NDArray[Any]]
    size: int


@dataclass(frozen=True)
class EncoderOptions:
    tokenizer: str
    eod_token: str | None
    valid_percent: float
    structure: bool


class Encoder:
    """Tokenizes, annotates and assigns a split. The split depends on the document's content alone, without its EOD, not
    on order or on other documents, so all copies of a document are in one split.
    """

    def __init__(self, options: EncoderOptions) -> None:
        self.options = options
        self._tokenizer = tokenizers.load(options.tokenizer, options.eod_token)
        self._description = self._tokenizer.description

    def __call__(self, document: Document) -> list[EncodedDocument]:
        """One for a text, one for each EOD-ended part of a row of tokens; none of them empty.

        Raises DataError that names the document if an id is outside the vocabulary or a text is not UTF-8.
        """
        if document.tokens is not None:
            return [self._closed(ids, ids.astype("<i8").tobytes()) for ids in self._parts(document)]
        try:
            encoded = self._tokenizer.encode(document.text)
        except DataError as error:
            raise DataError(f"{document.name}: {error.what}", error.remedy) from error
        if not encoded.ids.size:
            return []
        columns: dict[str, NDArray[Any]] = {}
        if self.options.structure:
            columns = token_columns(document.text, encoded.ends, document.language)
        return [self._closed(encoded.ids, document.text, columns, len(document.text))]

    def _closed(
        self, ids: NDArray[Any], content: bytes, columns: dict[str, NDArray[Any]] | None = None, size: int = 0
    ) -> EncodedDocument:
        """``ids`` with their EOD; ``content`` decides the split."""
        return EncodedDocument(
            split=split_of(hashlib.sha256(content).digest(), self.options.valid_percent),
            ids=np.append(ids, self._description.eod).astype(token_dtype(self._description.vocab_size)),
            columns={name: np.append(values, np.uint8(0)) for name, values in (columns or {}).items()},
            size=size,
        )

    def _parts(self, document: Document) -> list[NDArray[Any]]:
        """The documents of a row of the corpus's own ids, without their EODs; none of them empty."""
        assert document.tokens is not None
        ids, name = document.tokens, document.name
        size = self._description.vocab_size
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            raise DataError(
                f"{name}: ids from {ids.min()} to {ids.max()}, the tokenizer has 0 to {size - 1}",
                "name the tokenizer that made the shards: --tokenizer hf:FILE --eod TOKEN",
            )
        ends = np.flatnonzero(ids == self._description.eod)
        parts = (part[part != self._description.eod] for part in np.split(ids, ends))
        return [part for part in parts if part.size]


def split_of(sha256: bytes, valid_percent: float) -> Split:
    """The split of a document with this digest: "valid" for ``valid_percent`` percent of all digests."""
    return "valid" if int.from_bytes(sha256[:8], "big") < valid_percent / 100 * 2**64 else "train"


def encode_all(documents: Iterable[Document], options: EncoderOptions, workers: int) -> Iterator[EncodedDocument]:
    """Every document that is not empty, encoded, in order. Holds a bounded number of documents."""
    encoded = map(Encoder(options), documents) if workers <= 1 else _in_processes(documents, options, workers)
    return itertools.chain.from_iterable(encoded)


def _in_processes(
    documents: Iterable[Document], options: EncoderOptions, workers: int
) -> Iterator[list[EncodedDocument]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(options,)) as pool:
        waiting: deque[Future[list[EncodedDocument]]] = deque()
        for document in documents:
            waiting.append(pool.submit(_work, document))
            if len(waiting) >= workers * IN_FLIGHT:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_ENCODER: Encoder | None = None


def _start_worker(options: EncoderOptions) -> None:
    global _ENCODER
    _ENCODER = Encoder(options)


def _work(document: Document) -> list[EncodedDocument]:
    assert _ENCODER is not None
    return _ENCODER(document)
