"""A Python lexer whose verdict on a byte never changes: it depends on the text up to and including that byte.

``tokenize`` cannot serve: it looks ahead, fails on unfinished text, and splits f-strings differently per release. This
one is total. Every token pattern is prefix-closed: each prefix of a match is a match of the same class. This makes the
result causal. A word is a name until the byte that completes a keyword, and a name again if it goes on.
Known differences from ``tokenize``: the prefix of a string (``rb``) is a name, a leading ``.`` of a number an operator,
nested same-quote f-strings (3.12) end at the inner quote.
"""

from __future__ import annotations

import keyword
import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = ("none", "keyword", "name", "operator", "number", "string", "comment", "whitespace", "other")
KEYWORD, NAME, OPERATOR, NUMBER, STRING, COMMENT, WHITESPACE, OTHER = range(1, 9)
DEPTHS = 16
TAB = 8

_TRIPLE = r"{q}{q}{q}(?:[^{q}\\]++|\\.?|{q}(?!{q}{q}))*+(?:{q}{q}{q})?"
_SINGLE = r"{q}(?:[^{q}\\\r\n]++|\\(?:\r\n|.)?)*+{q}?"
_STRINGS = "|".join(form.format(q=quote) for quote in "\"'" for form in (_TRIPLE, _SINGLE))
_NUMBERS = r"0[xX][0-9a-fA-F_]*+|0[oObB][0-9_]*+|[0-9][0-9_]*+(?:\.[0-9_]*+)?(?:[eE][+-]?[0-9_]*+)?[jJ]?"
_TOKENS = (
    ("open", r"[(\[{]", OPERATOR),
    ("close", r"[)\]}]", OPERATOR),
    ("word", r"[A-Za-z_\x80-\xff][0-9A-Za-z_\x80-\xff]*+", NAME),
    ("number", _NUMBERS, NUMBER),
    ("string", _STRINGS, STRING),
    ("comment", r"#[^\r\n]*+", COMMENT),
    ("newline", r"\r\n?|\n", WHITESPACE),
    ("space", r"[ \t\f]++", WHITESPACE),
    ("operator", r"[-+*/%@&|^~<>=!.,:;]++", OPERATOR),
    ("continuation", r"\\(?:\r\n?|\n)", OTHER),
    ("other", r".", OTHER),
)
GROUP = {name: number for number, (name, _, _) in enumerate(_TOKENS, start=1)}
CLASS_OF = np.array([0, *(kind for _, _, kind in _TOKENS)], np.uint8)  # [groups + 1]
SCAN = re.compile("|".join(f"({pattern})" for _, pattern, _ in _TOKENS).encode("latin-1"), re.DOTALL)


def lex(source: bytes) -> tuple[NDArray[Any], NDArray[Any]]:
    """(class, depth) of every byte of a Python source, uint8 [n] each; never raises.

    class: index into CLASSES. depth: open blocks plus open brackets, at most DEPTHS - 1; a line's indentation counts
    from its first byte that is not white space on.
    """
    tokens = [(match.end(), match.lastindex) for match in SCAN.finditer(source)]
    if not tokens:
        return np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    ends, groups = np.array(tokens, dtype=np.int64).T  # [tokens] each
    lengths = np.diff(ends, prepend=0)
    classes: NDArray[Any] = np.repeat(CLASS_OF[groups], lengths)  # [n]
    for words in _keyword_layers():
        stops = np.fromiter((match.end() - 1 for match in words.finditer(source)), np.int64)
        classes[stops[classes[stops] == NAME]] = KEYWORD
    brackets = _open_brackets(groups)
    depth = np.minimum(_open_blocks(source, ends, groups, brackets) + brackets, DEPTHS - 1)  # [tokens]
    return classes, np.repeat(depth.astype(np.uint8), lengths)


@cache
def _keyword_layers() -> list[re.Pattern[bytes]]:
    """Patterns that match keywords at the start of a word; no keyword is a prefix of another in its pattern."""
    layers: dict[int, list[str]] = {}
    for word in keyword.kwlist:
        layers.setdefault(sum(word.startswith(other) for other in keyword.kwlist), []).append(word)
    start = r"(?<![0-9A-Za-z_\x80-\xff])"
    return [re.compile(f"{start}(?:{'|'.join(words)})".encode()) for words in layers.values()]


def _open_brackets(groups: NDArray[Any]) -> NDArray[Any]:
    """Brackets open around each token, int64 [tokens]; a bracket itself counts as outside, a stray close as nothing."""
    opened, closed = groups == GROUP["open"], groups == GROUP["close"]
    count = np.cumsum(opened.astype(np.int64) - closed)
    return count - np.minimum(np.minimum.accumulate(count), 0) - opened


def _open_blocks(source: bytes, ends: NDArray[Any], groups: NDArray[Any], brackets: NDArray[Any]) -> NDArray[Any]:
    """Indented blocks open at each token, int64 [tokens], from a stack of the logical lines' indentations."""
    newline, space = GROUP["newline"], GROUP["space"]
    begins = np.concatenate(([True], (groups[:-1] == newline) & (brackets[:-1] == 0)))
    indented = begins & (groups == space)
    firsts = np.flatnonzero((begins & ~indented) | np.concatenate(([False], indented[:-1])))
    firsts = firsts[~np.isin(groups[firsts], (newline, space, GROUP["comment"]))]
    stack, heights = [0], []
    for first, has_indent in zip(firsts.tolist(), indented[firsts - 1].tolist(), strict=True):
        column = 0
        if has_indent and first:
            start = int(ends[first - 2]) if first > 1 else 0
            column = len(source[start : int(ends[first - 1])].rpartition(b"\f")[2].expandtabs(TAB))
        while column < stack[-1]:
            stack.pop()
        if column > stack[-1]:
            stack.append(column)
        heights.append(len(stack) - 1)
    spans = np.diff(np.concatenate((firsts, [len(groups)])))
    return np.concatenate((np.zeros(firsts[0] if firsts.size else len(groups), np.int64), np.repeat(heights, spans)))
