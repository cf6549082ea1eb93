"""Corpora of the user's own files: text, JSON lines (compressed or not), Parquet shards of tokens or of text."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from model.data.columns.structure import Language
from model.data.errors import DataError
from model.data.source.corpus import CorpusDescription, Document, Source, decodes, digest_files
from reproducers.base import optional

BLANK_LINE = r"\s*"
COMPRESSED = (".gz", ".zst")


class Files:
    """Files that the user names. Folders are searched for ``suffixes`` (empty: every visible file), in sorted order.

    With ``text``, a folder's files that are neither UTF-8 nor compressed are left out and counted; reading one named
    directly raises DataError.
    """

    source: Source
    suffixes: tuple[str, ...] = ()
    text = True

    def __init__(self, paths: list[Path], **options: str) -> None:
        if not paths:
            raise DataError(f"--source {self.source} names no file", f"--source {self.source} PATH...")
        self.paths, self.options = paths, options

    @cached_property
    def _listing(self) -> tuple[list[tuple[str, Path]], int]:
        files: list[tuple[str, Path]] = []
        skipped = 0
        for path in self.paths:
            if path.is_dir():
                inside = self._inside(path)
                kept = [p for p in inside if not self.text or self._compressed(p) or decodes(p)]
                skipped += len(inside) - len(kept)
                files += [(p.relative_to(path).as_posix(), p) for p in kept]
            elif path.is_file():
                files.append((path.name, path))
            else:
                raise DataError(f"{path}: no such file or folder")
        if not files:
            raise DataError(f"no usable file in {', '.join(map(str, self.paths))}")
        return files, skipped

    def _inside(self, folder: Path) -> list[Path]:
        visible = (p for p in sorted(folder.rglob("*")) if p.is_file())
        visible = (p for p in visible if not any(part.startswith(".") for part in p.relative_to(folder).parts))
        return [p for p in visible if not self.suffixes or p.name.endswith(self.suffixes)]

    def _compressed(self, path: Path) -> bool:
        """Whether ``suffixes`` ask for a compressed file such as ``path``."""
        return path.suffix in COMPRESSED and bool(self.suffixes)

    @property
    def files(self) -> list[tuple[str, Path]]:
        return self._listing[0]

    @cached_property
    def description(self) -> CorpusDescription:
        files, skipped = self._listing
        sha256, size = digest_files(files)
        return CorpusDescription(
            source=self.source, files=len(files), bytes=size, sha256=sha256, skipped=skipped, options=self.options
        )


def _lines(path: Path, compressed: bool = False) -> Iterator[tuple[int, str]]:
    """(number, line with its end) of a UTF-8 file; raises DataError if it is not UTF-8, or broken off."""
    number = 0
    try:
        with _open(path) if compressed else path.open(encoding="utf-8", newline="") as source:
            for number, line in enumerate(source, start=1):
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 after line {number}", f"iconv -t UTF-8 {path}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {number}: {error}", "fetch the file again") from error


def _open(path: Path) -> TextIO:
    """A file of lines, decompressed by its suffix; pyarrow, which reads Parquet too, brings zstd."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    if path.suffix == ".zst":
        arrow = optional.load("pyarrow", "pyarrow", DataError)
        return io.TextIOWrapper(arrow.input_stream(str(path), compression="zstd"), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


class TextFiles(Files):
    """One document a file; with ``split``, a regular expression, one for each stretch between lines it matches whole.

    Files are split while they are read; separating lines are dropped. ``.py`` files are Python, others plain text.
    """

    source = "text"

    def __init__(self, paths: list[Path], split: str | None = None) -> None:
        super().__init__(paths, **({"split": split} if split is not None else {}))
        try:
            self._split = re.compile(split) if split is not None else None
        except re.error as error:
            raise DataError(f"--split {split}: {error}", f"--split '{BLANK_LINE}' splits at blank lines") from error

    def __iter__(self) -> Iterator[Document]:
        for name, path in self.files:
            language: Language = "python" if path.suffix == ".py" else "text"
            held: list[str] = []
            for number, line in _lines(path):
                if self._split is not None and self._split.fullmatch(line.rstrip("\r\n")):
                    yield Document(f"{name}:{number}", "".join(held).encode(), language)
                    held = []
                else:
                    held.append(line)
            yield Document(name, "".join(held).encode(), language)


class JsonLines(Files):
    """One document a line: the string under ``key``. Files end in ``.jsonl`` or ``.json``, with ``.gz`` or ``.zst``
    after it where they are compressed."""

    source = "jsonl"
    suffixes = tuple(name + end for name in (".jsonl", ".json") for end in ("", *COMPRESSED))

    def __init__(self, paths: list[Path], key: str = "text", language: Language = "text") -> None:
        super().__init__(paths, key=key, language=language)
        self._key, self._language = key, language

    def __iter__(self) -> Iterator[Document]:
        for name, path in self.files:
            for number, line in _lines(path, compressed=True):
                if line.strip():
                    yield Document(f"{name}:{number}", self._text(path, number, line), self._language)

    def _text(self, path: Path, number: int, line: str) -> bytes:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        text = value.get(self._key) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise DataError(f"{path}:{number}: no string under {self._key!r}", "--key NAME")
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{path}:{number}: {self._key!r} holds a lone surrogate, so it is not UTF-8") from error


class Parquet(Files):
    """Shards of which one column, ``key``, is read, a batch of rows at a time."""

    suffixes = (".parquet",)
    text = False

    def __init__(self, paths: list[Path], key: str, **options: str) -> None:
        super().__init__(paths, key=key, **options)
        self._key = key

    def _rows(self) -> Iterator[tuple[str, str, Any]]:
        """(document's name, place for errors, Arrow scalar) of each row. Raises DataError for a file that is broken."""
        parquet = optional.load("pyarrow.parquet", "pyarrow", DataError)
        for name, path in self.files:
            number = 0
            with _arrow(path, "not a whole Parquet file"):
                shard = parquet.ParquetFile(path)
                if self._key not in shard.schema_arrow.names:
                    raise DataError(f"{path}: no column {self._key!r}; it has {shard.schema_arrow.names}", "--key NAME")
                for batch in shard.iter_batches(batch_size=1024, columns=[self._key]):
                    for row in batch.column(0):
                        number += 1
                        yield f"{name}:{number}", f"{path}: row {number}", row


@contextlib.contextmanager
def _arrow(path: Path, fault: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(f"{path}: {fault}: {error}", "fetch the file again") from error


class ParquetTokens(Parquet):
    """One row of token ids a list in column ``key``; an EOD in it ends a document."""

    source = "parquet"

    def __init__(self, paths: list[Path], key: str = "tokens") -> None:
        super().__init__(paths, key)

    def __iter__(self) -> Iterator[Document]:
        for name, place, row in self._rows():
            yield Document(name, b"", tokens=_ids(row, place))


class ParquetText(Parquet):
    """One document a row: the string in column ``key``."""

    source = "parquet-text"

    def __init__(self, paths: list[Path], key: str = "text", language: Language = "text") -> None:
        super().__init__(paths, key, language=language)
        self._language = language

    def __iter__(self) -> Iterator[Document]:
        for name, place, row in self._rows():
            text = row.as_py()
            if not isinstance(text, str):
                raise DataError(f"{place} is not text", "--key NAME, or --source parquet for token ids")
            yield Document(name, text.encode(), self._language)


def _ids(row: Any, place: str) -> NDArray[Any]:
    """Token ids of one Arrow list scalar, int64 [n]."""
    values = getattr(row, "values", None)
    if values is None or values.null_count:
        raise DataError(f"{place} is not a list of token ids", "--key NAME, or --source parquet-text for text")
    try:
        ids: NDArray[Any] = np.asarray(values.cast("int64"))
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"{place} is not a list of token ids: {error}") from error
    return ids
