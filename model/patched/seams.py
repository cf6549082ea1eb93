"""How ``model/`` changes upstream at run time, outside packs: only code that was read when the change was written.

A seam (``model.kinds.path.Seam``) stands with the kernel path that needs it, and what it does with the path's kernels.
Before it acts for the first time, ``verify`` compares the upstream function that it rests on with the seam's digests,
which are those of the stacks' code, with and without a pack that changes it. What a run applies is in its ``run.json``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from model.kinds import catalogue
from model.kinds.path import Seam
from patchlane.base.errors import PatchlaneError

REMEDY = (
    "python -m model.lock check tells whether the tree is the pinned release; for another release read the function, "
    "then python -m pytest tests/model/patched/test_seams.py prints the digests for the seam in model/kinds"
)
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_verified: set[str] = set()


def verify(seam: Seam) -> None:
    """PatchlaneError unless the code on ``sys.path`` is what ``seam`` rests on; looked at once a process."""
    if seam.name not in _verified:
        check([seam], sys.path)
        _verified.add(seam.name)


def check(needed: Iterable[Seam], roots: Iterable[str | Path]) -> None:
    """PatchlaneError unless for each seam the first of ``roots`` that has its module has the code that it rests on."""
    places = list(roots)
    for seam in needed:
        digest = digest_of(seam, places)
        if digest is None:
            raise PatchlaneError(f"seam {seam.name}: {seam.upstream} is not in the tree", REMEDY)
        if digest not in (seam.sha256, *seam.also):
            what = f"seam {seam.name}: {seam.upstream} is other code than the seam was written for"
            raise PatchlaneError(f"{what} (sha256 {digest}, not {seam.sha256})", REMEDY)


def digest_of(seam: Seam, roots: Iterable[str | Path]) -> str | None:
    """sha256 of the code that it rests on in the first of ``roots`` that has the module; None where it is not."""
    text = source(seam.upstream, roots)
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def as_record(needed: Iterable[Seam], roots: Sequence[str | Path] = ()) -> list[dict[str, str]]:
    """The seams of a run as run.json has them: with the code in ``roots``."""
    return [
        {
            "name": seam.name,
            "upstream": seam.upstream,
            "sha256": digest_of(seam, roots) or seam.sha256,
            "owner": seam.owner,
        }
        for seam in needed
    ]


def lacking(roots: Iterable[str | Path]) -> dict[str, str]:
    """{"kind=path": why it cannot run} of paths that need other code than is in ``roots``. Nothing is imported."""
    places, found = list(roots), {}
    for name, path in catalogue.paths().items():
        if path.code and path.code.word not in (source(path.code.upstream, places) or ""):
            package, _, place = path.code.upstream.partition(":")
            where = f"the stack's {package.partition('.')[0]} has no {place} with {path.code.word}"
            found[name] = f"with its patches {where}"
    return found


def source(upstream: str, roots: Iterable[str | Path]) -> str | None:
    """The lines of "module:qualified name", decorators included, in the first of ``roots`` that has the module.

    Nothing is imported. None where there is no such module or name.
    """
    module, _, names = upstream.partition(":")
    place = Path(*module.split("."))
    files = (Path(root) / name for root in roots for name in (place.with_suffix(".py"), place / "__init__.py"))
    file = next(filter(Path.is_file, files), None)
    return None if file is None else _definition(file.resolve(), names)


@functools.cache
def _definition(file: Path, names: str) -> str | None:
    """The lines of the qualified name ``names`` in a file, all of it for ""; looked up once a process."""
    text = file.read_text(encoding="utf-8")
    node: Any = ast.parse(text) if names else None
    for name in filter(None, names.split(".")):
        inside = (child for child in ast.walk(node) if isinstance(child, DEFINITIONS) and child is not node)
        node = next((child for child in inside if child.name == name), None)
        if node is None:
            return None
    if node is None:
        return text
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` within."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def rebound(function: Callable[..., Any], names: dict[str, Any]) -> types.FunctionType:
    """A copy of ``function``: the same code, with other values for some of the global ``names`` that it reads.

    PatchlaneError where it reads no such name.
    """
    code: types.CodeType = function.__code__
    unknown = [name for name in names if name not in code.co_names or name not in function.__globals__]
    if unknown:
        raise PatchlaneError(f"{code.co_filename}: {code.co_name} does not use {', '.join(unknown)}", REMEDY)
    scope = {**function.__globals__, **names}
    copied = types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
