"""Per-token side columns: what kind of text a token is and where it stands in the source.

They annotate the *input*: a field of token t may depend on text after t. CAUSAL names the fields that do not. Only
these may reach a model that predicts token t + 1 from tokens up to t, and they are its default. A byte tokenizer gives
one value per byte. A longer token takes the value at its last byte, where the whole token has been read.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from model.data.columns.lexer import CLASSES, DEPTHS, NAME, NUMBER, OPERATOR, OTHER, WHITESPACE, lex
from model.data.columns.syntax import DEPTHS as TREE_DEPTHS
from model.data.columns.syntax import NODE_TYPES, SIBLINGS, syntax_columns

Language = Literal["python", "text"]
FIELDS = {
    "structure": len(CLASSES),
    "dep_level": DEPTHS,
    "ast_depth": TREE_DEPTHS,
    "sibling": SIBLINGS,
    "node_type": NODE_TYPES,
}
CAUSAL = {"structure": True, "dep_level": True, "ast_depth": False, "sibling": False, "node_type": False}
DEFAULT_FIELDS = tuple(name for name, causal in CAUSAL.items() if causal)


def annotate(source: bytes, language: Language) -> dict[str, NDArray[Any]]:
    """{field: uint8 [n]} for every byte of a UTF-8 text, values below FIELDS[field]; never raises.

    Text that is not Python has a class by the kind of its characters and zeros otherwise.
    """
    zeros: NDArray[Any] = np.zeros(len(source), np.uint8)
    if language == "text":
        classes = _CHARACTER_CLASS[np.frombuffer(source, np.uint8)]
        return {"structure": classes} | {name: zeros for name in FIELDS if name != "structure"}
    return dict(zip(FIELDS, (*lex(source), *syntax_columns(source)), strict=True))


def token_columns(source: bytes, ends: NDArray[Any], language: Language) -> dict[str, NDArray[Any]]:
    """{field: uint8 [tokens]}; ``ends`` int64 [tokens]: offset of each token's last byte."""
    return {name: column[ends] for name, column in annotate(source, language).items()}


def _character_classes() -> NDArray[Any]:
    """Class of each byte value, uint8 [256]; bytes of a multi-byte character count as letters."""
    table: NDArray[Any] = np.full(256, OTHER, np.uint8)
    for value in range(256):
        character = chr(value)
        if value >= 0x80 or character.isalpha() or character == "_":
            table[value] = NAME
        elif character.isdigit():
            table[value] = NUMBER
        elif character.isspace():
            table[value] = WHITESPACE
        elif character.isprintable():
            table[value] = OPERATOR
    return table


_CHARACTER_CLASS = _character_classes()
