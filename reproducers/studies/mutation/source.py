"""A Python file as its author wrote it, where its parts lie, and edits of it that change nothing else.

Places are byte offsets, since the ``ast`` module counts columns in bytes.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}


class Edit(NamedTuple):
    """``text`` in the place of the bytes from ``start`` to before ``end``."""

    start: int
    end: int
    text: str


class Token(NamedTuple):
    start: int
    end: int
    text: str


class Scoped(NamedTuple):
    """A node and the qualified name of the function or class that it is or stands in, "" at the top."""

    node: ast.AST
    scope: str


@dataclass(frozen=True)
class Source:
    """The text of one file and the numbers of the lines to change. SyntaxError from ``tree`` where it is no Python."""

    text: str
    added: frozenset[int]

    @cached_property
    def data(self) -> bytes:
        return self.text.encode()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def starts(self) -> list[int]:
        """Where each line starts."""
        starts = [0]
        for line in io.BytesIO(self.data):
            starts.append(starts[-1] + len(line))
        return starts

    @cached_property
    def tokens(self) -> list[Token]:
        """All tokens but layout and comments, in order."""
        lines = [*io.StringIO(self.text)]

        def place(where: tuple[int, int]) -> int:
            row, column = where
            return self.starts[row - 1] + len(lines[row - 1][:column].encode())

        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return [Token(place(t.start), place(t.end), t.string) for t in tokens if t.type not in LAYOUT]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node starts and ends; parentheses around it are not its own."""
        first, last = self.starts[node.lineno - 1], self.starts[node.end_lineno - 1]  # type: ignore[attr-defined]
        return first + node.col_offset, last + node.end_col_offset  # type: ignore[attr-defined]

    def piece(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def between(self, start: int, end: int) -> Iterator[Token]:
        """The tokens from ``start`` to before ``end``."""
        return (token for token in self.tokens if start <= token.start < end)

    def after(self, place: int) -> Token | None:
        """The first token at or behind a place."""
        return next((token for token in self.tokens if token.start >= place), None)

    def line(self, place: int) -> int:
        """The 1-based number of the line that a place is in."""
        low, high = 0, len(self.starts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.starts[middle] <= place else (low, middle - 1)
        return low + 1

    def lines(self, edit: Edit) -> range:
        """The numbers of the lines that an edit touches."""
        return range(self.line(edit.start), self.line(max(edit.start, edit.end - 1)) + 1)

    def within(self, edit: Edit) -> bool:
        """Whether an edit touches only lines that are to be changed."""
        return self.added.issuperset(self.lines(edit))

    def edited(self, edit: Edit) -> str:
        """The text with the edit."""
        return (self.data[: edit.start] + edit.text.encode() + self.data[edit.end :]).decode()

    def change(self, edit: Edit) -> tuple[str, str]:
        """The touched lines before and after the edit, without indentation."""
        rows = self.lines(edit)
        first, last = self.starts[rows.start - 1], self.starts[min(rows.stop - 1, len(self.starts) - 1)]
        old = self.data[first:last]
        new = self.data[first : edit.start] + edit.text.encode() + self.data[edit.end : last]
        return _stripped(old), _stripped(new)

    def nodes(self) -> Iterator[Scoped]:
        """Every node that computes something, in order.

        Not annotations, not what an error says, and not the inside of f-strings, whose places Python 3.11 gets wrong.
        """
        yield from _nodes(self.tree, "")


def _stripped(data: bytes) -> str:
    return "\n".join(line.strip() for line in data.decode().splitlines())


def _nodes(node: ast.AST, scope: str) -> Iterator[Scoped]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".removeprefix(".")
    yield Scoped(node, scope)
    if isinstance(node, ast.JoinedStr | ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "msg", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, scope)
