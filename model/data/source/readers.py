"""Corpora of the user's own files: text, JSON lines, Parquet shards of tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.columns.structure import Language
from model.data.errors import DataError
from model.data.source.corpus import CorpusDescription, Document, Source, decodes, digest_files
from reproducers.base import optional

BLANK_LINE = r"\s*"


class Files:
    """Files that the user names. Folders are searched for ``suffixes`` (empty: every visible file), in sorted order.

    With ``text``, a folder's files that are not UTF-8 are left out and counted; reading one named directly raises
    DataError.
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
                kept = [p for p in inside if not self.text or decodes(p)]
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
        return [p for p in visible if not self.suffixes or p.suffix in self.suffixes]

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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line with its end) of a UTF-8 file; raises DataError if it is not UTF-8."""
    number = 0
    try:
        with path.open(encoding="utf-8", newline="") as source:
            for number, line in enumerate(source, start=1):
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 after line {number}", f"iconv -t UTF-8 {path}") from error


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
    """One document a line: the string under ``key``."""

    source = "jsonl"
    suffixes = (".jsonl", ".json")

    def __init__(self, paths: list[Path], key: str = "text", language: Language = "text") -> None:
        super().__init__(paths, key=key, language=language)
        self._key, self._language = key, language

    def __iter__(self) -> Iterator[Document]:
        for name, path in self.files:
            for number, line in _lines(path):
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


class ParquetTokens(Files):
    """One document a row: a list of token ids in column ``key``."""

    source = "parquet"
    suffixes = (".parquet",)
    text = False

    def __init__(self, paths: list[Path], key: str = "tokens") -> None:
        super().__init__(paths, key=key)
        self._key = key

    def __iter__(self) -> Iterator[Document]:
        parquet = optional.load("pyarrow.parquet", "pyarrow", DataError)
        for name, path in self.files:
            try:
                shard = parquet.ParquetFile(path)
            except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
                raise DataError(f"{path}: not a Parquet file: {error}") from error
            if self._key not in shard.schema_arrow.names:
                raise DataError(f"{path}: no column {self._key!r}; it has {shard.schema_arrow.names}", "--key NAME")
            number = 0
            for batch in shard.iter_batches(batch_size=1024, columns=[self._key]):
                for row in batch.column(0):
                    number += 1
                    yield Document(f"{name}:{number}", b"", tokens=_ids(row, f"{path}: row {number}"))


def _ids(row: Any, place: str) -> NDArray[Any]:
    """Token ids of one Arrow list scalar, int64 [n]."""
    values = getattr(row, "values", None)
    if values is None or values.null_count:
        raise DataError(f"{place} is not a list of token ids")
    try:
        ids: NDArray[Any] = np.asarray(values.cast("int64"))
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"{place} is not a list of token ids: {error}") from error
    return ids
