"""A built dataset: ``dataset.json``, and per split tokens and side columns as indexed datasets (``shards``)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from model.data.errors import DataError
from model.data.source.corpus import CorpusDescription
from model.data.source.tokenizers import FILE, TokenizerDescription
from model.data.stored.indexed import REBUILD, IndexedDataset
from model.data.stored.shards import Joined, opened
from patchlane.base.files import file_sha256, json_sha256, within

RECORD = "dataset.json"
Split = Literal["train", "valid"]
SPLITS: tuple[Split, ...] = ("train", "valid")


class FileRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class SplitRecord(BaseModel):
    """``unigram_entropy``: of the split's token frequencies, EOD included, in nats; None for an empty split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    documents: int
    tokens: int
    unigram_entropy: float | None


class DatasetRecord(BaseModel):
    """``dataset.json``. ``build_sha256`` is the digest of everything that determines the content: see build.py."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    build_sha256: str
    corpus: CorpusDescription
    tokenizer: TokenizerDescription
    valid_percent: float
    fields: tuple[str, ...]
    splits: dict[Split, SplitRecord]
    files: dict[str, FileRecord]

    @property
    def digest(self) -> str:
        """sha256 of the record, and so of every file's digest; a loader's state names it."""
        return json_sha256(self.model_dump(mode="json"))


def read_record(folder: Path) -> DatasetRecord:
    """The folder's record. Raises DataError if it is absent or invalid, or if a file is missing or of another size."""
    path = folder / RECORD
    if not path.is_file():
        raise DataError(f"{folder} holds no dataset: it has no {RECORD}", f"python -m model.data build --out {folder}")
    try:
        record = DatasetRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"{path}: {place}: {first['msg']} ({error.error_count()} faults)", REBUILD) from error
    for name, file in record.files.items():
        size = path.stat().st_size if (path := within(folder, name)).is_file() else None
        if size != file.bytes:
            fault = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
            raise DataError(f"{folder / name} {fault}", f"rm -r {folder}, and {REBUILD}")
    return record


def tokenizer(folder: Path) -> bytes | None:
    """The content of the tokenizer's file that lies in the dataset, None where there is none."""
    path = folder / FILE
    return path.read_bytes() if path.is_file() else None


def damaged(folder: Path, record: DatasetRecord) -> list[str]:
    """Names of the files whose sha256 differs from the record; reads every file."""
    return [name for name, file in record.files.items() if file_sha256(within(folder, name)) != file.sha256]


class Dataset:
    """An opened dataset: ``record``, ``tokens(split)`` and ``column(split, field)``, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, read_record(folder)

    def tokens(self, split: Split) -> IndexedDataset | Joined:
        """Tokens, one document each with its EOD. Raises DataError if a file is not a whole indexed dataset."""
        return opened(self.folder, split, None, self.record.files)

    def column(self, split: Split, field: str) -> IndexedDataset | Joined:
        """A side column, uint8 and aligned with the tokens. Raises DataError if the dataset lacks it."""
        if field not in self.record.fields:
            have = ", ".join(self.record.fields) or "none"
            raise DataError(f"{self.folder} has no column {field!r} (it has: {have})", f"{REBUILD} --structure")
        return opened(self.folder, split, field, self.record.files)
