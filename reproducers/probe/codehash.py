"""Hashes of what code objects do, and the header lines of functions. Standard library only."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType


def code_sha256(code: CodeType) -> str:
    """Hash of what a function does: bytecode, names and constants, nested functions included, not its location."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for const in code.co_consts:
        digest.update((code_sha256(const) if isinstance(const, CodeType) else repr(_stable(const))).encode())
    return digest.hexdigest()


def _stable(const: object) -> object:
    """Set literals print in hash order, which differs by process; sort them."""
    return sorted(map(repr, const)) if isinstance(const, frozenset) else const


def file_functions(path: Path) -> dict[str, list[str]]:
    """{qualified name: code hashes} of a source file as compiled by this interpreter; a name may be defined twice."""
    hashes: dict[str, list[str]] = {}

    def walk(code: CodeType) -> None:
        for const in code.co_consts:
            if isinstance(const, CodeType):
                hashes.setdefault(const.co_qualname, []).append(code_sha256(const))
                walk(const)

    walk(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))
    return hashes


def module_hashes(path: Path) -> set[str]:
    """Code hashes of a source file's own code and of its classes' bodies; none of a file that does not compile."""
    if path.suffix != ".py" or not path.exists():
        return set()
    try:
        whole = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return set()
    return {code_sha256(code) for code in nested(whole) if not code.co_flags & inspect.CO_NEWLOCALS}


def headers(path: Path) -> dict[int, range]:
    """{line of ``def``: the lines up to its first statement} of a source file, also under its first decorator's line.

    Importing a file runs its ``def`` lines, but not the functions' own code.
    """
    if path.suffix != ".py" or not path.exists():
        return {}
    spans = {}
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False) is not None
            last = node.body[0].end_lineno if text and len(node.body) == 1 else node.body[int(text)].lineno - 1
            lines = range(node.lineno, max(node.lineno, last or 0) + 1)
            spans[min([node.lineno, *(d.lineno for d in node.decorator_list)])] = spans[node.lineno] = lines
    return spans


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and all within it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)
