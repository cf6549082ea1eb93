"""Build a dataset folder, whole or not at all; reuse a folder that holds the dataset of the same inputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from model.data.columns.structure import FIELDS
from model.data.encode import EncoderOptions, encode_all
from model.data.errors import DataError
from model.data.source import tokenizers
from model.data.source.corpus import Corpus, Source, digest_files
from model.data.source.tokenizers import FILE, TokenizerDescription
from model.data.stored.dataset import RECORD, SPLITS, DatasetRecord, FileRecord, SplitRecord, read_record
from model.data.stored.indexed import token_dtype
from model.data.stored.shards import SplitWriter
from patchlane.base.files import file_sha256, json_sha256, scratch_folder

# raised for the sources of which the same inputs begin to give other files; 1 for all others
FORMATS: dict[Source, int] = {"parquet": 2}
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Built:
    folder: Path
    record: DatasetRecord
    reused: bool


def build(
    corpus: Corpus,
    options: EncoderOptions,
    out: Path | None = None,
    *,
    workers: int = 1,
    shard_bytes: int | None = None,
    progress: Progress = lambda size: None,
) -> Built:
    """Build into ``out``, or reuse it if it holds this dataset. Default: a folder in the cache, named by content.

    ``shard_bytes``: of tokens in a file at most, by which alone nothing that is read changes; None: one file a split.
    ``progress`` is called with the bytes of each document. Raises DataError if ``out`` holds anything else, if the
    corpus is empty or changes during the build, and if a reader refuses a file; ``out`` then stays as it was.
    """
    if not 0 <= options.valid_percent <= 100:
        raise DataError(f"--valid-percent {options.valid_percent:g}", "--valid-percent 2 (from 0 to 100)")
    tokenizer = tokenizers.load(options.tokenizer, options.eod_token).description
    key = build_digest(corpus, options, tokenizer, shard_bytes)
    folder = out or _default_folder(corpus, tokenizer, key)
    if (existing := _existing(folder, key)) is not None:
        return Built(folder, existing, reused=True)
    with scratch_folder(folder.parent, "data-") as scratch:
        inner = scratch / "dataset"
        inner.mkdir()
        record = _fill(inner, corpus, options, tokenizer, key, workers, shard_bytes, progress)
        (inner / RECORD).write_text(record.model_dump_json(indent=1) + "\n")
        try:
            inner.replace(folder)
        except OSError:  # another process built into the same folder meanwhile
            if (existing := _existing(folder, key)) is None:
                raise
            return Built(folder, existing, reused=True)
    return Built(folder, record, reused=False)


def build_digest(
    corpus: Corpus, options: EncoderOptions, tokenizer: TokenizerDescription, shard_bytes: int | None = None
) -> str:
    """sha256 of everything that determines the dataset's files; where they are does not."""
    chosen = {k: v for k, v in asdict(options).items() if k in ("valid_percent", "structure")}
    described = corpus.description.model_dump(mode="json")
    return json_sha256(
        {
            "format": FORMATS.get(corpus.description.source, 1),
            "corpus": described,
            "tokenizer": tokenizer.model_dump(),
            **chosen,
            **({} if shard_bytes is None else {"shard_bytes": shard_bytes}),
        }
    )


def _default_folder(corpus: Corpus, tokenizer: TokenizerDescription, key: str) -> Path:
    root = Path(os.environ.get("PATCHLANE_STORE") or user_cache_path("patchlane"))
    return root / "data" / f"{corpus.description.source}-{tokenizer.kind}-{key[:12]}"


def _existing(folder: Path, key: str) -> DatasetRecord | None:
    """Record of the same build in ``folder``, None if nothing is there. Raises DataError if something else is."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / RECORD).is_file():
        raise DataError(f"{folder} exists and holds no dataset", "name another folder: --out DIR")
    record = read_record(folder)
    if record.build_sha256 != key:
        raise DataError(
            f"{folder} holds a dataset of other inputs or options", f"name another --out, or: rm -r {folder}"
        )
    return record


class _Tally:
    """Documents, tokens and token frequencies of one split."""

    def __init__(self, vocab_size: int) -> None:
        self.documents = 0
        self.counts: NDArray[Any] = np.zeros(vocab_size, np.int64)

    def add(self, ids: NDArray[Any]) -> None:
        self.documents += 1
        counts = np.bincount(ids)
        self.counts[: len(counts)] += counts

    def record(self) -> SplitRecord:
        total = int(self.counts.sum())
        share = self.counts[self.counts > 0] / max(total, 1)
        entropy = float(-(share * np.log(share)).sum()) if total else None
        return SplitRecord(documents=self.documents, tokens=total, unigram_entropy=entropy)


def _fill(
    folder: Path,
    corpus: Corpus,
    options: EncoderOptions,
    tokenizer: TokenizerDescription,
    key: str,
    workers: int,
    shard_bytes: int | None,
    progress: Progress,
) -> DatasetRecord:
    """Write the indexed datasets into ``folder`` and describe them."""
    fields = tuple(FIELDS) if options.structure else ()
    if tokenizer.kind == "hf":
        content = tokenizers.read(Path(options.tokenizer.removeprefix("hf:")))
        if hashlib.sha256(content).hexdigest() != tokenizer.sha256:
            raise DataError("the tokenizer's file changed while it was read", "run the build again")
        (folder / FILE).write_bytes(content)
    tallies = {split: _Tally(tokenizer.vocab_size) for split in SPLITS}
    with contextlib.ExitStack() as stack:
        dtype = token_dtype(tokenizer.vocab_size)
        writers = {
            split: stack.enter_context(SplitWriter(folder, split, dtype, fields, shard_bytes)) for split in SPLITS
        }
        for document in encode_all(corpus, options, workers):
            writers[document.split].append(document.ids, document.columns)
            tallies[document.split].add(document.ids)
            progress(document.size)
    if digest_files(corpus.files)[0] != corpus.description.sha256:
        raise DataError("the corpus changed while it was read", "run the build again")
    if not any(tally.documents for tally in tallies.values()):
        raise DataError("neither split has a document: all files are empty", "name files that have text")
    if options.valid_percent < 100 and not tallies["train"].documents:
        raise DataError("the training split has no document", "--valid-percent 0 holds none out, or give more text")
    return DatasetRecord(
        build_sha256=key,
        corpus=corpus.description,
        tokenizer=tokenizer,
        valid_percent=options.valid_percent,
        fields=fields,
        splits={split: tally.record() for split, tally in tallies.items()},
        files={p.name: FileRecord(bytes=p.stat().st_size, sha256=file_sha256(p)) for p in sorted(folder.iterdir())},
    )
