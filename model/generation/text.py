"""Text to tokens with their side columns, and back, one token at a time."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from model.data.columns.incremental import Columns
from model.data.columns.structure import Language
from model.data.source.tokenizers import Tokenizer
from model.families.nam56r import Size
from patchlane.base.errors import PatchlaneError

PART_OF_CHARACTER = b"\x80"  # in each kind of text all bytes of a character that has several have the same columns
Fields = dict[str, NDArray[Any]]


class Text:
    """A document that begins with a prompt. ``ids`` int64 [n] and ``fields``, {field: uint8 [n]}, are the prompt's.

    ``fields`` are None where the model was trained without any. Raises PatchlaneError for a prompt of no token.
    """

    def __init__(
        self, prompt: bytes, tokenizer: Tokenizer, size: Size, known: tuple[str, ...], language: Language
    ) -> None:
        """``known``: the fields that the model's data had."""
        encoded = tokenizer.encode(prompt)
        if not len(encoded.ids):
            raise PatchlaneError(
                "the prompt is empty", "--prompt TEXT: a document has nothing ahead of its first token"
            )
        self.ids, self.names = encoded.ids, [*size.structure.fields] if known else []
        self._columns, self._writer = Columns(language), tokenizer.writer(encoded.ids.tolist())
        columns = self._columns.push(prompt)
        self.fields = {name: columns[name][encoded.ends] for name in self.names} or None

    def write(self, token: int) -> tuple[bytes, Fields | None]:
        """(the bytes that ``token`` adds to the text, its fields [1] by its last byte, None as the prompt's)."""
        text = self._writer(token)
        columns = self._columns.push(text) if text else self._columns.peek(PART_OF_CHARACTER)
        return text, {name: columns[name][-1:] for name in self.names} or None
