"""Python source as a tree, for rules and texts that read the same file many times."""

import ast
import functools


@functools.lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    """The module of ``source``, shared by all who ask: to be read, never changed. Raises SyntaxError if it is none."""
    return ast.parse(source)
