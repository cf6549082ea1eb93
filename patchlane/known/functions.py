"""Digests of a file's functions that neither layout, comments, docstrings nor Python's version change.

``ast.dump`` would do, but what it writes differs between versions of Python, and so this module writes its own.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

BODY = "<body>"  # of a module or a class: its statements that are no definition, import or docstring
LENGTH = 16  # hexadecimal digits of a digest: it tells versions of one function apart, and proves no origin
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Function(NamedTuple):
    """The digest of a function, or of the body of a class or module, and the 1-based line where it begins."""

    digest: str
    line: int


@functools.lru_cache(maxsize=256)
def functions(text: bytes) -> dict[str, Function]:
    """{qualified name: function} of a Python file; a function inside of another one belongs to that one.

    Imports have no entry: an import alone says nothing of what a function does. SyntaxError or ValueError where this
    interpreter cannot read the file. All who ask of one text share what they get: to be read, never changed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of others' code, an escape that is none for instance
        tree = ast.parse(text)
    return {BODY: Function(_digest(tree.body, inner=False), 1), **dict(_inside(tree, ""))}


def _inside(node: ast.AST, above: str) -> Iterator[tuple[str, Function]]:
    """Definitions under ``if`` and ``try`` are the module's or class's own; the second of a name is ``name#2``."""
    seen = dict[str, int]()
    for child in _definitions(node):
        seen[child.name] = seen.get(child.name, 0) + 1
        name = above + child.name + (f"#{seen[child.name]}" if seen[child.name] > 1 else "")
        if isinstance(child, ast.ClassDef):
            parts = [*child.decorator_list, *child.bases, *child.keywords, *child.body]
            yield f"{name}.{BODY}", Function(_digest(parts, inner=False), child.lineno)
            yield from _inside(child, f"{name}.")
        else:
            yield name, Function(_digest([child]), child.lineno)


def _definitions(node: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            yield child
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions(child)


def _digest(nodes: Sequence[ast.AST], inner: bool = True) -> str:
    """``inner``: with the definitions and imports that stand in the nodes."""
    text = _written([*nodes], inner).encode("utf-8", "backslashreplace")
    return hashlib.sha256(text).hexdigest()[:LENGTH]


def _written(value: object, inner: bool) -> str:
    """A syntax tree as text, without positions, docstrings, and fields that are absent or empty in it.

    Which fields are there at all is a matter of Python's version; an absent one is what it was before it existed.
    """
    if isinstance(value, ast.AST):
        constant, kept = isinstance(value, ast.Constant), list[str]()
        for name in value._fields:
            field = getattr(value, name, None)
            if isinstance(value, ast.JoinedStr):  # Python 3.12 has empty constants there
                field = [each for each in value.values if not _is_empty(each)]
            if name != "kind" and (constant or (field is not None and field != [])):  # kind: u"" or ""; None is there
                kept.append(f"{name}={_written(field, inner)}")
        return f"{type(value).__name__}({','.join(kept)})"
    if isinstance(value, list):
        left_out = () if inner else (*DEFINITIONS, ast.Import, ast.ImportFrom)
        rows = [_written(each, inner) for each in value if not isinstance(each, left_out) and not _is_text(each)]
        return f"[{','.join(rows)}]"
    return repr(value)


def _is_text(node: object) -> bool:
    """Whether a statement is a text alone, a docstring say, and does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""
