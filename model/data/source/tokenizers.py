"""Tokenizers: bytes as they are, or a Hugging Face ``tokenizers`` JSON file.

Both map UTF-8 bytes to ids [n] and to ``ends`` [n], the offset of each token's last byte, which turns per-byte
annotations into per-token ones. Only the builder appends end-of-document (EOD) ids; text never encodes to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from model.data.errors import DataError
from patchlane.base import optional

BYTE_EOD = 256
EOD = "<|endoftext|>"  # what ends a document in a tokenizer that is made here, and of bytes in an export
FILE = "tokenizer.json"  # its name in a dataset and beside weights


class TokenizerDescription(BaseModel):
    """A tokenizer as its dataset records it. ``vocab_size`` counts the EOD id; the model pads it further."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["byte", "hf"]
    vocab_size: int
    eod: int
    eod_token: str | None = None
    file: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Encoded:
    """``ids`` int64 [n]; ``ends`` int64 [n], offset of the last byte of each token in the encoded bytes."""

    ids: NDArray[Any]
    ends: NDArray[Any]


class Tokenizer(Protocol):
    @property
    def description(self) -> TokenizerDescription: ...

    def encode(self, text: bytes) -> Encoded: ...

    def writer(self, ids: list[int]) -> Callable[[int], bytes]:
        """What gives the bytes of one more token at a time after the text of ``ids``. A token that ends inside a
        character has none; they come with the one that ends the character."""
        ...


class ByteTokenizer:
    """Ids 0..255 are bytes, 256 is EOD."""

    description = TokenizerDescription(kind="byte", vocab_size=257, eod=BYTE_EOD)

    def encode(self, text: bytes) -> Encoded:
        return Encoded(np.frombuffer(text, np.uint8).astype(np.int64), np.arange(len(text), dtype=np.int64))

    def writer(self, ids: list[int]) -> Callable[[int], bytes]:
        return lambda token: bytes([token])


class HFTokenizer:
    """The ``content`` of a ``tokenizer.json``, of the file ``path``; ``eod_token`` is the token that ends a document,
    which must be in its vocabulary."""

    def __init__(self, content: bytes, path: Path, eod_token: str | None) -> None:
        library = optional.load("tokenizers", "tokenizers", DataError)
        try:
            self._tokenizer = library.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"{path}: not a tokenizers JSON file: {error}",
                "name the tokenizer.json of a model on Hugging Face; of one without, "
                "AutoTokenizer.from_pretrained(MODEL).save_pretrained(DIR) in transformers writes it",
            ) from error
        eod = self._tokenizer.token_to_id(eod_token) if eod_token else None
        if eod is None:
            raise DataError(f"{path}: no token {eod_token!r} to end a document with", "--eod TOKEN, one of its tokens")
        # A file may ask for truncation or padding, which a corpus must not get. Text that spells a special token stays
        # text: only the builder makes EOD.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.description = TokenizerDescription(
            kind="hf",
            vocab_size=max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
            eod=eod,
            eod_token=eod_token,
            file=path.name,
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def encode(self, text: bytes) -> Encoded:
        """Raises DataError if ``text`` is not UTF-8."""
        try:
            encoding = self._tokenizer.encode(text.decode(), add_special_tokens=False)
        except UnicodeDecodeError as error:
            raise DataError(f"text is not UTF-8 at byte {error.start}") from error
        ids = np.array(encoding.ids, dtype=np.int64)  # [n]
        stops = np.array([stop for _, stop in encoding.offsets], dtype=np.int64)  # [n], in characters, exclusive
        lead = np.flatnonzero((np.frombuffer(text, np.uint8) & 0xC0) != 0x80)  # [characters]
        last = np.append(lead[1:], len(text)) - 1  # [characters], last byte of each
        return Encoded(ids, last[np.maximum(stops, 1) - 1])

    def writer(self, ids: list[int]) -> Callable[[int], bytes]:
        library = optional.load("tokenizers.decoders", "tokenizers", DataError)
        stream = library.DecodeStream(ids=ids, skip_special_tokens=False)
        return lambda token: (stream.step(self._tokenizer, token) or "").encode()


def load(spec: str, eod_token: str | None = None) -> Tokenizer:
    """The tokenizer that ``byte`` or ``hf:FILE`` names. Raises DataError for anything else."""
    if spec == "byte":
        return ByteTokenizer()
    kind, _, file = spec.partition(":")
    if kind != "hf" or not file:
        raise DataError(f"--tokenizer {spec}", "--tokenizer byte, or --tokenizer hf:FILE --eod TOKEN")
    return HFTokenizer(read(Path(file), "--tokenizer hf:PATH/tokenizer.json"), Path(file), eod_token)


def read(path: Path, remedy: str = "--tokenizer PATH/tokenizer.json") -> bytes:
    """The content of a tokenizer's file. Raises DataError with this ``remedy`` where there is none."""
    try:
        return path.read_bytes()
    except OSError as error:
        said = error.strerror or f"{error}"
        raise DataError(f"{path}: no such tokenizer file ({said})", remedy) from error
