"""How a dataset's text became token ids: all that a model trained on it needs to read and to write text."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from model.data.columns.structure import Language
from model.data.errors import DataError
from model.data.source import tokenizers
from model.data.source.tokenizers import HFTokenizer, Tokenizer, TokenizerDescription
from model.data.stored.dataset import DatasetRecord


class Encoding(BaseModel):
    """``fields``: the dataset's side columns. ``language``: of its texts, by which they were made; "text" for a folder
    of files, which may be of both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: TokenizerDescription
    fields: tuple[str, ...]
    language: Language

    @classmethod
    def of(cls, record: DatasetRecord) -> Encoding:
        """The encoding of a dataset."""
        corpus = record.corpus
        python = corpus.source == "stdlib" or corpus.options.get("language") == "python"
        return cls(tokenizer=record.tokenizer, fields=record.fields, language="python" if python else "text")

    def open(self, file: Path | None = None, kept: bytes | None = None) -> Tokenizer:
        """The tokenizer, of ``file``, or of the content ``kept`` beside data or weights where none is named.

        Raises DataError for one of a file that has neither, or for another one.
        """
        made = self.tokenizer
        if made.kind == "byte":
            if file is not None:
                raise DataError(f"{file}: the model reads bytes", "leave --tokenizer out")
            return tokenizers.load("byte")
        if file is None and kept is None:
            raise DataError(f"the model reads tokens of a file {made.file}", f"--tokenizer FOLDER/{made.file}")
        path, content = (file, tokenizers.read(file)) if file else (Path(f"{made.file}"), kept or b"")
        if hashlib.sha256(content).hexdigest() != made.sha256:
            raise DataError(f"{path} is not the tokenizer of the model", f"--tokenizer FILE of sha256 {made.sha256}")
        return HFTokenizer(content, path, made.eod_token)
