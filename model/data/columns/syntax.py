"""Where each byte of a Python source stands in its syntax tree: depth, place among siblings, node type.

The columns are not causal: the tree is the whole file's. Nodes inside f-strings are left out. Python before 3.12 gives
them wrong positions, and the columns must not depend on the release.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

DEPTHS, SIBLINGS, NODE_TYPES = 64, 64, 256
# The order is part of the format: new names go at the end.
_NODES = """
FunctionDef AsyncFunctionDef ClassDef Return Delete Assign AugAssign AnnAssign For AsyncFor While If With AsyncWith
Match Raise Try TryStar Assert Import ImportFrom Global Nonlocal Expr Pass Break Continue BoolOp NamedExpr BinOp UnaryOp
Lambda IfExp Dict Set ListComp SetComp DictComp GeneratorExp Await Yield YieldFrom Compare Call FormattedValue JoinedStr
Constant Attribute Subscript Starred Name List Tuple Slice ExceptHandler arg keyword alias MatchValue MatchSingleton
MatchSequence MatchMapping MatchClass MatchStar MatchAs MatchOr TypeAlias TypeVar ParamSpec TypeVarTuple TemplateStr
Interpolation
""".split()  # noqa: SIM905
NODE_CODE = {name: code for code, name in enumerate(_NODES, start=1)}
UNKNOWN_NODE = NODE_TYPES - 1
_OPAQUE = ("JoinedStr", "TemplateStr")


def syntax_columns(source: bytes) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(depth, sibling, type) of the innermost node that covers each byte, uint8 [n] each; never raises.

    0 is no node (also for all of a source that does not parse). depth: 1 for a module's statements, at most 63.
    sibling: 1 + place among the parent's children, at most 63. type: NODE_CODE, UNKNOWN_NODE for a node without a code.
    """
    nodes = _nodes(source)
    if nodes is None or not nodes.size:
        none: NDArray[Any] = np.zeros(len(source), np.uint8)
        return none, none, none
    first_line, first_column, last_line, last_column, depth, sibling, kind = nodes.T  # [nodes] each
    lines = _line_starts(source)
    starts, stops = lines[first_line - 1] + first_column, lines[last_line - 1] + last_column
    owner: NDArray[Any] = np.zeros(len(source), np.int64)  # [n], 1 + index of the innermost node
    # Parents come before children, so the last node written is the innermost.
    for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True), start=1):
        owner[start:stop] = number
    return (
        _of_bytes(np.minimum(depth, DEPTHS - 1), owner),
        _of_bytes(np.minimum(sibling, SIBLINGS - 1), owner),
        _of_bytes(kind, owner),
    )


def _of_bytes(column: NDArray[Any], owner: NDArray[Any]) -> NDArray[Any]:
    """A column of nodes [nodes] as one of bytes, uint8 [n]; owner 0 is no node."""
    return np.concatenate(([0], column)).astype(np.uint8)[owner]


def _line_starts(source: bytes) -> NDArray[Any]:
    """Byte offset at which each line begins, as the compiler counts lines, int64 [lines + 1]."""
    ends = [match.end() for match in re.finditer(rb"\r\n?|\n", source)]
    mark = 3 if source.startswith(b"\xef\xbb\xbf") else 0
    return np.array([mark, *ends, len(source)], dtype=np.int64)


def _nodes(source: bytes) -> NDArray[Any] | None:
    """int64 [nodes, 7]: line, column, end line, end column (1-based lines, byte columns), depth, sibling, type.

    Parents before children. None when the source does not parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.decode().removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    rows: list[tuple[int, ...]] = []
    stack: list[tuple[Any, int, int]] = [(tree, 0, 0)]
    while stack:
        node, depth, sibling = stack.pop()
        name = type(node).__name__
        if hasattr(node, "end_lineno"):
            code = NODE_CODE.get(name, UNKNOWN_NODE)
            rows.append((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, depth, sibling, code))
        if name not in _OPAQUE:
            children = _children(node)
            stack.extend((child, depth + 1, place) for place, child in enumerate(children, start=1))
    return np.array(rows, dtype=np.int64).reshape(-1, 7)


def _children(node: Any) -> list[Any]:
    children: list[Any] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            children.extend(item for item in value if isinstance(item, ast.AST))
        elif isinstance(value, ast.AST) and value._fields:  # operators and contexts have neither fields nor positions
            children.append(value)
    return children
