"""Corpora of the user's own files: text, JSON lines (compressed or not), Parquet shards of tokens or of text."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import shlex
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
from patchlane.base import optional
from patchlane.base.files import parsed_json

BLANK_LINE = r"\s*"
COMPRESSED = {".gz": "zcat", ".zst": "zstdcat"}  # suffix: what prints such a file
UTF16 = ("\udcff\udcfe", "\udcfe\udcff")  # how a file in that encoding begins, its bytes escaped
# of one JSON document, or an array of them, a line each
AS_LINES = (
    "python -c 'import json, sys; read = json.load(sys.stdin); "
    "[print(json.dumps(one)) for one in (read if isinstance(read, list) else [read])]'"
)
WITHOUT_NULLS = (
    "python -c 'import sys; from pyarrow import parquet; old, new, key = sys.argv[1:]; "
    "rows = parquet.read_table(old); parquet.write_table(rows.filter(rows[key].is_valid()), new)'"
)
FITS = {"parquet": re.compile(r"(large_|fixed_size_)?list<\w+: u?int"), "parquet-text": re.compile(r"(large_)?string")}


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
                there = next(parent for parent in path.parents if parent.is_dir())
                raise DataError(
                    f"{path}: no such file or folder", f"ls {shlex.quote(str(there))}, and name what is there"
                )
        if not files:
            named, wanted = ", ".join(map(str, self.paths)), " or ".join(self.suffixes) or "of UTF-8 text"
            raise DataError(f"no usable file in {named}", f"name files {wanted}, or a folder of them")
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
    """(number, line with its end) of a UTF-8 file; raises DataError if it is not UTF-8, or broken off.

    Bytes that are not are escaped where they are read, a block ahead, and found in the line that they are of.
    """
    number = 0
    try:
        with _open(path) if compressed else _text(path.open("rb")) as source:
            for number, line in enumerate(source, start=1):
                if not line.isascii():
                    line.encode()
                yield number, line
    except UnicodeEncodeError as error:
        encoding = "UTF-16" if error.object.startswith(UTF16) else "LATIN1"
        remedy = f"{_through(path, f'iconv -f {encoding} -t UTF-8')}  # or -f with what it is in"
        raise DataError(f"{path}:{number}: not UTF-8", remedy) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read after line {number}: {error}", "fetch the file again") from error


def _open(path: Path) -> TextIO:
    """A file of lines, decompressed by its suffix; pyarrow, which reads Parquet too, brings zstd."""
    if path.suffix == ".gz":
        return _text(gzip.open(path), "utf-8-sig")
    if path.suffix == ".zst":
        arrow = optional.load("pyarrow", "pyarrow", DataError)
        return _text(arrow.input_stream(str(path), compression="zstd"), "utf-8-sig")
    return _text(path.open("rb"), "utf-8-sig")


def _text(source: Any, encoding: str = "utf-8") -> TextIO:
    return io.TextIOWrapper(source, encoding=encoding, errors="surrogateescape", newline="")


def _through(path: Path, command: str) -> str:
    """A shell's command that makes of the file another beside it, decompressed and sent through ``command``."""
    made = path.with_name("mended-" + (path.stem if path.suffix in COMPRESSED else path.name))
    return f"{COMPRESSED.get(path.suffix, 'cat')} {shlex.quote(str(path))} | {command} > {shlex.quote(str(made))}"


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
    after it where they are compressed. A BOM, which JSON must not begin with, is left out."""

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
        without = _through(path, f"sed {number}d")
        try:
            value = parsed_json(line)
        except ValueError as error:
            begun = number == 1 and not line.rstrip().endswith(("}", "]"))  # one document on many lines
            remedy = _through(path, AS_LINES) if begun else without
            raise DataError(f"{path}:{number}: not JSON of one line: {error}", remedy) from error
        if isinstance(value, list):
            raise DataError(f"{path}:{number}: a list, no string under {self._key!r}", _through(path, AS_LINES))
        text = value.get(self._key) if isinstance(value, dict) else None
        if not isinstance(text, str):
            strings = [key for key, held in value.items() if isinstance(held, str)] if isinstance(value, dict) else []
            other = f"--key {shlex.quote(strings[0])}" if strings and number == 1 else without
            raise DataError(f"{path}:{number}: no string under {self._key!r}", other)
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            what = f"{path}:{number}: {self._key!r} holds a lone surrogate, so it is not UTF-8"
            raise DataError(what, without) from error


class Parquet(Files):
    """Shards of which one column, ``key``, is read, a batch of rows at a time."""

    suffixes = (".parquet",)
    text = False
    fitting = ""  # the remedy for a column that is not of this source

    def __init__(self, paths: list[Path], key: str, **options: str) -> None:
        super().__init__(paths, key=key, **options)
        self._key = key

    def _fitting(self, schema: Any) -> str:
        """Another column of the file that can be read, or as another source; of this one if there is one."""
        for source in sorted(FITS, key=lambda source: source != self.source):
            for column in schema:
                asked = (source, column.name) == (self.source, self._key)
                if FITS[source].match(str(column.type)) and not asked:
                    return f"--source {source} --key {shlex.quote(column.name)}"
        held = ", ".join(f"{column.name} is {column.type}" for column in schema)
        return f"name files with a column of text or of lists of integers: {held}"

    def _rows(self) -> Iterator[tuple[str, str, Any]]:
        """(document's name, place for errors, Arrow scalar) of each row. Raises DataError for a file that is broken."""
        parquet = optional.load("pyarrow.parquet", "pyarrow", DataError)
        for name, path in self.files:
            number = 0
            with _arrow(path, "not a whole Parquet file"):
                shard = parquet.ParquetFile(path)
                self.fitting = self._fitting(shard.schema_arrow)
                if self._key not in shard.schema_arrow.names:
                    has = shard.schema_arrow.names
                    raise DataError(f"{path}: no column {self._key!r}; it has {has}", self.fitting)
                for batch in shard.iter_batches(batch_size=1024, columns=[self._key]):
                    for row in batch.column(0):
                        number += 1
                        if not row.is_valid:
                            given = shlex.join([str(path), str(path.with_name(f"mended-{path.name}")), self._key])
                            raise DataError(f"{path}: row {number} is null", f"{WITHOUT_NULLS} {given}")
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
            yield Document(name, b"", tokens=_ids(row, place, self.fitting))


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
                raise DataError(f"{place} is not text", self.fitting)
            yield Document(name, text.encode(), self._language)


def _ids(row: Any, place: str, remedy: str) -> NDArray[Any]:
    """Token ids of one Arrow list scalar, int64 [n]. Raises DataError with ``remedy`` for anything else."""
    values = getattr(row, "values", None)
    if values is None or values.null_count:
        raise DataError(f"{place} is not a list of token ids", remedy)
    try:
        ids: NDArray[Any] = np.asarray(values.cast("int64"))
    except (ValueError, NotImplementedError) as error:
        raise DataError(f"{place} is not a list of token ids: {error}", remedy) from error
    return ids
