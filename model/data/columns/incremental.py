"""The causal columns of a text that grows: what ``structure.annotate`` gives, a few bytes at a time.

Only the last token of what was read is read again, because it alone may go on, and what stands ahead of it is kept as
brackets and blocks that are open there.
"""

from __future__ import annotations

import copy
import keyword
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.data.columns.lexer import CLASS_OF, DEPTHS, GROUP, KEYWORD, NAME, SCAN, TAB
from model.data.columns.structure import DEFAULT_FIELDS, Language, annotate

KEYWORDS = frozenset(word.encode() for word in keyword.kwlist)
LAST_WORD = re.compile(rb"[0-9A-Za-z_\x80-\xff]*\Z")
LONGEST = max(map(len, KEYWORDS)) + 1  # bytes of a word that tell whether it is a keyword


@dataclass
class _Ahead:
    """What stands ahead of a token: open brackets, the indentations of open blocks, and where in its line it is."""

    brackets: int = 0
    blocks: list[int] = field(default_factory=lambda: [0])
    begins: bool = True  # the token is the first of a logical line
    indent: bytes | None = None  # the white space between the line's beginning and the token

    def take(self, group: int, text: bytes) -> tuple[int, _Ahead]:
        """(the depth of a token of this kind, what is ahead of the next one)."""
        blank = group in (GROUP["newline"], GROUP["space"], GROUP["comment"])
        blocks = self.blocks
        if not blank and (self.begins or self.indent is not None):
            column = len((self.indent or b"").rpartition(b"\f")[2].expandtabs(TAB))
            blocks = [open_ for open_ in blocks if open_ <= column]
            blocks += [column] if column > blocks[-1] else []
        brackets = self.brackets
        if group == GROUP["close"]:
            brackets = max(brackets - 1, 0)
        indent = text if self.begins and group == GROUP["space"] else None
        ends = group == GROUP["newline"] and brackets == 0
        after = _Ahead(brackets + (group == GROUP["open"]), blocks, ends, indent)
        return min(len(blocks) - 1 + brackets, DEPTHS - 1), after


class Columns:
    """The fields of ``DEFAULT_FIELDS`` for a text of which more and more is known."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._ahead = _Ahead()
        self._last = b""  # the token that may go on
        self._word = b""  # the end of the text, as far as it may be a word

    def push(self, text: bytes) -> dict[str, NDArray[Any]]:
        """{field: uint8 [n]} of the next n bytes, as ``annotate`` of the whole text gives them."""
        if self.language == "text":
            return {name: annotate(text, "text")[name] for name in DEFAULT_FIELDS}
        known, source = len(self._last), self._last + text
        columns: NDArray[Any] = np.zeros((2, len(source)), np.uint8)  # class and depth
        after = self._ahead
        for match in SCAN.finditer(source):
            self._ahead, self._last = after, match[0]
            assert match.lastindex is not None
            depth, after = self._ahead.take(match.lastindex, match[0])
            columns[:, match.start() : match.end()] = [[CLASS_OF[match.lastindex]], [depth]]
        classes, depths = columns[:, known:]
        self._mark_keywords(text, classes)
        return dict(zip(DEFAULT_FIELDS, (classes, depths), strict=True))

    def peek(self, text: bytes) -> dict[str, NDArray[Any]]:
        """``push`` of a text that is not taken."""
        return copy.copy(self).push(text)

    def _mark_keywords(self, text: bytes, classes: NDArray[Any]) -> None:
        """A byte of a name is a keyword's if the word up to it is one."""
        for at in range(len(text)):
            self._word = (self._word + text[at : at + 1])[-LONGEST:]
            found = LAST_WORD.search(self._word)
            assert found is not None
            self._word = found[0]
            if self._word in KEYWORDS and classes[at] == NAME:
                classes[at] = KEYWORD
