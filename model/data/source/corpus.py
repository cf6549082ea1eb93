"""Corpora: streams of documents whose input files are known, and digested, before the first document is read."""

from __future__ import annotations

import hashlib
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from model.data.columns.structure import Language
from model.data.errors import DataError

Source = Literal["stdlib", "text", "jsonl", "parquet", "parquet-text"]


class CorpusDescription(BaseModel):
    """A corpus as its dataset records it. ``sha256`` covers (relative path, content) of every file, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source
    files: int
    bytes: int
    sha256: str
    skipped: int = 0
    python: str | None = None
    options: dict[str, str] = {}


@dataclass(frozen=True)
class Document:
    """One document of UTF-8 ``text``; or, where the corpus is tokenized already, a row of ``tokens`` int64 [n] (text is
    empty), in which an EOD ends a document."""

    name: str
    text: bytes
    language: Language = "text"
    tokens: NDArray[Any] | None = None


class Corpus(Protocol):
    """``description`` reads every input file once; iterating reads them again. Documents may be empty."""

    @property
    def files(self) -> list[tuple[str, Path]]: ...

    @property
    def description(self) -> CorpusDescription: ...

    def __iter__(self) -> Iterator[Document]: ...


def digest_files(files: list[tuple[str, Path]]) -> tuple[str, int]:
    """(sha256 over the relative names and contents, total bytes); streaming."""
    digest, total = hashlib.sha256(), 0
    for name, path in files:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as source:
            while block := source.read(1 << 20):
                digest.update(block)
                total += len(block)
    return digest.hexdigest(), total


class StandardLibrary:
    """The running interpreter's own ``.py`` sources, sorted: real code that every host has.

    Left out: installed packages, caches, the test suite's deliberately broken files. Files that are not UTF-8 are left
    out and counted.
    """

    FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})
    BROKEN = re.compile(r"(^|/)(tests?|lib2to3|tokenizedata)/.*\bbad[^/]*$|lib2to3/tests/data/")

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or Path(sysconfig.get_path("stdlib"))

    @cached_property
    def _listing(self) -> tuple[list[tuple[str, Path]], int]:
        """((relative name, path) of each file, number of files left out because they are not UTF-8)."""
        files, skipped = [], 0
        for path in self.root.rglob("*.py"):
            relative = path.relative_to(self.root)
            if not self.FOREIGN.isdisjoint(relative.parts) or self.BROKEN.search(relative.as_posix()):
                continue
            if decodes(path):
                files.append((relative.as_posix(), path))
            else:
                skipped += 1
        if not files:
            raise DataError(f"{self.root}: no Python sources", "use --source text with a folder of your own")
        return sorted(files), skipped

    @property
    def files(self) -> list[tuple[str, Path]]:
        return self._listing[0]

    @cached_property
    def description(self) -> CorpusDescription:
        files, skipped = self._listing
        sha256, size = digest_files(files)
        return CorpusDescription(
            source="stdlib",
            files=len(files),
            bytes=size,
            sha256=sha256,
            skipped=skipped,
            python=platform.python_version(),
        )

    def __iter__(self) -> Iterator[Document]:
        for name, path in self.files:
            yield Document(name, path.read_bytes(), "python")


def decodes(path: Path) -> bool:
    """Whether the file is UTF-8 text."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True
