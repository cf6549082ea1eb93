"""The minimal() of a reproducer as a script of its own: bodies quote it, and the exported file begins with it."""

import ast
from pathlib import Path

from reproducers.record.schema import parsed, text_of


def code(reproducer: Path) -> str | None:
    """The body of the top-level function ``minimal`` without its docstring, dedented, ending in one newline.

    None if the reproducer has no such function, or only a docstring in it. SyntaxError if it is no Python.
    """
    source = text_of(reproducer)
    for node in parsed(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "minimal":
            statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if not statements:
                return None
            before = node.body[0].end_lineno if statements is not node.body else node.lineno
            lines = source.splitlines()[before or 0 : statements[-1].end_lineno]
            indent = " " * statements[0].col_offset  # textwrap.dedent would stop at a string that begins a line
            return "\n".join(line.removeprefix(indent) for line in lines).strip("\n") + "\n"
    return None


def says(reproducer: Path) -> str:
    """What minimal() shows, by the first paragraph of its docstring, in Markdown; empty where there is none."""
    for node in parsed(text_of(reproducer)).body:
        if isinstance(node, ast.FunctionDef) and node.name == "minimal":
            told = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            return told.replace("``", "`")
    return ""
