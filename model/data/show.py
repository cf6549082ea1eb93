"""A dataset's record as a table, and a progress bar for a long build."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import Progress, TaskID
from rich.table import Table

from reproducers.base import cli

if TYPE_CHECKING:
    from model.data.source.corpus import Corpus
    from model.data.stored.dataset import DatasetRecord

SHOWN_AFTER_S = 2.0


def table(record: DatasetRecord) -> None:
    """Print ``record`` to standard output."""
    corpus, tokenizer = record.corpus, record.tokenizer
    origin = f"{corpus.source} of Python {corpus.python}" if corpus.python else corpus.source
    facts = {
        "corpus": f"{origin}: {corpus.files:,} files, {corpus.bytes:,} bytes, {corpus.skipped} skipped",
        "sha256": corpus.sha256,
        "tokenizer": f"{tokenizer.file or tokenizer.kind}: {tokenizer.vocab_size:,} ids, EOD {tokenizer.eod}",
        "columns": ", ".join(record.fields) or "none",
        "dataset": record.digest,
    }
    for name, fact in facts.items():
        print(f"{name:10} {fact}")
    grid = Table("split", "documents", "tokens", "unigram entropy, nats")
    for name, split in record.splits.items():
        entropy = "-" if split.unigram_entropy is None else f"{split.unigram_entropy:.4f}"
        grid.add_row(name, f"{split.documents:,}", f"{split.tokens:,}", entropy)
    cli.console().print(grid)


class Bar:
    """Progress in bytes of the corpus on standard error, on a terminal, once a build has taken 2 s."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus, self._begun, self._done = corpus, time.monotonic(), 0
        self._progress = Progress(console=cli.console(stderr=True), transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        return self

    def advance(self, size: int) -> None:
        self._done += size
        if self._task is None:
            if not self._progress.console.is_terminal or time.monotonic() - self._begun < SHOWN_AFTER_S:
                return
            # Token shards have no text to count bytes of: the bar only moves.
            total = self._corpus.description.bytes if self._done else None
            self._task = self._progress.add_task(self._corpus.description.source, total=total)
            self._progress.start()
        self._progress.update(self._task, completed=self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._progress.stop()
