"""A byte-level BPE tokenizer from a corpus, by the ``tokenizers`` library."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from model.data.encode import split_of
from model.data.errors import DataError
from model.data.source.corpus import Corpus
from model.data.source.tokenizers import EOD, HFTokenizer, TokenizerDescription
from patchlane.base import optional
from patchlane.base.files import write_atomic

LEAST = 257  # 256 bytes and the end of a document
MOST = (1 << 18) - 2  # ids that the n-gram hash takes


def train(
    corpus: Corpus, vocab: int, out: Path, valid_percent: float, progress: Callable[[int], None] = lambda size: None
) -> TokenizerDescription:
    """Write a tokenizer of ``vocab`` ids, or of fewer where the corpus has no more pairs, to the new file ``out``.

    The first id ends a document, the next 256 are bytes, so that any text has tokens. Documents that a dataset of the
    same ``valid_percent`` holds out are not read. The same corpus gives the same file. ``progress`` is called with the
    bytes of each document. Raises DataError for a size out of bounds, for a file that is there, for a corpus of token
    ids or without text, for text that is not UTF-8, and where the file cannot be written.
    """
    library = optional.load("tokenizers", "tokenizers", DataError)
    if not LEAST <= vocab <= MOST:
        raise DataError(f"--vocab {vocab}", f"--vocab 32768 (from {LEAST} to {MOST:,})")
    if out.exists():
        raise DataError(f"{out} is there already", "name a new file: --out FILE")
    byte_level = library.pre_tokenizers.ByteLevel
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = byte_level(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[EOD], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for document in corpus:
            if document.tokens is not None:
                raise DataError(f"{document.name} has token ids, a tokenizer is made of text", "--source parquet-text")
            progress(len(document.text))
            if split_of(hashlib.sha256(document.text).digest(), valid_percent) == "valid":
                continue
            try:
                yield document.text.decode()
            except UnicodeDecodeError as error:
                raise DataError(f"{document.name}: text is not UTF-8 at byte {error.start}") from error
            read += len(document.text)

    made.train_from_iterator(texts(), trainer)
    if not read:
        raise DataError("the training split has no text", "--valid-percent 0 holds none out, or give more text")
    content = made.to_str(pretty=True).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)
    except OSError as error:
        raise DataError(
            f"{out} cannot be written: {error.strerror or error}",
            "--out FILE, in a folder with room that you may write",
        ) from error
    return HFTokenizer(content, out, EOD).description
